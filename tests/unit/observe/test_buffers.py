"""Buffers are read when they may have changed, and only then."""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter

import pytest
import torch
from torch import nn

import probe_nb as probe
from tests.models import no_faults


class Masked(nn.Module):
    """A large table that never changes, and normalisation whose means do."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("mask", torch.full((64, 64), -torch.inf).triu(1))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("nothing", None)

    def forward(self, x):
        return self.norm(self.lin(x)) + self.mask[-1, 0]


def x():
    return torch.linspace(-1.0, 2.0, 12).reshape(4, 3)


def watching(model, **options):
    return probe.watch(model, live=False, **options)


def steps_of(run, leaf):
    return run.frame(role="buffer", leaf=leaf)["step"].tolist()


def train(model, optimizer, times=1):
    for _ in range(times):
        model(x()).sum().backward()
        optimizer.step()


def test_a_table_that_never_changes_is_read_once_and_running_means_in_every_step():
    torch.manual_seed(0)
    model = Masked()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    means = []
    with no_faults(), watching(model, optimizer=optimizer) as run:
        for _ in range(3):
            means.append(model.norm.running_mean.double().mean().item())
            train(model, optimizer)
    assert steps_of(run, "mask") == [0]
    assert steps_of(run, "running_mean") == [0, 1, 2]
    assert steps_of(run, "running_var") == [0, 1, 2]
    assert run.frame(role="buffer", leaf="running_mean")["mean"].tolist() == pytest.approx(means)
    assert len(set(means)) == 3
    (mask,) = run.frame(role="buffer", leaf="mask").to_dict("records")
    assert (mask["direction"], mask["module"], mask["numel"]) == ("forward", "", 4096)
    assert mask["neginf_count"] == 64 * 63 // 2
    leaves = set(run.frame(role="buffer")["leaf"])
    assert leaves == {"mask", "running_mean", "running_var"}


def test_a_nan_in_a_running_mean_shows_in_the_step_after_the_batch_that_brought_it():
    model = Masked()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with no_faults(), watching(model, optimizer=optimizer) as run:
        for step in range(3):
            data = x()
            data[0, 0] = torch.nan if step == 1 else 0.0
            model(data).sum().backward()
            optimizer.step()
    bad = run.frame(role="buffer", leaf="running_mean")
    assert bad["nan_count"].tolist() == [0, 0, 3]


def test_evaluation_reads_what_training_wrote_last_and_then_nothing_more():
    model = Masked()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with no_faults(), watching(model, optimizer=optimizer) as run:
        train(model, optimizer, 2)
        model.eval()
        train(model, optimizer, 3)
    assert steps_of(run, "running_mean") == [0, 1, 2]


def test_what_is_written_or_replaced_is_read_again():
    model = Masked().eval()
    with no_faults(), watching(model) as run:
        for step in range(6):
            if step == 1:
                model.mask.zero_()
            if step == 2:
                model.mask[0, 0] = 5.0
            if step == 4:  # twice, so that the second may lie where the first one was
                model.mask = torch.full((64, 64), 1.0)
                model.mask = torch.full((64, 64), 2.0)
            with torch.no_grad():
                model(x())
    rows = run.frame(role="buffer", leaf="mask")
    assert list(zip(rows["step"], rows["max"], strict=True)) == [(0, 0), (1, 0), (2, 5), (4, 2)]


def test_buffers_that_are_replaced_in_each_forward_are_read_in_each_step():
    class Caches(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("cache", torch.zeros(64))

        def forward(self, n):
            for value in (n, n + 0.5):  # each takes the memory that the one before gave up
                self.cache = torch.full((64,), value)
            return self.cache.sum()

    model = Caches()
    with no_faults(), watching(model) as run:
        for n in range(20):
            model(float(n))
    rows = run.frame(role="buffer", leaf="cache")
    assert rows["step"].tolist() == list(range(20))
    assert rows["max"].tolist() == [0.0, *(n + 0.5 for n in range(19))]


def test_a_shared_buffer_is_read_under_its_first_owner_and_others_not_at_all():
    model = nn.ModuleDict({name: nn.BatchNorm1d(3) for name in ("a", "b", "c")})
    model["b"].running_mean = model["a"].running_mean
    model["c"].requires_grad_(False)
    model["seq"] = nn.Sequential(model["a"], model["b"], model["c"])
    seq = model["seq"]
    with no_faults(), watching(seq, select="0,1", roles="buffer") as run:
        seq(x())
    assert set(run.df["role"]) == {"buffer"}
    assert list(zip(run.df["module"], run.df["leaf"], strict=True)) == [
        ("0", "running_mean"), ("0", "running_var"), ("1", "running_var"),
    ]  # fmt: skip


def test_without_the_role_no_buffer_is_read():
    model = Masked().eval()
    with no_faults(), watching(model, roles="input,output") as run:
        model(x())
    assert "buffer" not in set(run.df["role"])


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_buffers_made_in_inference_mode_or_without_memory_are_no_obstacle(device):
    with torch.inference_mode():
        model = Masked().to(device).eval()
        with no_faults(), watching(model) as run:
            for _ in range(2):
                model(x().to(device))
    status = {"cpu": "ok", "meta": "meta"}[device]
    assert set(run.frame(role="buffer")["status"]) == {status}
    assert 0 in set(steps_of(run, "mask"))


def test_a_lazy_module_has_its_buffers_read_before_its_first_forward_writes_them():
    model = nn.Sequential(nn.LazyBatchNorm1d())
    with no_faults(), watching(model) as run:
        model(x())
    rows = run.frame(role="buffer", leaf="running_var")
    assert rows["max"].tolist() == [1.0]


def test_training_with_buffers_watched_leaves_the_same_bits():
    def trained(*, watched):
        torch.manual_seed(0)
        model = Masked()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if watched:
            with no_faults(), watching(model, optimizer=optimizer):
                train(model, optimizer, 3)
        else:
            train(model, optimizer, 3)
        return [(t, t._version) for t in (*model.parameters(), *model.buffers())]

    for (bare, before), (seen, after) in zip(
        trained(watched=False), trained(watched=True), strict=True
    ):
        assert torch.equal(bare, seen)
        assert before == after


class Codebook(nn.Module):
    """Writes its buffer past autograd, as vector quantisation does."""

    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.zeros(2))
        self.lin = nn.Linear(3, 2)

    def forward(self, x):
        self.codes.data.add_(1.0)
        return self.lin(x) + self.codes


def test_what_writes_through_data_is_read_in_every_step_where_the_user_says_so():
    model = Codebook()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with no_faults(), watching(model, optimizer=optimizer, reduce_once=False) as run:
        train(model, optimizer, 3)
    assert run.frame(role="buffer", leaf="codes")["max"].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("moment", ["freed", "to be held"])
def test_a_ctrl_c_while_buffers_are_read_frees_no_reference_twice(monkeypatch, moment):
    held, twice, ctrl_c = Counter(), [], iter([False, False, False, True, False, True])
    free, hold = torch.UntypedStorage._free_weak_ref, torch.UntypedStorage._weak_ref

    def freeing(reference):
        if held[reference]:  # to free one that is free is undefined
            held[reference] -= 1
            free(reference)
        else:
            twice.append(reference)
        interrupt("freed")

    def holding(storage):
        interrupt("to be held")
        reference = hold(storage)
        held[reference] += 1
        return reference

    def interrupt(now):
        inside = any(frame.function == "_is_news" for frame in inspect.stack())
        if inside and now == moment and next(ctrl_c, False):
            raise KeyboardInterrupt

    monkeypatch.setattr(torch.UntypedStorage, "_free_weak_ref", staticmethod(freeing))
    monkeypatch.setattr(torch.UntypedStorage, "_weak_ref", holding)
    model = nn.BatchNorm1d(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, optimizer=optimizer):
        for _ in range(6):
            with contextlib.suppress(KeyboardInterrupt):
                train(model, optimizer)
    assert next(ctrl_c, None) is None
    assert twice == []
    assert held.total() == 0
