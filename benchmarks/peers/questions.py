"""What is asked of each package: `python -m benchmarks.peers.questions TOOL write|read FOLDER`.

Runs where the package is, and prints JSON: what was seen. Each question has a process of its own;
files are read back by others than those that wrote them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.tools import load

_NAN: Final = 3
_INF: Final = 2
_SIZES: Final = (1, 16, 128)
"""What `programs.spoiled` puts into a tensor; the elements of those tensors, for shares of them."""
_PATIENCE: Final = 600
"""Seconds that one question may take."""
_LONGEST: Final = 2**16
"""Bytes of an answer: what a pipe takes at once."""


def write(tool: str, program: str, folder: Path, **how: Any) -> dict[str, Any]:
    """Train bare, then watched; say whether the two are the same."""
    from benchmarks.peers import training

    with contextlib.ExitStack() as stack:
        bare = training.bare(program, **how)
        watched = training.watched(tool, program, folder, stack, **how)
    return {"error": "", **training.difference(bare, watched)}


def recorded(tool: str, folder: Path) -> dict[str, Any]:
    """Read the files back; say which of the tensors that plain hooks saw are in them."""
    numbers = list(load(tool).numbers(folder))
    without_torch = "torch" not in sys.modules
    from benchmarks.peers.truth import tensors

    values = sorted(value for _, value in numbers if math.isfinite(value))
    found = {
        name: any(_among(low, values) and _among(high, values) for low, high in ranges)
        for name, ranges in tensors().items()
    }
    return {
        "found": found,
        "without_torch": without_torch,
        "numbers": len(numbers),
        **_files(folder),
    }


def _among(value: float, values: list[float]) -> bool:
    """Whether a number is there, to the last digits of float32."""
    import bisect

    slack = abs(value) * 3e-7
    at = bisect.bisect_left(values, value - slack)
    return at < len(values) and values[at] <= value + slack


def _files(folder: Path) -> dict[str, Any]:
    files = [each for each in folder.rglob("*") if each.is_file()]
    kinds = sorted({_kind(each.name) for each in files})
    return {
        "files": len(files),
        "bytes": sum(each.stat().st_size for each in files),
        "kinds": kinds,
    }


def _kind(name: str) -> str:
    return "tfevents" if "tfevents" in name else name.rpartition(".")[2]


def spoiled(tool: str, folder: Path) -> dict[str, Any]:
    """Say whether three NaN and two Inf are still counted in what was written, and where."""
    both = _NAN + _INF
    counts = {"nan": (_NAN,), "inf": (_INF,), "both": tuple(both / size for size in _SIZES)}
    words = {"nan": "nan", "inf": "inf", "both": "nonfinite"}
    seen = dict.fromkeys(counts, "")
    for word, value in load(tool).numbers(folder):
        for name, wanted in counts.items():
            if value in wanted and words[name] in word.lower().replace("_", "").replace("-", ""):
                seen[name] = word
    return seen


def birth(tool: str, folder: Path, phase: str) -> dict[str, Any]:
    """Ask the package where the NaN was born."""
    return {"told": load(tool).birth(folder, phase)[:4000]}


def grown(tool: str, folder: Path) -> dict[str, Any]:
    """Count the numbers that were written."""
    return {"numbers": sum(1 for _ in load(tool).numbers(folder))}


def rank(tool: str, folder: Path, number: int) -> dict[str, Any]:
    """Be one of two processes of DistributedDataParallel."""
    import torch.distributed as dist

    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=number, world_size=2)
    mine = folder / f"of{number}"
    mine.mkdir()
    try:
        return write(tool, "plain", mine, steps=5, ddp=True)
    finally:
        dist.destroy_process_group()


WRITTEN: Final[dict[str, dict[str, Any]]] = {
    "unchanged": {"program": "plain", "steps": 20},
    "dropout": {"program": "dropout", "steps": 20},
    "recorded": {"program": "plain", "steps": 1},
    "spoiled": {"program": "spoiled", "steps": 1},
    "spoiled_gradient": {"program": "spoiled_gradient", "steps": 1},
    "forward": {"program": "bad_forward", "steps": 5},
    "backward": {"program": "bad_backward", "steps": 5},
    "eager": {"program": "plain", "steps": 5},
    "autocast": {"program": "plain", "steps": 5, "autocast": True},
    "compiled": {"program": "plain", "steps": 5, "compiled": True},
}
READ: Final[dict[str, Callable[[str, Path], dict[str, Any]]]] = {
    "recorded": recorded,
    "spoiled": spoiled,
    "spoiled_gradient": spoiled,
    "forward": functools.partial(birth, phase="forward"),
    "backward": functools.partial(birth, phase="backward"),
    "eager": grown,
    "autocast": grown,
    "compiled": grown,
}


def main(tool: str, which: str, folder: str, *chosen: str) -> None:
    """Answer questions of one kind, all or some; what a package prints goes where errors go."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    act = _written if which == "write" else _read
    found = act(tool, Path(folder), chosen or (*WRITTEN, "ddp"))
    print(json.dumps(found), file=answers, flush=True)


def _written(tool: str, folder: Path, chosen: Sequence[str]) -> dict[str, Any]:
    import torch  # noqa: F401 - once, for the processes that are forked below

    found: dict[str, Any] = {"version": version(load(tool).DISTRIBUTION), "torch": version("torch")}
    for question in chosen:
        place = folder / question
        place.mkdir(parents=True)
        if question == "ddp":
            ranks = [_forked(rank, tool, place, number) for number in (0, 1)]
            found[question], _ = [each() for each in ranks]
        else:
            found[question] = _forked(write, tool, folder=place, **WRITTEN[question])()
    return found


def _read(tool: str, folder: Path, chosen: Sequence[str]) -> dict[str, Any]:
    places = {question: folder / question for question in chosen if question in READ}
    places |= {"ddp": folder / "ddp" / "of0"} if "ddp" in chosen else {}
    return {
        question: _forked(READ.get(question, grown), tool, place)()
        for question, place in places.items()
    }


def _forked(act: Callable[..., dict[str, Any]], *args: Any, **kwargs: Any) -> Callable[[], Any]:
    """Begin in a process of its own; the answer is waited for, or says what went wrong.

    It is forked by hand: a package may refuse to run in a process of `multiprocessing`.
    """
    ours, theirs = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            found = act(*args, **kwargs)
        except BaseException as error:  # the answer, whatever it is
            found = {"error": f"{type(error).__name__}: {error}"[:400]}
        os.write(theirs, json.dumps(found).encode())
        os._exit(0)
    os.close(theirs)

    def answer() -> Any:
        ready, _, _ = select.select([ours], [], [], _PATIENCE)
        told = os.read(ours, _LONGEST) if ready else b""
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(ours)
        return json.loads(told) if told else {"unknown": f"no answer in {_PATIENCE} s"}

    return answer


if __name__ == "__main__":
    main(*sys.argv[1:])
