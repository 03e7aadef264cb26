"""Replicas of a model in threads, as `nn.DataParallel` makes and calls them on its devices."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import probe_nb as probe
from tests.models import no_faults

ROWS = 40


class Meets(nn.Module):
    """A linear map that waits for the other replicas in the middle of its forward."""

    def __init__(self, meeting):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Identity())
        self.meeting = [meeting]
        nn.init.constant_(self.body[0].weight, 3.0)

    def forward(self, x):
        self.meeting[0].wait(timeout=200)
        y = self.body(x)
        self.meeting[0].wait(timeout=200)
        return y


def replicate(network, count):
    """Make replicas as `torch.nn.parallel.replicate` does, which wants accelerators."""
    modules = list(network.modules())
    copies = [{m: m._replicate_for_data_parallel() for m in modules} for _ in range(count)]
    for replicas in copies:
        for module, replica in replicas.items():
            for name, child in module._modules.items():
                setattr(replica, name, replicas[child])
            for name, parameter in module._parameters.items():
                setattr(replica, name, None if parameter is None else parameter * 1)
    return [replicas[network] for replicas in copies]


class Parallel(nn.Module):
    """Stands in for `nn.DataParallel`."""

    def __init__(self, module, count):
        super().__init__()
        self.module, self.count = module, count

    def forward(self, x):
        replicas = replicate(self.module, self.count)
        parts, results = x.chunk(self.count), {}

        def work(place, grad):
            with torch.set_grad_enabled(grad):
                results[place] = replicas[place](parts[place])

        grad = torch.is_grad_enabled()
        threads = [threading.Thread(target=work, args=(n, grad)) for n in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return torch.cat([results[n] for n in range(self.count)])


Parallel.__name__, Parallel.__module__ = "DataParallel", nn.DataParallel.__module__


def parallel(count=2):
    return Parallel(Meets(threading.Barrier(count)), count)


def test_each_replica_is_a_call_of_the_module_it_was_made_from():
    model = parallel()
    x = torch.tensor([[1.0], [2.0]], requires_grad=True)
    with no_faults(), probe.watch(model, live=False) as run:
        (model(x) * torch.tensor([[10.0], [20.0]])).sum().backward()
    assert set(run.df["module"]) == {"", "body", "body.0", "body.1"}
    assert len(run.coverage()) == run.coverage()["rows"].notna().sum()
    for module in ("", "body", "body.0"):
        rows = run.df[run.df["module"] == module].astype({"mean": float})
        means = {
            role: rows[rows["role"] == role].set_index("call")["mean"].sort_index()
            for role in ("input", "output", "grad_output", "grad_input")
        }
        assert sorted(means["input"]) == [1, 2]
        assert (means["output"] == 3 * means["input"]).all()
        assert (means["grad_output"] == 10 * means["input"]).all()
        assert (means["grad_input"] == 30 * means["input"]).all()
    assert run.frame(role="param_grad", leaf="weight")["mean"].item() == 1 * 10 + 2 * 20
    assert x.grad.tolist() == [[30.0], [60.0]]


def test_forty_forwards_in_two_threads_pair_every_input_with_its_output():
    model = parallel()
    optimizer = torch.optim.SGD(model.parameters())
    with no_faults(), probe.watch(model, optimizer=optimizer, live=False) as run:
        for n in range(ROWS):
            model(torch.tensor([[2.0 * n], [2.0 * n + 1]]))
    for module in ("", "body.0"):
        rows = run.df[run.df["module"] == module].astype({"mean": float})
        fed = rows[rows["role"] == "input"].set_index("call")["mean"].sort_index()
        gave = rows[rows["role"] == "output"].set_index("call")["mean"].sort_index()
        assert (gave == 3 * fed).all()
        assert sorted(fed) == list(range(2 * ROWS))
    assert run.df["micro_step"].max() == ROWS - 1


def test_the_replicas_of_one_forward_are_one_root_forward():
    model = parallel(3)
    with no_faults(), probe.watch(model, live=False) as run, torch.no_grad():
        for _ in range(4):
            model(torch.ones(3, 1))
    rows = run.frame(module="(root)", role="output")
    assert rows["step"].tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert sorted(rows["call"]) == [0] * 4 + [1] * 4 + [2] * 4


def test_replicas_that_are_kept_and_called_again_begin_the_next_forward():
    model = Meets(threading.Barrier(1))
    replicas = replicate(model, 2)
    with no_faults(), probe.watch(model, live=False) as run, torch.no_grad():
        for _ in range(3):
            for replica in replicas:
                replica(torch.ones(1, 1))
    assert run.frame(module="(root)", role="output")["step"].tolist() == [0, 0, 1, 1, 2, 2]


def test_hooks_of_the_users_own_run_once_for_each_replica_and_ours_behind_them():
    model = parallel()
    model.module.body.register_forward_pre_hook(lambda _, args: (args[0] + 100,))
    model.module.body.register_forward_hook(lambda _, __, output: output + 1000)
    x = torch.tensor([[1.0], [2.0]])
    expected = model(x)
    with no_faults(), probe.watch(model, live=False) as run:
        for _ in range(2):
            assert torch.equal(model(x), expected)
    assert sorted(run.frame(module="body", role="input")["mean"]) == [101, 101, 102, 102]
    assert sorted(run.frame(module="body", role="output")["mean"]) == [1303, 1303, 1306, 1306]
    assert len(model.module.body._forward_hooks) == len(model.module.body._forward_pre_hooks) == 1


def test_replicas_of_models_that_are_not_watched_make_no_rows():
    watched, other = nn.Linear(1, 1), Meets(threading.Barrier(1))
    with no_faults(), probe.watch(watched, live=False) as run:
        replicate(other, 1)[0](torch.ones(1, 1))
    assert len(run) == 0


@pytest.mark.parametrize("role", ["param", "param_grad"])
def test_parameters_are_those_of_the_original(role):
    model = parallel()
    with no_faults(), probe.watch(model, roles=role, live=False) as run:
        model(torch.ones(2, 1)).sum().backward()
    assert run.df["module"].tolist() == ["body.0"]
