"""What `msprobe compare` says of two dumps: its table, with the same columns and Results.

It is msProbe's judgement, faults included; `probe.compare` has a stricter one. What was not read
from a dump is written as one first, so both sides are what msProbe would have seen.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pandas as pd

from probe_nb.dump import folders, writer
from probe_nb.dump.folders import Folder
from probe_nb.dump.nesting import stack_lines
from probe_nb.dump.source import parts_of
from probe_nb.dump.tensor_files import as_array, refusal
from probe_nb.dump.verdict_lines import NO_FILE, NOT_THERE, Line, lines_of
from probe_nb.dump.verdict_matching import Mapped, matched
from probe_nb.dump.verdict_metrics import TENSOR, differences, measures
from probe_nb.dump.verdict_rules import MESSAGE, RESULT, judge
from probe_nb.dump.walk import Walk, pairs
from probe_nb.errors import RunFormatError, SelectionError

if TYPE_CHECKING:
    from probe_nb.records import Records

STACK: Final = "NPU_Stack_Info"
FILES: Final = "Data_name"
_NAMED: Final = ("Name", "Dtype", "Tensor Shape", "Requires_grad")
_BASIC: Final = tuple(f"{side} {word}" for word in _NAMED for side in ("NPU", "Bench"))
_NUMBERS: Final = ("max", "min", "mean", "l2norm")
_SUMMARY: Final = tuple(f"{side} {name}" for side in ("NPU", "Bench") for name in _NUMBERS)
_DIFFERENCES: Final = {
    "max": ("Max diff", "MaxRelativeErr"),
    "min": ("Min diff", "MinRelativeErr"),
    "mean": ("Mean diff", "MeanRelativeErr"),
    "l2norm": ("L2norm diff", "NormRelativeErr"),
}
_APART: Final = (
    *(names[0] for names in _DIFFERENCES.values()),
    *(names[1] for names in _DIFFERENCES.values()),
)
_SAME_GRAD: Final = "Requires_grad Consistent"
_END: Final = (_SAME_GRAD, RESULT, MESSAGE)
_COLUMNS: Final = {
    "statistics": (*_BASIC, *_APART, *_SUMMARY, *_END),
    "tensor": (*_BASIC, *TENSOR, *_SUMMARY, *_END),
    "md5": (*_BASIC, "NPU MD5", "BENCH MD5", *_END),
}


class _Side(NamedTuple):
    """One dump of one step and rank."""

    folder: Folder
    lines: list[Line]
    mode: str
    has_stacks: bool


def table(
    baseline: Records,
    candidate: Records,
    *,
    step: int | None = None,
    rank: int | None = None,
    fuzzy: bool = False,
    data_mapping: Mapping[str, str] | None = None,
    cell_mapping: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """Return the table of two runs, one row per tensor or value of the candidate.

    Args:
        baseline: What msProbe calls bench.
        candidate: What it calls NPU.
        step: A step that both have; None for all, one after the other.
        rank: A rank, in the same way.
        fuzzy: Match as `-fm` does: by names without the numbers of calls, in their order.
        data_mapping: Names of tensors of the candidate, and of those of the baseline, as `-dm`.
        cell_mapping: `name.Class` of modules of the candidate and of the baseline, as `-cm`.

    Returns:
        Columns and Results of `msprobe compare`. Where several steps or ranks are compared, the
        index says which a row is of.

    Raises:
        SelectionError: They have no such step and rank in common.
        RunFormatError: They are not of one kind: statistics, tensors, checksums.
    """
    how = Mapped(fuzzy, dict(data_mapping or {}), dict(cell_mapping or {}))
    with _on_disk(baseline) as bench, _on_disk(candidate) as npu:
        both = _common(npu, bench, step, rank)
        made = {at: _table(_side(npu[at]), _side(bench[at]), how) for at in both}
    if len(made) == 1:
        return next(iter(made.values()))
    return pd.concat(made, names=["step", "rank", "row"])


At = tuple[int, int]


def _common(
    npu: Mapping[At, Folder], bench: Mapping[At, Folder], step: int | None, rank: int | None
) -> list[At]:
    both = [at for at in npu if at in bench]
    both = [at for at in both if step in (None, at[0]) and rank in (None, at[1])]
    if not both:
        raise SelectionError("The two runs have no such step and rank in common.")
    return both


@contextlib.contextmanager
def _on_disk(run: Records) -> Iterator[dict[At, Folder]]:
    """Give the folders of a run: those it was read from, or what msProbe would have written."""
    parts = parts_of(run.info)
    if parts is not None:
        yield _by_place(parts)
        return
    with tempfile.TemporaryDirectory(prefix="probe_nb-") as name:
        path = Path(name) / "dump"
        writer.write(run, path, writer.wanted(run, ours=False))
        yield _by_place(folders.find(path, lambda _: None))


def _by_place(parts: Sequence[Folder]) -> dict[At, Folder]:
    return {(each.step, each.number): each for each in parts}


def _side(folder: Folder) -> _Side:
    def ignored(_: str) -> None:
        """What cannot be read is told of where the run is read."""

    name = folder.dumps[0] if folder.dumps else folders.DUMP
    walk = Walk(folder, name, ignored)
    entries = [(entry.name, entry.body) for entry in walk.entries()]
    path = folder.file(folders.STACK)
    stacks = None
    if not folders.trouble(path, folder.root) and name != folders.DEBUG:
        stacks = dict(stack_lines(value for _, value in pairs(path, ignored, lambda _: None)))
    lines = lines_of(entries, stacks)
    return _Side(folder, lines, _mode(walk.header.get("task"), entries), stacks is not None)


def _mode(task: Any, entries: Sequence[tuple[str, Any]]) -> str:
    if task == "tensor":
        return "tensor"
    return "md5" if any(_has_checksum(body) for _, body in entries) else "statistics"


def _has_checksum(node: Any) -> bool:
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if "md5" in node:
                return True
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    return False


def _table(npu: _Side, bench: _Side, how: Mapped) -> pd.DataFrame:
    if npu.mode != bench.mode:
        raise RunFormatError(
            f"The candidate is a dump of {npu.mode}, the baseline of {bench.mode}: msProbe "
            "compares dumps of one kind."
        )
    found = matched(npu.lines, bench.lines, how, npu.mode)
    rows = [_row(*pair, npu.mode) for pair in found]
    _measure(npu, bench, found, rows)
    calls: dict[str, list[dict[str, Any]]] = {}
    for (line, _), row in zip(found, rows, strict=True):
        calls.setdefault(line.entry, []).append(row)
    for each in calls.values():
        judge(each, npu.mode)
    columns = [*_COLUMNS[npu.mode], *([STACK] if npu.has_stacks else [])]
    columns += [FILES] if npu.mode == "tensor" else []
    return pd.DataFrame(rows, columns=columns, dtype=object)


def _row(npu: Line, bench: Line | None, mode: str) -> dict[str, Any]:
    row: dict[str, Any] = {STACK: npu.stack}
    for side, line in (("NPU", npu), ("Bench", bench)):
        there = line is not None
        said = (line.name, line.dtype, line.shape, line.requires_grad) if line else ()
        values = said if there else (NOT_THERE,) * 4
        row |= zip((f"{side} {word}" for word in _NAMED), values, strict=True)
        four = line.four if line else (NOT_THERE,) * 4
        row |= zip((f"{side} {name}" for name in _NUMBERS), four, strict=True)
    row[_SAME_GRAD] = row["NPU Requires_grad"] == row["Bench Requires_grad"]
    row["NPU MD5"] = npu.checksum
    row["BENCH MD5"] = NOT_THERE if bench is None else bench.checksum
    if mode == "tensor":
        row[FILES] = [npu.file, NOT_THERE if bench is None else bench.file]
    return row


def _measure(
    npu: _Side, bench: _Side, found: Sequence[tuple[Line, Line | None]], rows: Sequence[Any]
) -> None:
    if npu.mode == "statistics":
        for name, columns in _DIFFERENCES.items():
            pair = ([row[f"{side} {name}"] for row in rows] for side in ("NPU", "Bench"))
            for row, apart in zip(rows, differences(*pair), strict=True):
                row.update(zip(columns, apart, strict=True))
    elif npu.mode == "tensor":
        for (mine, other), row in zip(found, rows, strict=True):
            row.update(measures(_load(npu.folder, mine), _load(bench.folder, other)))


def _load(folder: Folder, line: Line | None) -> Any:
    """Return a tensor, None if it is not there or cannot be read."""
    if line is None or line.file == NO_FILE or refusal(line.file):
        return None
    with contextlib.suppress(RunFormatError, FileNotFoundError):
        found: np.ndarray = as_array(folder.file(folders.TENSORS) / line.file, folder.root)
        return found
    return None
