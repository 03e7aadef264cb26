"""Tensors of classes of their own: no class sees an operator of ours, and no number is a mixture."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, distribute_tensor
from torch.testing._internal.two_tensor import TwoTensor

import probe_nb as probe
from tests.models import no_faults


class Noisy(torch.Tensor):
    """Takes every operator itself, and draws a random number each time."""

    seen = 0

    @staticmethod
    def __new__(cls, elem):
        return torch.Tensor._make_wrapper_subclass(cls, elem.shape, dtype=elem.dtype)

    def __init__(self, elem):
        self.elem = elem

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.seen += 1
        torch.rand(1)
        plain = [a.elem if isinstance(a, Noisy) else a for a in args]
        return cls(func(*plain, **(kwargs or {})))


class Rude(torch.Tensor):
    """Is what it was, but for methods that raise."""

    def detach(self):
        raise ValueError

    def numel(self):
        raise ValueError


def statuses(t):
    with no_faults(), probe.watch(model := nn.Identity(), roles="input", live=False) as run:
        model(t)
    return run.df


def test_a_class_that_takes_operators_sees_none_of_ours():
    t = Noisy(torch.ones(3))
    Noisy.seen, before = 0, torch.get_rng_state()
    rows = statuses(t)
    assert Noisy.seen == 0
    assert torch.equal(torch.get_rng_state(), before)
    assert (rows["status"].item(), rows["shape"].item()) == ("unsupported", (3,))


def test_of_a_tensor_that_is_two_no_number_is_taken_from_either():
    rows = statuses(TwoTensor(torch.ones(4), torch.full((4,), 1024.0)))
    assert rows["status"].item() == "unsupported"
    assert rows["max"].isna().all()


def test_a_class_that_changes_methods_only_is_measured_without_them():
    rows = statuses(torch.tensor([1.0, -4.0]).as_subclass(Rude))
    assert (rows["status"].item(), rows["min"].item(), rows["l2"].item()) == ("ok", -4.0, 17**0.5)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_what_torch_has_no_operators_for_is_unsupported(dtype):
    places, values = torch.tensor([[0, 2]]), torch.tensor([2.0, 3.0]).to(dtype)
    t = torch.sparse_coo_tensor(places, values, (4,), check_invariants=True)
    with pytest.raises(NotImplementedError):
        t.coalesce()
    assert statuses(t)["status"].item() == "unsupported"


@pytest.fixture
def mesh(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch puts its own there
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield DeviceMesh("cpu", [0])
    torch.distributed.destroy_process_group()


def test_a_write_into_a_distributed_tensor_is_seen(mesh):
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Identity(), nn.Identity()

        def forward(self, x):
            y = self.a(x) * 1
            y = self.a(y)
            y.mul_(3)  # counted up for the whole, not for the part that is here
            return self.b(y)

    x = distribute_tensor(torch.ones(4), mesh, [Replicate()])
    assert isinstance(x, DTensor)
    with no_faults(), probe.watch(model := Writes(), live=False) as run:
        model(x)
    assert run.frame(module="b")["max"].tolist() == [3.0, 3.0]
