"""Every reader is given files that were spoiled: a result, or an error of ours, and nothing else.

    python -m tools.fuzz --minutes 5               # all readers in turn, other files each time
    python -m tools.fuzz run dump --rounds 100     # some readers, the same files each time
    python -m tools.fuzz run --seed 3 --first 17 --rounds 1    # one file again

Readers run in a process of their own, which may end in any way: by a signal, out of memory, never.
What a round does there beside reading is a finding too: files written elsewhere, programs run,
names looked up by a pickle, memory that a small file does not account for.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MEMORY = 600 * 2**20
"""Bytes more than before that one small file may cost to read: budgets of 64 MiB, and libraries."""

ADDRESSES = 6 * 2**30
"""Bytes of address space more than before: the machine goes on whatever a reader asks for."""

SECONDS = 20
LONGEST = 5000
"""Characters of a message that a person would still read."""


# -- the process that reads ------------------------------------------------------------------------


class Guard:
    """Notes what a reader must not do, while it is on; Python itself tells of it."""

    programs = (
        *("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork"),
        *("socket.connect", "pickle.find_class"),
    )
    changes = (
        *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.symlink"),
        "shutil.rmtree",
    )

    def __init__(self, folder: Path) -> None:
        """Allow changes inside of a folder alone."""
        self.inside, self.on, self.seen = str(folder), False, list[str]()
        sys.addaudithook(self.hear)

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        """Take note of what Python tells."""
        if not self.on:
            return
        if event in self.programs:
            self.seen.append(f"{event}{args!r:.200}")
        elif event in self.changes or (event == "open" and _writes(args)):
            self._changed(event, args[0])

    def _changed(self, event: str, what: Any) -> None:
        if not isinstance(what, str | bytes | os.PathLike):
            return
        path = os.path.abspath(os.fsdecode(what))  # noqa: PTH100 - links stay as they are
        if "__pycache__" not in path and not path.startswith((self.inside, "/dev/")):
            self.seen.append(f"{event} {path!r:.200}")


def _writes(args: tuple[Any, ...]) -> bool:
    flags = args[2]
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def peak() -> int:
    """Return the most memory since it was last forgotten."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def forget_peak() -> int:
    """Return how much memory there is now; the peak is that from here on."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def late(*_: object) -> None:
    """End a round."""
    raise TimeoutError(f"it took more than {SECONDS} seconds")


def worker(names: list[str], seed: int, first: int, rounds: int, top: Path) -> None:
    """Read; each round is announced before it begins, and what was found is told."""
    os.environ["TMPDIR"] = str(top)
    tempfile.tempdir = None
    import torch

    from tests.fuzz.targets import TARGETS

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, late)
    guard = Guard(top)
    for name in names:
        (sound := top / f"{name}-sound").mkdir(exist_ok=True)
        if not any(sound.iterdir()):
            TARGETS[name].make(sound)
        for _ in range(2):  # imports, and what is made once
            one_round(TARGETS[name], sound, top, None, guard)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (now + ADDRESSES, now + ADDRESSES))
    for number in range(first, first + rounds):
        for name in names:
            say({"begins": [name, number]})
            rng = random.Random(f"{name} {seed} {number}")  # noqa: S311 - the same each time
            fault = one_round(TARGETS[name], top / f"{name}-sound", top, rng, guard)
            if fault:
                say({"fault": fault})
    say({"done": True})


def one_round(target: Any, sound: Path, top: Path, rng: random.Random | None, guard: Guard) -> str:
    """Spoil a copy of what is sound and read it; return what went wrong, "" if nothing did."""
    with tempfile.TemporaryDirectory(dir=top) as made:
        folder = Path(made) / "it"
        shutil.copytree(sound, folder)
        if rng is not None:
            target.spoil(folder, rng)
        before, fault, guard.seen = forget_peak(), "", []
        signal.alarm(SECONDS)
        guard.on = True
        try:
            target.read(folder)
        except target.expected as error:
            fault = "" if rng is not None and good(str(error)) else f"says only: {error!r}"
        except BaseException as error:
            frames = traceback.format_exception(type(error), error, error.__traceback__)
            fault = "".join(frames)[-3000:]
        finally:
            guard.on = False
            signal.alarm(0)
        more = peak() - before
        if more > MEMORY:
            fault += f"\ntook {more:,} bytes"
        return fault + "".join(f"\ndid {each}" for each in guard.seen)


def good(text: str) -> bool:
    """Tell whether a message names what it is about, in a sentence."""
    return "`" in text and len(text) < LONGEST


def say(what: dict[str, Any]) -> None:
    """Tell the process that looks on."""
    print(json.dumps(what), flush=True)


# -- the process that looks on ---------------------------------------------------------------------


def lines(process: subprocess.Popen[str], seconds: float) -> Iterator[dict[str, Any]]:
    """Yield what a worker says; it is ended where it says nothing for too long."""
    data = b""
    while True:
        ready, _, _ = select.select([process.stdout], [], [], seconds)
        if not ready:
            process.kill()
            yield {"silent": True}
            return
        piece = os.read(process.stdout.fileno(), 65536)
        if not piece:
            return
        *whole, data = (data + piece).split(b"\n")
        for line in whole:
            with contextlib.suppress(ValueError):
                yield json.loads(line)


def fuzz(
    names: list[str], seed: int, first: int, rounds: int, until: float = 0
) -> list[dict[str, Any]]:
    """Run rounds, in workers that are begun anew where one ends; return what was found."""
    found: list[dict[str, Any]] = []
    end, at, done = first + rounds, ("", first), False
    with tempfile.TemporaryDirectory(prefix="probe_nb-fuzz-") as top:
        while not done and at[1] < end:
            command = [
                sys.executable,
                "-m",
                "tools.fuzz",
                *names,
                "--seed",
                str(seed),
                "--worker",
                top,
            ]
            command += ["--first", str(at[1]), "--rounds", str(end - at[1])]
            at, why = ("", at[1]), ""
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1]
            ) as process:
                for said in lines(process, 60 + SECONDS * 3):
                    if "begins" in said:
                        at = tuple(said["begins"])
                    elif "fault" in said:
                        found.append(
                            {"target": at[0], "round": at[1], "seed": seed, "fault": said["fault"]}
                        )
                    why = "hangs" if "silent" in said else why
                    done = done or "done" in said
                    if until and time.monotonic() > until:
                        process.kill()
                        return found
            code = process.returncode
            if not done:
                found.append(
                    {
                        "target": at[0],
                        "round": at[1],
                        "seed": seed,
                        "fault": why or f"the process ended with {code}",
                    }
                )
                at = (at[0], at[1] + 1)
    return found


def kind(fault: str) -> tuple[str, ...]:
    """Return what findings with one cause have in common: the place in our code, and the error."""
    told = fault.splitlines()
    ours = [line for line in told if "/probe_nb/" in line]
    return (*ours[-1:], (told or [""])[-1].partition(":")[0])


def main() -> int:
    """Do what the command line says; return 1 if anything was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--worker", type=Path)
    asked = parser.parse_args()
    if asked.worker is not None:
        worker(asked.targets, asked.seed, asked.first, asked.rounds, asked.worker)
        return 0
    from tests.fuzz.targets import TARGETS

    names = asked.targets or list(TARGETS)
    if asked.minutes:
        seed = random.SystemRandom().randrange(2**32)
        found = fuzz(names, seed, 0, 10**9, time.monotonic() + asked.minutes * 60)
    else:
        found = fuzz(names, asked.seed, asked.first, asked.rounds)
    kinds: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for each in found:
        kinds.setdefault(kind(each["fault"]), []).append(each)
    for many in kinds.values():
        one = many[0]
        again = f"{one['target']} --seed {one['seed']} --first {one['round']} --rounds 1"
        print(f"== {len(many)} times: {again}")
        print(one["fault"], end="\n\n")
    print(f"{len(found)} findings of {len(kinds)} kinds")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
