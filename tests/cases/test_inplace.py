"""Models that write in place: no hook may stand in their way, and no number may come too late."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import probe_nb as probe
from tests import oracle
from tests.cases.watching import norm, numbers, squares, truth, watched
from tests.models import no_faults

ACTIVATIONS = {
    "ReLU": nn.ReLU,
    "ReLU6": nn.ReLU6,
    "LeakyReLU": lambda inplace: nn.LeakyReLU(0.2, inplace),
    "ELU": lambda inplace: nn.ELU(0.5, inplace),
    "SELU": nn.SELU,
    "CELU": lambda inplace: nn.CELU(0.5, inplace),
    "SiLU": nn.SiLU,
    "Mish": nn.Mish,
    "Hardswish": nn.Hardswish,
    "Hardsigmoid": nn.Hardsigmoid,
    "Hardtanh": lambda inplace: nn.Hardtanh(-0.5, 0.5, inplace),
    "Threshold": lambda inplace: nn.Threshold(0.1, 0.0, inplace),
    "RReLU": lambda inplace: nn.RReLU(0.1, 0.3, inplace),
    "Dropout": lambda inplace: nn.Dropout(0.5, inplace),
    "AlphaDropout": lambda inplace: nn.AlphaDropout(0.5, inplace),
}


class Residual(nn.Module):
    """Adds its argument to what a layer gave, in place or not."""

    def __init__(self, inplace):
        super().__init__()
        self.layer, self.inplace = nn.Linear(4, 4), inplace

    def forward(self, x):
        y = self.layer(x)
        if not self.inplace:
            return y + x
        y += x
        return y


class Bottleneck(nn.Module):
    """A ResNet block: batch norm, a ReLU that is used twice, a residual, in place or not."""

    def __init__(self, inplace):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.act, self.last = nn.ReLU(inplace), nn.ReLU(inplace)
        self.inplace = inplace

    def forward(self, x):
        y = self.second(self.act(self.norm(self.first(x))))
        if self.inplace:
            y += x
        else:
            y = y + x
        return self.last(y)


class Dense(nn.Module):
    """A DenseNet layer: what it gives is joined to what it got."""

    def __init__(self, inplace):
        super().__init__()
        self.norm, self.act, self.layer = nn.BatchNorm1d(4), nn.ReLU(inplace), nn.Linear(4, 4)

    def forward(self, x):
        return torch.cat([x, self.layer(self.act(self.norm(x)))], 1)


class Scales(nn.Module):
    """Writes into the result of a layer by operators and by an index."""

    def __init__(self, inplace):
        super().__init__()
        self.layer, self.inplace = nn.Linear(4, 4), inplace

    def forward(self, x):
        y = self.layer(x)
        keep = torch.ones(4).index_fill(0, torch.tensor([1]), 0.0)
        if not self.inplace:
            return (y * 3 + 1) * keep
        y.mul_(3).add_(1)
        y[:, 1] = 0.0
        return y


BLOCKS = {"residual": Residual, "bottleneck": Bottleneck, "dense": Dense, "operators": Scales}


def around(make):
    """Return (an in-place model, the same written without), with the same parameters."""
    torch.manual_seed(0)
    model, twin = (
        nn.Sequential(nn.Linear(4, 4), make(inplace), nn.LazyLinear(4)) for inplace in (True, False)
    )
    model(torch.zeros(2, 4))
    twin(torch.zeros(2, 4))
    twin.load_state_dict(copy.deepcopy(model.state_dict()))
    return model, twin


def data():
    torch.manual_seed(1)
    return torch.randn(3, 4)


def test_the_published_numbers_of_a_relu_that_writes_in_place():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    run = watched(model, data(), loss=lambda y: y.pow(2).sum())
    found = numbers(run, "grad_output")
    assert [found[name, "0"] for name in "012"] == pytest.approx(
        [0.816125, 1.045238, 1.632837], abs=5e-7
    )


@pytest.mark.parametrize("name", [*ACTIVATIONS, *BLOCKS])
def test_a_model_that_writes_in_place_has_the_gradients_of_one_that_does_not(name):
    model, twin = around((ACTIVATIONS | BLOCKS)[name])
    x = data()
    torch.manual_seed(2)
    run = watched(model, x)
    torch.manual_seed(2)
    expected = truth(twin, x)
    found = numbers(run, "grad_output")
    assert found.keys() == {(module, "0") for module in expected}
    for module, (_, gradient) in expected.items():
        assert found[module, "0"] == norm(gradient), module


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_input_of_a_module_that_overwrites_it_is_what_it_was_given(name):
    model, twin = around(ACTIVATIONS[name])
    x = data()
    torch.manual_seed(2)
    run = watched(model, x)
    torch.manual_seed(2)
    outputs = {module: output for module, (output, _) in truth(twin, x).items()}
    for module, role, t in [
        ("0", "output", outputs["0"]),
        ("1", "input", outputs["0"]),
        ("1", "output", outputs["1"]),
        ("2", "input", outputs["1"]),
    ]:
        want = oracle.expected(t.detach()).statistics
        for stat in ("min", "max", "mean", "std", "l2"):
            found = numbers(run, role, stat)[module, "0"]
            assert found == pytest.approx(want[stat], rel=1e-5, abs=1e-6 * want["absmax"])


def test_the_least_input_of_a_relu_is_negative_and_its_least_output_zero():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    x = torch.randn(2, 4)
    negative = model[0](x).min().item()
    assert negative < 0
    run = watched(model, x)
    assert numbers(run, "output", "min")["0", "0"] == pytest.approx(negative)
    assert numbers(run, "input", "min")["1", "0"] == pytest.approx(negative)
    assert numbers(run, "output", "min")["1", "0"] == 0


WRITES = {
    "add_": lambda t: t.add_(10),
    "copy_": lambda t: t.copy_(torch.full_like(t, 11.0)),
    "masked_fill_": lambda t: t.masked_fill_(t < 2, 12.0),
    "index": lambda t: t.__setitem__(0, 13.0),
    "through a view": lambda t: t.view(-1)[:1].mul_(14),
    "out=": lambda t: torch.add(t, 10, out=t),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("way", ["positional", "keyword", "nested"])
def test_whatever_a_module_writes_into_its_argument_the_input_is_what_came(write, way):
    class Writes(nn.Module):
        """Writes its argument and gives another tensor out."""

        def forward(self, x):
            t = x["t"] if way == "nested" else x
            WRITES[write](t)
            return t.sum()

    t = torch.tensor([1.0, 3.0])
    kwargs = {"x": t} if way == "keyword" else {}
    args = () if kwargs else ({"t": t},) if way == "nested" else (t,)
    model = Writes()
    with no_faults(), probe.watch(model, live=False) as run:
        total = model(*args, **kwargs)
    (row,) = run.frame(role="input").to_dict("records")
    assert (row["min"], row["max"], row["mean"]) == (1.0, 3.0, 2.0)
    assert run.frame(role="output")["mean"].tolist() == [total.item()]
    assert t.tolist() != [1.0, 3.0]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_weights_that_an_optimizer_writes_in_place_are_read_before_each_step(kind, fused):
    torch.manual_seed(0)
    layer = nn.Linear(2, 1, bias=False)
    optimizer = kind(layer.parameters(), lr=0.25, fused=fused)
    weights, gradients = [], []
    with no_faults(), probe.watch(layer, optimizer=optimizer, live=False) as run:
        for _ in range(3):
            weights.append(layer.weight.detach().clone())
            squares(layer(torch.ones(1, 2))).backward()
            gradients.append(layer.weight.grad.clone())
            optimizer.step()
            optimizer.zero_grad()
    assert run.frame(role="param", direction="forward")["l2"].tolist() == [norm(w) for w in weights]
    assert run.frame(role="param_grad", direction="backward")["l2"].tolist() == [
        norm(g) for g in gradients
    ]
    assert len({w.norm().item() for w in weights}) == 3
    if kind is torch.optim.SGD:  # what was learned is the rate times the gradient
        assert torch.allclose(weights[0] - weights[1], 0.25 * gradients[0])
