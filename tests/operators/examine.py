"""One operator with and without a watch: the same bits, and rows that hold the truth."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import probe_nb as probe
from probe_nb.errors import ProbeWarning
from probe_nb.terms import COUNTS, STATISTICS
from tests import oracle


class Idle(TorchFunctionMode):
    """Does nothing but be there: any mode switches torch's fused attention off."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


UNINITIALISED = frozenset(
    ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
)
"""Operators whose results are whatever the memory held."""

WITHOUT_GRADIENTS = frozenset(("to_sparse", "linalg.eig"))
"""Operators that take no random gradients: a sparse result, eigenvectors up to a phase."""


@dataclass
class Report:
    """What an examination found."""

    name: str
    apis: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    checked: int = 0
    """Rows whose numbers were compared."""
    told: list[str] = field(default_factory=list)
    """Rows without numbers, and why."""


@dataclass
class Once:
    """What one run of an operator was given, and what it gave."""

    given: list[Tensor]
    """As it is after the call."""
    before: list[Any]
    """Copies of what was given, made before the call."""
    results: list[Tensor]
    gradients: list[Tensor | None]
    """By what was given."""
    arriving: list[Tensor | None]
    """By result."""
    generator: Any


@functools.cache
def table() -> dict[str, Any]:
    """Return the operators by name; loading them takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    found = {}
    for op in op_db:
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        if torch.float32 in op.supported_dtypes("cpu") and not name.startswith("jiterator"):
            found[name] = op
    return found


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested values."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors(each)


def written(t: Tensor) -> Tensor:
    """Return zeros of which torch keeps no more than their number as zeros."""
    return torch.zeros(t.shape, dtype=t.dtype) if t._is_zerotensor() else t


def bits(t: Tensor | None) -> Any:
    """Return exact bytes, so that NaN equals NaN."""
    if t is None:
        return None
    t = t.detach()
    if t.layout is not torch.strided:
        return (str(t.layout), bits(t.to_dense()))
    raw = written(t).resolve_conj().resolve_neg().contiguous().reshape(-1)
    return (t.dtype, tuple(t.shape), t.stride(), bytes(raw.view(torch.uint8).numpy()))


def once(op: Any, guard: Any) -> Once:
    """Run an operator on its first sample, forward and backward, under a guard."""
    torch.manual_seed(0)
    samples = op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)
    sample = next(iter(samples))
    given = list(tensors([sample.input, sample.args, sample.kwargs]))
    before = [t.detach().clone() for t in given]
    torch.manual_seed(1)
    with guard:
        results = list(tensors(op.op(sample.input, *sample.args, **sample.kwargs)))
        wanted = [t for t in results if t.requires_grad]
        asked = [t for t in given if t.requires_grad]
        found: dict[int, Tensor | None] = {}
        arriving: dict[int, Tensor | None] = {}
        if wanted and asked and op.name not in WITHOUT_GRADIENTS:
            with torch._C.DisableTorchFunction():
                cotangents = [torch.randn_like(t) for t in wanted]
            arriving = dict(zip(map(id, wanted), cotangents, strict=True))
            gradients = torch.autograd.grad(wanted, asked, cotangents, allow_unused=True)
            found = dict(zip(map(id, asked), gradients, strict=True))
    return Once(
        given,
        before,
        results,
        [found.get(id(t)) for t in given],
        [arriving.get(id(t)) for t in results],
        torch.get_rng_state(),
    )


def examine(name: str) -> Report:
    """Examine one operator."""
    op, report = table()[name], Report(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            bare = once(op, Idle())
        except Exception as error:
            report.faults.append(f"cannot run: {error!r}")
            return report
        watch = probe.watch(level="api", apis="all", live=False)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ProbeWarning)
            seen = once(op, watch)
        report.faults += [str(w.message) for w in caught if w.category is ProbeWarning]
    _compare(report, bare, seen)
    _read(report, watch._session.run, seen)
    return report


def _compare(report: Report, bare: Once, seen: Once) -> None:
    for what in ("given", "results", "gradients", "arriving"):
        if what == "results" and report.name in UNINITIALISED:
            continue
        if list(map(bits, getattr(bare, what))) != list(map(bits, getattr(seen, what))):
            report.faults.append(f"{what} differ")
    if not torch.equal(bare.generator, seen.generator):
        report.faults.append("random numbers were drawn")


def _read(report: Report, run: probe.Run, seen: Once) -> None:
    """Compare rows with what the calls were given and gave, where there was one call alone."""
    rows = run.df
    if (rows["status"] == "failed").any():
        report.faults.append("a row failed")
    made = sorted(set(zip(rows["api"].astype(str), rows["call"], strict=True)))
    report.apis = sorted({api for api, _ in made})
    if len(made) != 1:
        return
    truth = {
        "input": seen.before,
        "output": seen.results,
        "grad_input": [g for g in seen.gradients if g is not None],
        "grad_output": [g for g in seen.arriving if g is not None],
    }
    for role, expected in truth.items():
        got = rows[rows["role"] == role]
        wanted = [t for t in expected if _numbers(t)]
        _match(report, role, got, wanted)


def _numbers(t: Tensor) -> bool:
    return t.layout is torch.strided and t.numel() > 0 and bool(t.isfinite().any())


def _wrong(want: oracle.Expected, row: dict[str, Any]) -> list[str]:
    statistics = {name: row[name] for name in STATISTICS}
    return oracle.faults(want, statistics, {name: row[name] for name in COUNTS}, want.bins)


def _match(report: Report, role: str, got: Any, wanted: list[Tensor]) -> None:
    """Find for each tensor a row with its numbers, or one that says why it has none."""
    rows = got.to_dict("records")
    told = [r["status"] for r in rows if r["status"] != "ok"]
    rows = [r for r in rows if r["status"] == "ok"]
    for t in wanted:
        want = oracle.expected(written(t))
        place = next((n for n, row in enumerate(rows) if not _wrong(want, row)), None)
        if place is not None:
            report.checked += 1
        elif told:
            report.told.append(f"{role}: {told.pop()}")
        else:
            near = _wrong(want, rows[0]) if rows else "no row"
            report.faults.append(f"{role} {tuple(t.shape)}: {near}")
