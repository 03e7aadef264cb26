"""Tensors that both runs kept are compared element by element: each with the one it belongs to."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import probe_nb as probe
from probe_nb.view.pairs import SitePairs

ONE = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.25, -4.0]])
OTHER = torch.tensor([[1.5, -2.0, 3.0], [0.5, 0.25, -1.0]])


class Net(nn.Module):
    """A layer between two functions."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return torch.softmax(self.layer(F.relu(x)), -1)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


def kept(net, x, level="module", **options):
    keep = probe.Keep("*", roles="input,output")
    with probe.watch(net, level=level, keep=keep, live=False, **options) as run:
        net(x)
    return run


def largest(a, b):
    return (a.double() - b.double()).abs().max().item()


def truth(net):
    """The largest difference of what goes in and comes out, by plain torch."""
    with torch.no_grad():
        inner = [F.relu(x) for x in (ONE, OTHER)]
        outer = [net.layer(x) for x in inner]
        ends = [torch.softmax(x, -1) for x in outer]
    return {
        ("", "", "input"): largest(ONE, OTHER),
        ("layer", "", "input"): largest(*inner),
        ("layer", "", "output"): largest(*outer),
        ("", "", "output"): largest(*ends),
        ("", "Functional.relu", "input"): largest(ONE, OTHER),
        ("", "Functional.relu", "output"): largest(*inner),
        ("", "Torch.softmax", "input"): largest(*outer),
        ("", "Torch.softmax", "output"): largest(*ends),
        ("layer", "Functional.linear", "output"): largest(*outer),
    }


def measured(found):
    """The largest difference of each pair of which both tensors are kept."""
    rows = found.df.dropna(subset=["max_abs"])
    keys = rows[["module", "api", "role", "leaf"]].astype(str).apply(tuple, axis=1)
    assert keys.is_unique
    return dict(zip(keys, rows["max_abs"], strict=True))


def test_ranks_of_one_run_are_compared_by_what_each_of_them_kept(net, tmp_path):
    for rank, x in enumerate((ONE, OTHER)):
        run = kept(net, x)
        run.info.rank = rank
        run.save(tmp_path / f"rank{rank}.parquet")
    job = probe.load(tmp_path)
    expected = {key: value for key, value in truth(net).items() if not key[1]}
    for ranks in ((0, 1), (1, 0)):
        found = measured(probe.compare(job, ranks=ranks))
        assert {key[:3]: value for key, value in found.items()} == pytest.approx(expected)
    assert set(measured(probe.compare(job, ranks=(1, 1))).values()) == {0.0}


def test_jobs_of_several_ranks_are_compared_rank_by_rank(net, tmp_path):
    for name, inputs in (("a", (ONE, OTHER)), ("b", (ONE, ONE))):
        for rank, x in enumerate(inputs):
            run = kept(net, x)
            run.info.rank = rank
            (tmp_path / name).mkdir(exist_ok=True)
            run.save(tmp_path / name / f"rank{rank}.parquet")
    found = probe.compare(probe.load(tmp_path / "a"), probe.load(tmp_path / "b")).df
    found = found.dropna(subset=["max_abs"])
    assert set(found.loc[found["rank"] == 0, "max_abs"]) == {0.0}
    of_one = found[found["rank"] == 1]
    expected = {key: value for key, value in truth(net).items() if not key[1]}
    keys = of_one[["module", "api", "role"]].astype(str).apply(tuple, axis=1)
    assert dict(zip(keys, of_one["max_abs"], strict=True)) == pytest.approx(expected)


@pytest.mark.parametrize("level", ["mix", "api"])
def test_what_functions_kept_is_compared_too(net, level):
    found = measured(probe.compare(*(kept(net, x, level=level, apis="all") for x in (ONE, OTHER))))
    first = {key[:3]: value for key, value in found.items() if key[3] == "0"}
    expected = {key: each for key, each in truth(net).items() if level == "mix" or key[1]}
    assert {key: first.get(key) for key in expected} == pytest.approx(expected)
    assert found["layer", "Functional.linear", "input", "1"] == 0.0  # the weight


def test_a_forward_that_was_repeated_has_no_tensors_of_its_own(net):
    def run(x):
        keep = probe.Keep("layer", roles="output")
        with probe.watch(net, keep=keep, recompute=True, live=False) as watched:
            checkpoint(net, x.clone().requires_grad_(), use_reentrant=False).sum().backward()
        return watched

    found = probe.compare(run(ONE), run(OTHER)).df
    rows = found[(found["module"] == "layer") & (found["role"] == "output")]
    assert rows["max_abs"].notna().tolist() == [True, False]


class Turned(nn.Module):
    """A layer that is given noise, and whose rows may come out in another order."""

    def __init__(self, noise: float, turn: float) -> None:
        super().__init__()
        self.a, self.b, self.noise = nn.Linear(8, 8), Rolled(turn), noise

    def forward(self, x):
        sign = torch.ones_like(x)
        sign[::2] = -1
        return self.b(self.a(x) + self.noise * sign)


class Rolled(nn.Linear):
    """A layer of which statistics do not tell the order of the rows."""

    def __init__(self, turn: float) -> None:
        super().__init__(8, 8)
        self.turn = turn

    def forward(self, x):
        return torch.lerp(y := super().forward(x), y.roll(1, 0), self.turn)


def test_the_sentence_and_the_row_say_the_same_number_of_times():
    def run(noise, turn):
        torch.manual_seed(0)
        model = Turned(noise, turn)
        with probe.watch(model, keep=probe.Keep("*", roles="input,output"), live=False) as run:
            model(torch.randn(32, 8)).square().mean().backward()
        return run

    found = probe.compare(run(0.0, 0), run(2e-7, 1))
    (worst,) = [each for each in found.divergences if each.module == "b"]
    (output,) = worst.rows.query("role == 'output'").index
    beyond = SitePairs(found).beyond[found.df.index.get_loc(output)]
    assert (worst.measure, worst.came_in > 0) == ("element", True)
    assert worst.difference / worst.explained == pytest.approx(beyond, rel=1e-9)
    assert f"{beyond:.4g} times what" in worst.detail
