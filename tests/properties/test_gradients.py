"""The gradients in a run are those that `torch.autograd.grad` finds, whatever the graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import probe_nb as probe
from tests.models import no_faults
from tests.museum.programs import KINDS, Program, Twin, plan

STATISTICS = ("min", "max", "mean", "std", "l2", "absmax")
WISHES = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 11), st.integers(0, 11)),
    min_size=1,
    max_size=12,
)


def weight(t, place):
    """Return a fixed tensor of the shape of an output, so that its gradient is not constant."""
    return torch.linspace(-1.0, 2.0 + place, t.numel(), dtype=t.dtype).reshape(t.shape)


def observed(model, x):
    """Run forward and backward under the watch; return rows by (module, call, role, leaf)."""
    with no_faults(), probe.watch(model, live=False) as run:
        outputs = model(x)
        loss = sum((t * weight(t, place)).sum() for place, t in enumerate(outputs))
        if loss.requires_grad:
            loss.backward()
    rows = run.df[run.df["direction"] == "backward"]
    keys = zip(rows["module"], rows["call"], rows["role"], rows["leaf"], strict=True)
    found = dict(zip(keys, rows.to_dict("records"), strict=True))
    assert len(found) == len(rows), "two rows for one gradient"
    return found


def expected(model, x):
    """Return the true gradients by the same keys, each with whether it may be unreadable."""
    twin = Twin(model, x)
    shaky = model.todo.shaky
    wanted = {("", 0, "grad_input", "0"): (x, any(map(shaky, twin.results)))}
    parameters = {f"parts.linear.{n}": p for n, p in model.parts["linear"].named_parameters()}
    for name, parameter in parameters.items():
        module, leaf = name.rsplit(".", 1)
        wanted[(module, 0, "param_grad", leaf)] = (parameter, False)
    for call in twin.calls:
        module = f"parts.{call.kind}"
        wanted[(module, call.number, "grad_output", "0")] = (call.output, shaky(call.slot))
        for leaf, (t, slot) in call.inputs.items():
            uncertain = shaky(slot) or shaky(call.slot)
            wanted[(module, call.number, "grad_input", leaf)] = (t, uncertain)
    outputs = [twin.outputs[slot.thing] for slot in twin.results]
    loss = sum((t * weight(t, place)).sum() for place, t in enumerate(outputs))
    gradients = torch.autograd.grad(loss, [t for t, _ in wanted.values()], allow_unused=True)
    return {
        key: (g.numpy(), may_be_stale)
        for (key, (_, may_be_stale)), g in zip(wanted.items(), gradients, strict=True)
        if g is not None
    }


def assert_same(row, truth):
    """Compare a row with numbers computed by numpy in float64."""
    size = np.abs(truth).max()
    assert row["numel"] == truth.size
    assert row["zero_count"] == (truth == 0).sum()
    values = (truth.min(), truth.max(), truth.mean(), truth.std(), np.linalg.norm(truth), size)
    for name, value in zip(STATISTICS, values, strict=True):
        assert row[name] == pytest.approx(value, rel=1e-5, abs=1e-6 * size), name


@settings(max_examples=500, report_multiple_bugs=False)
@example([("twice", 0, 0), ("head", 1, 0), ("relu_", 2, 0), ("linear", 3, 0)])
@example([("twice", 0, 0), ("head", 1, 0), ("scale_", 1, 0), ("mix", 2, 2), ("gate", 2, 4)])
@example([("linear", 0, 0), ("addto", 1, 1), ("mix", 1, 1), ("iadd", 3, 1), ("identity", 4, 0)])
@given(WISHES)
def test_gradients_of_random_programs_are_those_of_autograd(wishes):
    torch.manual_seed(0)
    model = Program(plan(wishes))
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    found, truth = observed(model, x), expected(model, x)
    outputs = [model.todo.slots[-1], model.todo.slots[len(model.todo.slots) // 2]]
    if any(slot.base == 0 for slot in outputs):
        truth.pop(("", 0, "grad_input", "0"))  # the root hands its input on
    for key, (gradient, may_be_stale) in truth.items():
        assert key in found, f"{key} has no row"
        if found[key]["status"] == "ok":
            assert_same(found[key], gradient)
        else:
            assert (found[key]["status"], may_be_stale) == ("stale_view", True), key
    invented = {k for k, r in found.items() if r["status"] == "ok" and k[0]} - truth.keys()
    assert invented == set()
