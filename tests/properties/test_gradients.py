"""The gradients in a run are those that `torch.autograd.grad` finds, whatever the graph."""

from __future__ import annotations

import os
from collections import Counter

import numpy as np
import pytest
import torch

import probe_nb as probe
from tests.models import no_faults
from tests.museum.machines import Program
from tests.museum.programs import FORMS, KINDS, TRAPS, Op, plan, sweep
from tests.museum.pure import Pure

STATISTICS = ("min", "max", "mean", "std", "l2", "absmax")
ALLOWED = {
    "exact": {"ok"},
    "stale": {"ok", "stale_view"},
    "passthrough": {"passthrough"},
    "passthrough or none": {"passthrough", "none"},
}
EXAMPLES = int(os.environ.get("PROBE_NB_EXAMPLES", "240"))


def weighted(outputs):
    """Return a loss in which no gradient is constant, None if it would have none."""
    parts = [
        (t * torch.linspace(-1.0, 2.0 + place, t.numel(), dtype=t.dtype).reshape(t.shape)).sum()
        for place, t in enumerate(outputs)
        if t.requires_grad
    ]
    return sum(parts) if parts else None


def observed(model, x, z):
    """Run forward and backward under the watch; return rows by (module, call, role, leaf)."""
    with no_faults(), probe.watch(model, live=False) as run:
        loss = weighted(model(x, z=z))
        if loss is not None:
            loss.backward()
    rows = run.df[run.df["direction"] == "backward"]
    keys = zip(rows["module"], rows["call"], rows["role"], rows["leaf"], strict=True)
    found = dict(zip(keys, rows.to_dict("records"), strict=True))
    assert len(found) == len(rows), "two rows for one gradient"
    return found


def expected(model, x, z):
    """Return the true gradients by the same keys, each with what its row must say of it."""
    pure = Pure(model, x, z)
    handed_on = any(thing is pure.x for thing in pure.results)
    wanted = {("", 0, "grad_input", "0"): ([x], "passthrough" if handed_on else "exact")}
    for place, thing in enumerate(pure.results):
        verdict = "passthrough" if thing is pure.x else "exact" if thing.fresh else "stale"
        wanted["", 0, "grad_output", str(place)] = ([thing.peek()], verdict)
    for name, parameter in model.named_parameters():
        module, leaf = name.rsplit(".", 1)
        wanted[module, 0, "param_grad", leaf] = ([parameter], "exact")
    for call in pure.calls:
        module = f"parts.{call.kind}"
        for leaf, (t, verdict) in call.outputs.items():
            wanted[module, call.number, "grad_output", leaf] = ([t], verdict)
        for leaf, (copies, verdict) in call.inputs.items():
            wanted[module, call.number, "grad_input", leaf] = (copies, verdict)
    loss = weighted([thing.peek() for thing in pure.results])
    if loss is None:
        return {}
    return {key: (g, v) for key, (ts, v) in wanted.items() if (g := _sum(loss, ts)) is not None}


def _sum(loss, tensors):
    """Return the summed gradient of a loss for tensors that together stand for one."""
    tensors = [t for t in tensors if t.requires_grad]
    if not tensors:
        return None
    found = torch.autograd.grad(loss, tensors, retain_graph=True, allow_unused=True)
    parts = [g.numpy() for g in found if g is not None]
    return sum(parts) if parts else None


def assert_same(row, truth):
    """Compare a row with numbers computed by numpy in float64."""
    size = np.abs(truth).max()
    assert row["numel"] == truth.size
    assert row["zero_count"] == (truth == 0).sum()
    values = (truth.min(), truth.max(), truth.mean(), truth.std(), np.linalg.norm(truth), size)
    for name, value in zip(STATISTICS, values, strict=True):
        assert row[name] == pytest.approx(value, rel=1e-5, abs=1e-6 * size), name


def examine(wishes):
    """Compare one program with its pure run; return what was drawn and how rows came out."""
    torch.manual_seed(0)
    todo = plan(wishes)
    model = Program(todo)
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    z = torch.randn(4, 3, dtype=torch.float64)
    found, truth = observed(model, x, z.clone()), expected(model, x, z.clone())
    for key, (gradient, verdict) in truth.items():
        status = found[key]["status"] if key in found else "none"
        assert status in ALLOWED[verdict], key
        if status == "ok":
            assert_same(found[key], gradient)
    invented = {k for k, row in found.items() if row["status"] == "ok"} - truth.keys()
    assert invented == set()
    return todo.seen, Counter(row["status"] for row in found.values())


def test_gradients_of_random_programs_are_those_of_autograd():
    drawn: Counter[str] = Counter()
    came_out: Counter[str] = Counter()

    def note(wishes):
        seen, status = examine(wishes)
        drawn.update(seen)
        came_out.update(status)

    sweep(note, EXAMPLES)
    least = EXAMPLES // 20  # of each kind and of each trap, or the sweep has become empty
    every = {*KINDS, *TRAPS, *(f"block as {form}" for form in FORMS)}
    assert {name: drawn[name] for name in every if drawn[name] < least} == {}
    assert came_out["ok"] > EXAMPLES * 4
    assert came_out["stale_view"] < came_out["ok"] / 10


@pytest.mark.parametrize(
    "wishes",
    [
        [Op("twice"), Op("head", 2), Op("relu_", 3), Op("linear", 4)],
        [Op("twice"), Op("head", 2), Op("scale_", 2), Op("mix", 3, 3), Op("gate", 3, 5)],
        [Op("linear"), Op("addto", 2, 2), Op("mix", 2, 2), Op("iadd", 3, 2), Op("identity", 3)],
        [Op("head", 1), Op("head"), Op("twice", 1), Op("block", 3, 2, (Op("addto", 1, 0),))],
        [Op("block", grad=False, body=(Op("as_model"),)), Op("loose", 2)],
    ],
    ids=["written view", "stale view", "one twice", "written argument", "view without grad"],
)
def test_gradients_of_this_program_are_those_of_autograd(wishes):
    examine(wishes)
