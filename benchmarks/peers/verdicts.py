"""What was seen, as cells of a table: a mark, and the words for it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from benchmarks.peers.programs import BAD
from benchmarks.timing import Ratio

Seen = Mapping[str, Any]
"""Everything that one package answered: `write`, `read`, `live` and `cost`."""


_ALL: Final = 0.95
"""Of the numbers; rounding of another dtype lets a few become absent."""


class Cell(NamedTuple):
    """2 is yes, 1 is partly, 0 is no; None where nothing could be found out."""

    mark: int | None
    words: str


def _failed(found: Mapping[str, Any]) -> Cell | None:
    if "unknown" in found:
        return Cell(None, f"not found out: {found['unknown']}")
    error = found.get("error", "")
    if not error:
        return None
    text = " ".join(str(error).split()).replace("|", "/").replace("`", "'")
    return Cell(0, f"error: `{textwrap.shorten(text, 90, placeholder=' ...')}`")


def _same(found: Mapping[str, Any]) -> Cell:
    failed = _failed(found)
    if failed:
        return failed
    if not found["unlike"] and found["random"]:
        return Cell(2, "identical")
    unlike = f"{found['unlike']} of {found['parameters']} parameters differ, by {found['by']:.2g}"
    return Cell(0, unlike if found["unlike"] else "the state of the random numbers differs")


def _written(question: str) -> Callable[[Seen], Cell]:
    return lambda seen: _same(seen["write"][question])


def _mode(question: str) -> Callable[[Seen], Cell]:
    """Unchanged, and about as many numbers as without the mode."""

    def judge(seen: Seen) -> Cell:
        same = _same(seen["write"][question])
        found, plain = seen["read"][question], seen["read"]["eager"]
        if _failed(seen["write"][question]):
            return same
        if _failed(found) or _failed(plain):
            return Cell(0, f"{same.words}; cannot be read back")
        share = found["numbers"] / max(plain["numbers"], 1)
        mark = 2 if same.mark and share > _ALL else int(share > 0)
        numbers = "all its numbers" if share > _ALL else f"{share:.0%} of its numbers"
        return Cell(mark, f"{same.words}; {numbers}")

    return judge


def _has(kind: str) -> Callable[[Seen], Cell]:
    def judge(seen: Seen) -> Cell:
        found = seen["read"]["recorded"]
        failed = _failed(found)
        there = not failed and found["found"][kind]
        return failed or Cell(2 if there else 0, "yes" if there else "no")

    return judge


def _counted(question: str) -> Callable[[Seen], Cell]:
    def judge(seen: Seen) -> Cell:
        failed = _failed(seen["write"][question]) or _failed(seen["read"][question])
        if failed:
            return failed
        found = seen["read"][question]
        if found["nan"] and found["inf"]:
            return Cell(2, "3 NaN and 2 Inf, apart")
        if found["nan"] or found["both"]:
            return Cell(1, "3 NaN" if found["nan"] else "5 that are not finite, together")
        return Cell(0, "no")

    return judge


def _born(question: str) -> Callable[[Seen], Cell]:
    def judge(seen: Seen) -> Cell:
        failed = _failed(seen["write"][question]) or _failed(seen["read"][question])
        if failed:
            return failed
        told = seen["read"][question]["told"]
        if not told.strip():
            return Cell(0, "no answer, or no such question")
        first = told.splitlines()[0]
        if first.startswith("error"):
            return _failed({"error": first.removeprefix("error: ")}) or Cell(0, first)
        if BAD in first or (first.startswith(("{", "[")) and BAD in told):
            return Cell(2, "names the module")
        return Cell(1, "names another place")

    return judge


def _live(seen: Seen) -> Cell:
    found = seen["live"]
    failed = _failed(found)
    if failed:
        return failed
    if found["page"] > 2:  # noqa: PLR2004 - once or twice is a greeting
        return Cell(2, f"under the cell, {found['page']} times in {found['seconds']:.0f} s")
    if found["server"] > 2:  # noqa: PLR2004 - likewise
        return Cell(1, "in the frame of a server, which had new steps meanwhile")
    return Cell(0, "nothing while the cell runs")


def _files(seen: Seen) -> Cell:
    found = seen["read"]["recorded"]
    failed = _failed(found)
    if failed:
        return failed
    kinds = ", ".join(found["kinds"])
    torch = "without torch" if found["without_torch"] else "with torch"
    many = "1 file" if found["files"] == 1 else f"{found['files']} files"
    words = f"{many} ({kinds}), {found['bytes'] / 1000:.0f} kB a step; {torch}"
    return Cell(2 if found["without_torch"] else 1, words)


def cost(found: Ratio | None) -> str:
    """Return a ratio with its range."""
    if found is None:
        return "not measured: it ended early"
    return f"{found.median:.2f} ({found.low:.2f} to {found.high:.2f})"


CLAIMS: Final[dict[str, Callable[[Seen], Cell]]] = {
    "training is unchanged, bit by bit (20 steps)": _written("unchanged"),
    "the same with dropout": _written("dropout"),
    "under autocast (bfloat16)": _mode("autocast"),
    "under `torch.compile`": _mode("compiled"),
    "under DistributedDataParallel, two processes": _mode("ddp"),
    "NaN and Inf in an output are counted": _counted("spoiled"),
    "NaN and Inf in a parameter's gradient are counted": _counted("spoiled_gradient"),
    "says where a NaN was born in the forward": _born("forward"),
    "says where a NaN was born in the backward": _born("backward"),
    "changes in a notebook while the cell trains": _live,
    "files, read back in another process": _files,
}
RECORDED: Final = (
    "inputs",
    "inputs by keyword",
    "outputs",
    "the second call of a module",
    "gradients of outputs",
    "gradients of the second call",
    "gradients before an activation in place",
    "gradients of inputs, the share of one module",
    "parameters",
    "gradients of parameters",
    "what one call adds to the gradient of a parameter",
    "how far the optimizer moved a parameter",
)
HAS: Final = {kind: _has(kind) for kind in RECORDED}
