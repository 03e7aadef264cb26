"""Where float64 is refused, watching goes on: our calls are not among those that a mode sees."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import probe_nb as probe
from tests.models import no_faults


class NoFloat64(TorchFunctionMode):
    """Refuse float64 as an NPU does, and count what is called."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls[getattr(func, "__name__", str(func))] += 1
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.dtype == torch.float64:
            raise TypeError("no float64")
        return out


def trained(*, watched: bool):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))
    x = torch.randn(3, 4)
    watch = probe.watch(model, live=False) if watched else None
    with no_faults(), NoFloat64() as mode:
        run = watch.__enter__() if watch else None
        mode.calls.clear()
        model(x).sum().backward()
        calls = dict(mode.calls)
        if watch:
            watch.__exit__(None, None, None)
    return calls, run, [p.grad for p in model.parameters()]


def test_the_mode_refuses_float64():
    with NoFloat64(), pytest.raises(TypeError, match="no float64"):
        torch.ones(2).double()


def test_a_watch_runs_clean_where_float64_is_refused_and_calls_nothing_that_can_be_seen():
    bare, _, gradients = trained(watched=False)
    watched, run, same = trained(watched=True)
    assert watched == bare
    assert not {"item", "tolist", "cpu", "numpy", "double"} & set(watched)
    assert set(run.df["status"]) == {"ok"}
    assert all(torch.equal(a, b) for a, b in zip(gradients, same, strict=True))
