"""The ways by which a tensor becomes numbers, in one form that the oracle can judge."""

from __future__ import annotations

import functools

import pytest
import torch

from probe_nb.stats.kernels import eager, host
from probe_nb.stats.results import Drained, Results
from probe_nb.stats.summary import Reducer
from probe_nb.terms import COUNTS, STATISTICS
from tests import oracle


def by_host(t: torch.Tensor):
    return named(host.summarize(t, host.Scratch()))


def by_eager(t: torch.Tensor):
    """Measure as on a device that has float64."""
    return _on_device(t, float64=True)


def by_npu(t: torch.Tensor):
    """Measure as on a device without float64."""
    return _on_device(t, float64=False)


def _on_device(t: torch.Tensor, *, float64: bool):
    rows = eager.summarize(t, float64=float64)
    words = torch.stack(rows.words)
    assert words.dtype == torch.int32
    return named(eager.decode(words.numpy(), rows.repeats, rows.kind))


def by_compiled(t: torch.Tensor):
    """Measure by the compiled loops; None for a tensor that they leave to the host's kernel."""
    kernel = compiled()
    if kernel is None:
        pytest.fail("numba is not installed: the extra `test` brings it")
    results = Results()
    row = kernel.Kernel(results).reduce(t)
    return None if row < 0 else rows(results.taken())[row]


@functools.cache
def compiled():
    """Return the kernel of compiled loops once it is ready, or None where there is none."""
    try:
        from probe_nb.stats.kernels import cpu
    except ImportError:
        return None
    thread = cpu.warm()
    if thread is not None:
        thread.join()
    return cpu if cpu.ready() else None


def by_reducer(t: torch.Tensor):
    reducer = Reducer()
    seen = reducer.see(t, once=True)
    assert seen == (0, "ok", False)
    return drained(reducer)[0]


def drained(reducer: Reducer):
    """Drain a reducer and return (statistics, counts, bins) for each of its results."""
    results, errors = reducer.drain()
    assert not errors
    return rows(results)


def rows(results: Drained):
    """Return (statistics, counts, bins) for each row that was drained."""
    numbers = []
    for row, (size, start) in enumerate(zip(results.sizes, results.starts, strict=True)):
        statistics = dict(zip(STATISTICS, results.statistics[row].tolist(), strict=True))
        counts = dict(zip(COUNTS, results.counts[row].tolist(), strict=True))
        cut = slice(start, start + size)
        assert results.values[cut].all(), "an empty bin is listed"
        bins = oracle.signed_bins(results.bins[cut], results.values[cut])
        numbers.append((statistics, counts, bins))
    assert results.sizes.sum() == len(results.bins) == len(results.values)
    return numbers


def named(numbers):
    """Return (statistics, counts, bins) of a kernel's `Numbers`."""
    statistics = dict(zip(STATISTICS, numbers.statistics(), strict=True))
    counts = dict(zip(COUNTS, numbers.counts(), strict=True))
    filled = numbers.bins.nonzero()[0]
    return statistics, counts, oracle.signed_bins(filled, numbers.bins[filled])


UNKNOWN_TO_NPUS = (torch.float64, torch.complex64, torch.complex128, torch.uint64)


def faults(measure, t: torch.Tensor) -> list[str]:
    """Return where a way of measuring breaks the bounds on this tensor."""
    if measure is by_npu and t.dtype in UNKNOWN_TO_NPUS:
        return []
    measured = measure(t)
    return [] if measured is None else oracle.faults(oracle.expected(t), *measured)
