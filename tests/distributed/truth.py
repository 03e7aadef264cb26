"""What rows of distributed trainings must hold, computed in this process and with the oracle."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from probe_nb.terms import COUNTS, STATISTICS
from tests import oracle
from tests.distributed.programs import MICRO_STEPS, STEPS, Program, Seen, loss_of

PREFIXES = ("_fsdp_wrapped_module.", "module.")
MOMENTS = [(step, micro_step) for step in range(STEPS) for micro_step in range(MICRO_STEPS)]


def plain(name: str) -> str:
    """Return the name of a parameter without what wrappers put into it."""
    for prefix in PREFIXES:
        name = name.replace(prefix, "")
    return name


def frame(seen: Seen, *, stepping: bool = False, **chosen: Any) -> pd.DataFrame:
    """Return rows of forward and backward, or with `stepping` those of optimizer steps."""
    rows = pd.DataFrame(seen.rows)
    rows = rows[(rows["direction"] == "optimizer") == stepping]
    for column, value in chosen.items():
        rows = rows[rows[column] == value]
    return rows


def unchanged(bare: Seen, watched: Seen) -> None:
    """Hold that two trainings are the same to the bit."""
    assert len(bare.losses) == len(watched.losses) == STEPS * MICRO_STEPS
    for a, b in zip(bare.losses, watched.losses, strict=True):
        assert torch.equal(a, b)
    for which in ("states", "gradients"):
        for a, b in zip(getattr(bare, which), getattr(watched, which), strict=True):
            assert a.keys() == b.keys()
            for name in a:
                assert (a[name] is None) == (b[name] is None), (which, name)
                assert a[name] is None or torch.equal(a[name], b[name]), (which, name)
    assert not torch.equal(bare.losses[0], bare.losses[2]), "nothing was trained"


def same_numbers(row: dict[str, Any], t: Tensor) -> None:
    """Hold that a row has the numbers of a tensor."""
    at = (row["module"], row["role"], row["leaf"], row["step"], row["micro_step"])
    assert row["shape"] == tuple(t.shape) or list(row["shape"]) == list(t.shape), at
    if not t.numel():
        assert row["status"] == "empty", at
        return
    want = oracle.expected(t)
    numbers = {name: float(row[name]) for name in STATISTICS}
    counts = {name: int(row[name]) for name in COUNTS}
    assert oracle.faults(want, numbers, counts, want.bins) == [], at


def holds(seen: Seen, role: str, suffix: str, wanted: dict[tuple[int, int, str], Tensor]) -> None:
    """Hold that the rows of a role whose leaf ends so are these, by step, micro step and name."""
    found = {}
    for row in frame(seen, role=role).to_dict("records"):
        name = f"{row['module']}.{row['leaf']}" if row["module"] else row["leaf"]
        parts = name.split(".")
        tail = [part for part in parts if part in ("grad", "shard", "partial")]
        if "".join(f".{part}" for part in tail) == suffix:
            place = (row["step"], row["micro_step"], name.removesuffix(suffix))
            assert place not in found, f"twice: {place}"
            found[place] = row
    assert found.keys() == wanted.keys()
    for place, t in wanted.items():
        same_numbers(found[place], t)


def added(program: Program, seen: Seen, rank: int) -> dict[tuple[int, int, str], Tensor]:
    """Return what each backward of a rank adds, from a model that is wrapped in nothing."""
    found = {}
    for (step, micro_step), state in zip(MOMENTS, seen.states, strict=False):
        model = program.model()
        model.load_state_dict({plain(name): t for name, t in state.items()}, strict=False)
        output = model(program.data(rank, step, micro_step), **program.feed(rank))
        names, parameters = zip(*model.named_parameters(), strict=True)
        grads = torch.autograd.grad(loss_of(output), parameters, allow_unused=True)
        for name, g in zip(names, grads, strict=True):
            if g is not None:
                found[step, micro_step, name] = g
    return found


def close(a: dict[Any, Tensor], b: dict[Any, Tensor]) -> None:
    assert a.keys() == b.keys()
    for place, t in a.items():
        assert torch.allclose(t, b[place], rtol=1e-4, atol=1e-5), place


def held(seen: Seen) -> dict[tuple[int, int, str], Tensor]:
    """Return `.grad` after each backward as the process itself saw it."""
    pairs = zip(MOMENTS, seen.gradients, strict=True)
    return {
        (*moment, plain(name)): g
        for moment, grads in pairs
        for name, g in grads.items()
        if g is not None
    }


def moved(seen: Seen) -> None:
    """Hold that what each step added to the parameters is what the process itself saw."""
    rows = frame(seen, stepping=True, role="update").to_dict("records")
    assert {row["step"] for row in rows} == set(range(STEPS))
    found = set()
    for row in rows:
        step, leaf = row["step"], row["leaf"].removesuffix(".shard")
        before, after = (
            {plain(name): t for name, t in seen.states[at * MICRO_STEPS].items()}
            for at in (step, step + 1)
        )
        name = f"{row['module']}.{leaf}" if row["module"] else leaf
        same_numbers(row, after[name] - before[name])
        found.add(name)
    changed = {
        plain(name)
        for name, t in seen.states[0].items()
        if t.is_floating_point() and "running" not in name
        if not torch.equal(t, seen.states[-1][name])
    }
    assert changed <= found


def values(seen: Seen, model: nn.Module) -> dict[tuple[int, int, str], Tensor]:
    """Return the parameters at the begin of each step as the process itself saw them."""
    names = {name for name, _ in model.named_parameters()} | {"_flat_param", "block._flat_param"}
    return {
        (step, 0, plain(name)): t
        for step in range(STEPS)
        for name, t in seen.states[step * MICRO_STEPS].items()
        if plain(name) in names
    }


def sites(model: nn.Module) -> set[tuple[str, str]]:
    """Return (path, class) of every module, as `named_modules` of the bare model has them."""
    return {(name, type(module).__name__) for name, module in model.named_modules()}
