"""What holds of every comparison: of a run with itself, and of two runs either way."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import probe_nb as probe
from probe_nb.exponents import Histogram
from tests import records

MODULES = ("", "a", "a.b", "a.b.c", "d", "module.e")
ROLES = ("input", "output", "param", "buffer", "grad_output", "grad_input", "param_grad")
VALUES = st.lists(
    st.floats(width=32) | st.sampled_from([0.0, math.nan, math.inf, -math.inf]), max_size=12
)


def measured(values, **where):
    """Return the row of some values, by numpy in float64."""
    x = np.array(values, np.float64)
    good = x[np.isfinite(x)]
    row = {
        **where,
        "numel": len(x),
        "shape": (len(x),),
        "nan_count": int(np.isnan(x).sum()),
        "posinf_count": int(np.isposinf(x).sum()),
        "neginf_count": int(np.isneginf(x).sum()),
        "zero_count": int((x == 0).sum()),
    }
    if not len(good):
        counts = {name: row[name] for name in row if name.endswith("_count")}
        return {**row, "status": "no_finite" if len(x) else "empty", **counts}
    whole = Histogram.of(x)
    with np.errstate(over="ignore"):
        l2 = float(np.sqrt((good**2).sum()))
    numbers = {
        "min": good.min(),
        "max": good.max(),
        "mean": good.mean(),
        "std": good.std(),
        "l2": l2,
        "absmax": np.abs(good).max(),
    }
    return {**row, **numbers, "histogram": Histogram(whole.bins, whole.counts)}


@st.composite
def runs(draw, values=VALUES):
    rows = []
    for number in range(draw(st.integers(0, 15))):
        where = {
            "module": draw(st.sampled_from(MODULES)),
            "role": draw(st.sampled_from(ROLES)),
            "leaf": draw(st.sampled_from(["0", "weight", "x.bias"])),
            "step": draw(st.integers(0, 2)),
            "call": draw(st.integers(0, 1)),
            "rank": draw(st.sampled_from([-1, 0, 1])),
            "dtype": draw(st.sampled_from(["float32", "bfloat16", "float64", "int64"])),
            "order": number,
        }
        rows.append(measured(draw(values), **where))
    return records.run(rows)


@settings(max_examples=60, deadline=None)
@given(runs())
def test_a_run_is_the_same_as_itself(run):
    found = probe.compare(run, run)
    assert set(found.df["verdict"].astype(str)) <= {"same"}
    assert len(found) == len(run)
    assert found.divergences == []
    assert found.fed_same.same is not False


@settings(max_examples=60, deadline=None)
@given(runs(), runs())
def test_verdicts_and_differences_are_the_same_either_way(one, other):
    there, back = (probe.compare(*pair).df for pair in ((one, other), (other, one)))
    swap = {"only_in_baseline": "only_in_candidate", "only_in_candidate": "only_in_baseline"}
    assert len(there) == len(back)

    def listed(frame, first, second):
        rows = frame[[f"row_{first}", f"row_{second}", "verdict", "difference"]].astype(object)
        rows = rows.where(rows.notna(), None)
        return sorted((tuple(row) for row in rows.to_numpy().tolist()), key=repr)

    turned = back.assign(verdict=back["verdict"].astype(str).replace(swap))
    assert listed(
        there.assign(verdict=there["verdict"].astype(str)), "baseline", "candidate"
    ) == listed(turned, "candidate", "baseline")


@settings(max_examples=60, deadline=None)
@given(runs(), runs())
def test_every_row_of_both_runs_is_there_once(one, other):
    frame = probe.compare(one, other).df
    assert sorted(frame["row_baseline"].dropna()) == list(range(len(one)))
    assert sorted(frame["row_candidate"].dropna()) == list(range(len(other)))
    alone = frame["row_baseline"].isna() | frame["row_candidate"].isna()
    assert (frame["verdict"].astype(str).str.startswith("only_in") == alone).all()
