"""Holds the laws on one specimen: unchanged, given back, right numbers, nothing missing.

A specimen is used bare twice, watched, and once under a recorder that shares nothing with the
tool. What a bare model does not repeat cannot be held against a watch; that is a remark.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import nn

import probe_nb as probe
from probe_nb.errors import ProbeWarning
from tests import models
from tests.conftest import fingerprint
from tests.zoo import recorder, traces
from tests.zoo.recorder import Records, Truth
from tests.zoo.specimen import Specimen
from tests.zoo.torch_modules import FAMILY as OF_TORCH
from tests.zoo.traces import Around, Trace

Use = Callable[[Specimen, Around], Trace]

_MANY = 12
"""Faults of one kind that are listed; the rest is counted."""


@dataclass
class Verdict:
    """What came of an examination."""

    faults: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """Why something could not be held, in words."""
    rows: int = 0
    """Rows whose numbers were compared with the oracle's."""


def examine(specimen: Specimen) -> list[str]:
    """Return every fault in words; empty if the specimen passed."""
    return examined(specimen).faults


def examined(specimen: Specimen) -> Verdict:
    """Use a specimen in every way it has and judge each."""
    verdict = Verdict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of building it; those of using it are compared
        _judge(verdict, specimen, traces.trained, "")
        if specimen.generate is not None:
            _judge(verdict, specimen, traces.generated, "generate: ")
    return verdict


def _judge(verdict: Verdict, specimen: Specimen, use: Use, prefix: str) -> None:
    bare, again = use(specimen, _nothing), use(specimen, _nothing)
    unsteady = traces.differences(bare, again)
    before = fingerprint()
    seen = use(specimen, _watched)
    faults = [] if unsteady else _listed(traces.differences(bare, seen))
    faults += _left_over(before) + _warned(bare, seen)
    truth, gradients = _recorded(specimen, use, bare)
    frame = _Rows(seen.around)
    if bare.error is not None and specimen.family == OF_TORCH:
        verdict.remarks.append(f"{prefix}torch itself raises {bare.error!r}")
    elif bare.error is not None:
        faults.append(f"cannot be used, watched or not: {bare.error!r}")
    if unsteady:
        verdict.remarks.append(f"{prefix}not the same twice without a watch: {unsteady[0]}")
    elif truth is None:
        verdict.remarks.append(f"{prefix}changed by the recorder: numbers not compared")
    else:
        faults += _listed(list(frame.wrong(truth, gradients=gradients)))
        verdict.rows += frame.compared
    faults += _missing(seen.around, truth)
    verdict.faults += [prefix + fault for fault in faults]


def _nothing(_: nn.Module) -> Any:
    return contextlib.nullcontext()


def _watched(model: nn.Module) -> Any:
    return probe.watch(model, live=False)


def _recorded(specimen: Specimen, use: Use, bare: Trace) -> tuple[Records | None, bool]:
    """Return what a recorder saw that changed nothing, with gradients if that is possible."""
    for gradients in (True, False):
        trace = use(specimen, partial(recorder.recorded, gradients=gradients))
        if not traces.differences(bare, trace):
            return trace.around, gradients
    return None, False


def _left_over(before: dict[str, Any]) -> list[str]:
    after = fingerprint()
    changed = [f"left changed: {name}" for name in after if after[name] != before[name]]
    return changed + [f"left behind: {hook}" for hook in models.hooks_of_probe_nb()]


def _warned(bare: Trace, seen: Trace) -> list[str]:
    ours = [f"warned: {text}" for kind, text in seen.warnings if issubclass(kind, ProbeWarning)]
    new = [
        w for w in seen.warnings if w not in bare.warnings and not issubclass(w[0], ProbeWarning)
    ]
    return ours + [f"a warning that comes only with the watch: {text}" for _, text in new]


def _missing(run: probe.Run, truth: Records | None) -> list[str]:
    """Name modules without rows for which no reason is given, and rows that failed."""
    frame = run.df
    failed = frame[frame["status"] == "failed"]
    faults = [f"failed row: {r.module} {r.role} {r.leaf}" for r in failed.itertuples()]
    coverage = run.coverage()
    faults += [f"{m}: no reason" for m in coverage["module"][coverage["reason"] == ""]]
    if truth is None:
        return faults
    rows = frame[frame["role"].isin(["input", "output"])]
    known = set(rows["module"]) | set(coverage["module"])
    with_tensors = {path for path, _, _ in truth.seen}
    return faults + [f"`{p}` was called, no row, no reason" for p in sorted(with_tensors - known)]


def _listed(faults: list[str]) -> list[str]:
    rest = len(faults) - _MANY
    return faults if rest <= 0 else [*faults[:_MANY], f"and {rest} more of this kind"]


class _Rows:
    """The rows of a run against what a recorder saw."""

    def __init__(self, run: probe.Run) -> None:
        self.run = run
        self.compared = 0
        frame = run.df
        columns = {name: frame[name].tolist() for name in frame.columns} | {
            "index": list(frame.index)
        }
        self._rows = [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]

    def wrong(self, truth: Records, *, gradients: bool) -> Iterator[str]:
        yield from self._in_order(truth)
        yield from self._parameters(truth)
        yield from self._param_grads(truth)
        if gradients:
            yield from self._grad_outputs(truth)

    def _in_order(self, truth: Records) -> Iterator[str]:
        """Compare inputs and outputs, the n-th row of a site with the n-th tensor there."""
        found = self._grouped(["input", "output"], ("module", "role", "leaf"))
        for place in {**truth.seen, **found}:
            rows, truths = found.get(place, []), truth.seen.get(place, [])
            yield from self._pairs(place, rows, truths)

    def _parameters(self, truth: Records) -> Iterator[str]:
        """Compare parameters: they are read at the beginning of each step."""
        found = self._grouped(["param"], ("module", "leaf"))
        for place in {**truth.parameters, **found}:
            rows = found.get(place, [])
            expected = truth.parameters.get(place)
            wanted = [expected] * self.run.info.steps if expected is not None else []
            yield from self._pairs((place[0], "param", place[1]), rows, wanted)

    def _param_grads(self, truth: Records) -> Iterator[str]:
        found = self._grouped(["param_grad"], ("module", "leaf"))
        for place in {**truth.param_grads, **found}:
            expected = truth.param_grads.get(place)
            wanted = [] if expected is None else [expected]
            yield from self._pairs((place[0], "param_grad", place[1]), found.get(place, []), wanted)

    def _grad_outputs(self, truth: Records) -> Iterator[str]:
        """Compare gradients that arrived at outputs, where both sides could read them."""
        found = self._grouped(["grad_output"], ("module", "leaf", "call"))
        for place, truths in truth.gradients.items():
            rows = found.get(place, [])
            if {row["status"] for row in rows} & {"stale_view", "passthrough"}:
                continue
            yield from self._pairs((place[0], "grad_output", place[1]), rows, truths)

    def _grouped(self, roles: list[str], keys: tuple[str, ...]) -> dict[tuple[Any, ...], list[Any]]:
        found: dict[tuple[Any, ...], list[Any]] = {}
        for row in self._rows:
            if row["role"] in roles:
                found.setdefault(tuple(row[key] for key in keys), []).append(row)
        return found

    def _pairs(self, place: Any, rows: list[Any], truths: list[Truth]) -> Iterator[str]:
        where = f"`{place[0]}` {place[1]} {place[2]}"
        if len(rows) != len(truths):
            yield f"{where}: {len(rows)} rows, not {len(truths)}"
            return
        for row, truth in zip(rows, truths, strict=True):
            self.compared += 1
            for fault in recorder.faults(row, self._bins(row["index"]), truth):
                yield f"{where}: {fault}"

    def _bins(self, index: int) -> dict[tuple[int, int], int]:
        histogram = self.run.columns.histogram(int(index))
        return {} if histogram is None else {(s, e): n for s, e, n in histogram.signed()}
