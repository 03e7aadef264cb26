"""The three ways by which a tensor becomes numbers, in one form that the oracle can judge."""

from __future__ import annotations

import torch

from probe_nb.stats.kernels import eager, host
from probe_nb.stats.summary import Reducer
from probe_nb.terms import COUNTS, STATISTICS
from tests import oracle


def by_host(t: torch.Tensor):
    return named(host.summarize(t, host.Scratch()))


def by_eager(t: torch.Tensor):
    rows, repeats = eager.summarize(t)
    return named(eager.decode(torch.stack(rows).numpy(), repeats))


def by_reducer(t: torch.Tensor):
    reducer = Reducer()
    seen = reducer.see(t, once=True)
    assert seen == (0, "ok", False)
    return drained(reducer)[0]


def drained(reducer: Reducer):
    """Drain a reducer and return (statistics, counts, bins) for each of its results."""
    results, errors = reducer.drain()
    assert not errors
    numbers, start = [], 0
    for row, size in enumerate(results.sizes.tolist()):
        statistics = dict(zip(STATISTICS, results.statistics[row].tolist(), strict=True))
        counts = dict(zip(COUNTS, results.counts[row].tolist(), strict=True))
        cut = slice(start, start + size)
        bins = oracle.signed_bins(results.bins[cut], results.values[cut])
        numbers.append((statistics, counts, bins))
        start += size
    assert start == len(results.bins) == len(results.values)
    return numbers


def named(numbers):
    """Return (statistics, counts, bins) of a kernel's `Numbers`."""
    statistics = dict(zip(STATISTICS, numbers.statistics(), strict=True))
    counts = dict(zip(COUNTS, numbers.counts(), strict=True))
    filled = numbers.bins.nonzero()[0]
    return statistics, counts, oracle.signed_bins(filled, numbers.bins[filled])


def faults(measure, t: torch.Tensor) -> list[str]:
    """Return where a way of measuring breaks the bounds on this tensor.

    The modulus of a complex number is rounded to the precision it is computed in: on a device
    that is the precision of its parts.
    """
    rounded = 2.0**-22 if t.is_complex() and measure is by_eager else 0.0
    return oracle.faults(oracle.expected(t), *measure(t), rounded=rounded)
