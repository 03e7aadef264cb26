"""Faults planted in the second of two runs of one model, and pairs that only rounding parts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import probe_nb as probe
from probe_nb.view.pairs import SitePairs


class Block(nn.Module):
    """Attention in its own code, and a feed-forward part."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.q, self.k, self.v, self.o = (nn.Linear(size, size) for _ in range(4))
        self.up, self.act, self.down = (
            nn.Linear(size, 2 * size),
            nn.GELU(),
            nn.Linear(2 * size, size),
        )
        self.scale = size**-0.5

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = self.q(h), self.k(h), self.v(h)
        x = x + self.o((q @ k.transpose(-1, -2) * self.scale).softmax(-1) @ v)
        return x + self.down(self.act(self.up(self.norm2(x))))


class Words(nn.Module):
    """A small transformer."""

    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.emb = nn.Embedding(50, size)
        self.layers = nn.ModuleList(Block(size) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, 50)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Images(nn.Module):
    """Convolutions, batch norm, a residual, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv, self.bn2, self.relu = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
        self.pool, self.drop, self.fc = nn.MaxPool2d(2), nn.Dropout(0.2), nn.Linear(8 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.stem(x)))
        x = self.relu(x + self.bn2(self.conv(x)))
        return self.fc(self.drop(self.pool(x).flatten(1)))


def words() -> tuple[nn.Module, list[Tensor]]:
    torch.manual_seed(0)
    return Words(), [torch.randint(0, 50, (4, 12)) for _ in range(3)]


def images() -> tuple[nn.Module, list[Tensor]]:
    torch.manual_seed(0)
    return Images(), [torch.randn(8, 3, 8, 8) for _ in range(3)]


def recorded(model: nn.Module, data: list[Tensor], **options: Any) -> probe.Run:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with probe.watch(model, optimizer=optimizer, **options) as run:
        for number, x in enumerate(data):
            torch.manual_seed(number)
            optimizer.zero_grad()
            model(x).float().logsumexp(-1).square().mean().backward()
            optimizer.step()
    return run


def pair(made: Callable, change: Callable[[nn.Module], None] | None = None, **options: Any) -> Any:
    model, data = made()
    other = copy.deepcopy(model)
    if change is not None:
        change(other)
    return probe.compare(
        recorded(model, data, **options), recorded(other, data, **options), progress=False
    )


def replaced(path: str, forward: Callable[[nn.Module, Tensor], Tensor]) -> Callable:
    def change(model: nn.Module) -> None:
        module = model.get_submodule(path)
        module.forward = lambda x: forward(module, x)

    return change


def put(path: str, **values: Any) -> Callable:
    def change(model: nn.Module) -> None:
        for name, value in values.items():
            setattr(model.get_submodule(path), name, value)

    return change


def half(m: nn.Module, x: Tensor) -> Tensor:
    return F.linear(x.half(), m.weight.half(), m.bias.half()).float()


def other_mask(m: nn.Module, x: Tensor) -> Tensor:
    keep = torch.rand(x.shape, generator=torch.Generator().manual_seed(9)) > m.p
    return x * keep / (1 - m.p)


PLANTS = {
    "epsilon": (words, put("layers.1.norm1", eps=1e-4), "layers.1.norm1"),
    "bias": (words, replaced("layers.2.up", lambda m, x: F.linear(x, m.weight)), "layers.2.up"),
    "half precision": (words, replaced("layers.0.o", half), "layers.0.o"),
    "transposed": (
        words,
        replaced("layers.1.v", lambda m, x: F.linear(x, m.weight.t(), m.bias)),
        "layers.1.v",
    ),
    "other operation": (words, put("layers.2.act", approximate="tanh"), "layers.2.act"),
    "own code": (words, put("layers.1", scale=0.2), "layers.1"),
    "stale buffer": (images, put("bn2", momentum=0.0), "bn2"),
    "random numbers": (images, replaced("drop", other_mask), "drop"),
    "another pool": (images, replaced("pool", lambda m, x: F.avg_pool2d(x, 2)), "pool"),
    "bias of a convolution": (
        images,
        replaced("stem", lambda m, x: m._conv_forward(x, m.weight, None)),
        "stem",
    ),
}


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_named_at_its_module(name):
    made, change, module = PLANTS[name]
    found = pair(made, change)
    first = found.first_divergence()
    assert first.module == module
    assert (first.phase, first.step) == ("forward", 1 if name == "stale buffer" else 0)
    assert found.fed_same
    assert (first.rows["verdict"] == "diverged").any()
    assert module in first.sentence


@pytest.mark.parametrize("name", ["epsilon", "half precision", "random numbers"])
def test_with_kept_tensors_it_is_the_same_module(name):
    made, change, module = PLANTS[name]
    found = pair(made, change, keep=probe.Keep("*", roles=("input", "output")))
    assert found.first_divergence().module == module
    assert found.first_divergence().evidence == "kept tensors"


def test_a_fault_in_a_parent_names_the_calls_it_lies_between():
    first = pair(words, put("layers.1", scale=0.2)).first_divergence()
    assert first.between == ("layers.1.v", "layers.1.o")
    assert first.type == "Block"


def test_a_wrong_backward_is_found_in_the_backward_alone():
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * 1.05

    def change(model):
        module = model.layers[1].down
        module.forward = lambda x: F.linear(Scaled.apply(x), module.weight, module.bias)

    found = pair(words, change)
    assert found.first_divergence("forward") is None
    first = found.first_divergence("backward")
    assert (first.module, first.role) == ("layers.1.down", "grad_input")
    assert found.first_divergence() is found.divergences[0]


def test_another_learning_rate_is_found_at_the_optimizer():
    model, data = words()
    other = copy.deepcopy(model)
    one = recorded(model, data[:2])
    optimizer = torch.optim.AdamW(other.parameters(), lr=2e-3)
    with probe.watch(other, optimizer=optimizer) as two:
        for x in data[:2]:
            optimizer.zero_grad()
            other(x).float().logsumexp(-1).square().mean().backward()
            optimizer.step()
    found = probe.compare(one, two)
    assert [each.phase for each in found.divergences] == ["optimizer"]
    assert found.first_divergence("optimizer").leaf == "group0.lr"
    assert found.first_divergence().detail == "0.001 against 0.002"


def stepped(
    kind: type[torch.optim.Optimizer],
    *,
    steps: int = 1,
    wrong: bool = False,
    factor: float = 1.0,
    **options: Any,
) -> probe.Run:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), torch.randn(5, 4) * factor
    optimizer = kind(model.parameters(), **{"lr": 0.1, **options})
    with probe.watch(model, optimizer=optimizer) as run:
        for _ in range(steps):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            if wrong:
                optimizer.register_step_pre_hook(lambda *_: _twice(model))
            optimizer.step()
    return run


def _twice(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad.mul_(2)


def test_optimizers_of_two_classes_are_named_before_what_they_moved():
    found = probe.compare(stepped(torch.optim.Adam), stepped(torch.optim.SGD))
    first = found.first_divergence()
    assert first.phase == "optimizer"
    assert first.sentence.startswith(
        "the optimizers differ: Adam against SGD; first diverges at 0 (Linear) at step 0"
    )
    assert repr(found).startswith("✕ the optimizers differ: Adam against SGD")


def test_a_setting_that_is_on_in_one_run_alone_is_said_with_both_values():
    one = stepped(torch.optim.SGD, momentum=0.5)
    found = probe.compare(one, stepped(torch.optim.SGD, momentum=0.5, nesterov=True))
    first = found.first_divergence()
    assert (first.leaf, first.detail) == ("group0.nesterov", "0 against 1")
    assert "the optimizers differ" not in repr(found)


ADAMW, SGD = (torch.optim.AdamW, {}), (torch.optim.SGD, {"momentum": 0.9})
SETTINGS = [
    *((ADAMW, "lr", value) for value in (0.100001, 0.11, 1.0)),
    *((ADAMW, "betas", (0.9, value)) for value in (0.99901, 0.9999, 0.99, 0.9, 0.5, 0.0)),
    *((ADAMW, "betas", (value, 0.999)) for value in (0.9001, 0.91, 0.99, 0.0)),
    *((ADAMW, "eps", value) for value in (1.1e-8, 1e-4, 1e-2)),
    *((ADAMW, "weight_decay", value) for value in (0.0, 0.0101, 0.1)),
    *((ADAMW, name, True) for name in ("amsgrad", "maximize")),
    *((SGD, "lr", value) for value in (0.100001, 0.2, 10.0)),
    *((SGD, "momentum", value) for value in (0.9001, 0.99, 0.9999, 0.5, 0.0)),
    *((SGD, "dampening", value) for value in (1e-3, 0.1, 0.99)),
    *((SGD, "weight_decay", value) for value in (1e-5, 0.1)),
    *((SGD, name, True) for name in ("nesterov", "maximize")),
]


@pytest.mark.parametrize(("optimizer", "name", "value"), SETTINGS)
def test_a_setting_that_differs_is_the_one_cause_of_what_an_optimizer_does(optimizer, name, value):
    kind, given = optimizer
    usual = {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8, "momentum": 0.9, "dampening": 0}
    usual |= {"weight_decay": 0.01 if kind is torch.optim.AdamW else 0}
    found = probe.compare(
        stepped(kind, steps=3, **given), stepped(kind, steps=3, **{**given, name: value})
    )
    one, other = usual.get(name, 0), value
    part = 0
    if name == "betas":
        part = int(value[0] == 0.9)
        one, other = usual[name][part], value[part]
    first = found.first_divergence()
    assert first.leaf == (f"group0.betas.{part}" if name == "betas" else f"group0.{name}")
    assert first.detail == f"{one:g} against {float(other):g}"
    assert found.divergences == [first]
    assert first.sentence.endswith(", and again in 2 later steps")
    everything = found.df[found.df["verdict"] == "diverged"]
    rest = everything[~everything["leaf"].astype(str).str.startswith("group")]
    assert set(rest.index) <= set(first.inherited.index)


def test_of_a_setting_nothing_is_said_to_be_explained_by_rounding():
    found = probe.compare(stepped(torch.optim.SGD), stepped(torch.optim.SGD, lr=0.2))
    settings = found.df["leaf"].astype(str).str.startswith("group")
    assert settings.sum() > 3
    assert found.df["tolerance"][settings].isna().all()
    assert found.df["tolerance"][~settings & (found.df["difference"] > 0)].gt(0).all()
    (rate,) = found.df[found.df["leaf"] == "group0.lr"].to_dict("records")
    assert (rate["verdict"], rate["difference"]) == ("diverged", pytest.approx(0.5))
    beyond = SitePairs(found).beyond
    assert np.isnan(beyond[: len(settings)]).tolist() == settings.tolist()


def test_gradients_that_an_optimizer_saw_come_before_its_settings():
    one = stepped(torch.optim.SGD)
    found = probe.compare(one, stepped(torch.optim.SGD, lr=0.100001, wrong=True))
    [first] = found.divergences
    assert (first.role, first.leaf) == ("param_grad", "weight")
    assert first.difference == pytest.approx(0.5)
    assert "group0.lr" in set(first.rows["leaf"])


def test_what_came_in_is_not_called_rounding():
    one = stepped(torch.optim.SGD)
    found = probe.compare(one, stepped(torch.optim.SGD, wrong=True, factor=1 + 1e-5))
    assert found.first_divergence().phase == "fed"
    detail = found.first_divergence("optimizer").detail
    assert " times what rounding and what came in explain; what came in agrees within " in detail
    [alone] = probe.compare(one, stepped(torch.optim.SGD, wrong=True)).divergences
    assert " times what rounding explains; what came in is the same" in alone.detail


def test_other_parameters_and_other_data_are_said_first():
    model, data = words()
    torch.manual_seed(5)
    found = probe.compare(recorded(model, data), recorded(Words(), data))
    assert found.first_divergence().phase == "fed"
    assert not found.fed_same
    assert "initial parameters: " in found.fed_same.sentence
    model, data = images()
    found = probe.compare(
        recorded(copy.deepcopy(model), data), recorded(model, [x + 1 for x in data])
    )
    assert (found.first_divergence().phase, found.first_divergence().role) == ("fed", "input")


def test_faults_in_two_branches_are_both_told():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
            self.c, self.d = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.c(self.a(x)) + self.d(self.b(x))

    def made():
        torch.manual_seed(0)
        return Two(), [torch.randn(16, 8)]

    def change(model):
        for each in (model.a, model.b):
            each.forward = lambda x, m=each: F.linear(x, m.weight)

    found = pair(made, change)
    forward = [each.module for each in found.divergences if each.phase == "forward"]
    assert forward == ["a", "b"]
    assert {"c", "d"} <= set(found.divergences[0].inherited["module"])


# -- pairs that only rounding parts --------------------------------------------------------------


def by_parts(model: nn.Module) -> None:
    """Sum in another order."""
    for module in model.modules():
        if type(module) is nn.Linear:
            cut = module.in_features // 2

            def forward(x, m=module, cut=cut):
                return F.linear(x[..., cut:], m.weight[:, cut:]) + F.linear(
                    x[..., :cut], m.weight[:, :cut], m.bias
                )

            module.forward = forward


@pytest.mark.parametrize("made", [words, images])
def test_another_order_of_sums_is_no_divergence(made):
    found = pair(made, by_parts)
    assert found.divergences == []
    assert found.counts["close"] > 100
    assert repr(found).startswith(("✓", "!"))


@pytest.mark.parametrize("made", [words, images])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_another_format_is_no_divergence_at_its_own_tolerance(made, dtype):
    model, data = made()
    other = copy.deepcopy(model).to(dtype)
    cast = [x.to(dtype) if x.is_floating_point() else x for x in data]
    assert probe.compare(recorded(model, data), recorded(other, cast)).divergences == []


def test_outputs_alone_tell_the_place():
    made, change, module = PLANTS["bias"]
    found = pair(made, change, roles="output")
    assert found.first_divergence().module == module
    assert len(found.divergences) == 1


def test_inputs_alone_tell_between_which_calls_it_lies():
    made, change, _ = PLANTS["bias"]
    found = pair(made, change, roles="input")
    assert found.first_divergence().between == ("layers.2.up", "layers.2.act")
    assert len(found.divergences) == 1


@pytest.mark.parametrize(
    "options", [{"roles": "input,output"}, {"roles": "param_grad"}, {"level": "api"}]
)
def test_what_was_not_recorded_raises_no_alarm(options):
    assert (
        pair(images, lambda m: None if "level" in options else by_parts(m), **options).divergences
        == []
    )


def test_a_run_is_the_same_as_itself_saved_or_not(tmp_path):
    model, data = images()
    run = recorded(model, data, keep="*")
    path = run.save(tmp_path / "run.parquet")
    for other in (run, path, str(path)):
        found = probe.compare(run, other)
        assert set(found.counts) <= {"same", "not_comparable"}
        assert found.divergences == []
        assert found.df["max_ulp"].dropna().eq(0).all()
    assert "are the same" in repr(found)


def test_the_profile_follows_the_order_of_execution():
    found = pair(words, PLANTS["bias"][1])
    profile = found.profile()
    assert profile["order"].is_monotonic_increasing
    at = profile["module"].tolist().index("layers.2.up")
    assert (profile["difference"].iloc[:at] == 0).all()
    assert (profile["difference"].iloc[at:] > 1e-4).all()
    assert set(found.profile("backward")["role"]) == {"grad_input"}


def test_functions_are_compared_as_modules_are():
    model, data = images()
    other = copy.deepcopy(model)
    other.fc.forward = lambda x: F.linear(x, other.fc.weight, other.fc.bias * 2)
    with probe.watch(model, level="mix") as one:
        torch.manual_seed(0)
        model(data[0])
    with probe.watch(other, level="mix") as two:
        torch.manual_seed(0)
        other(data[0])
    found = probe.compare(one, two)
    assert found.first_divergence("forward").module == "fc"


def test_a_run_and_its_dump_part_nowhere(tmp_path):
    model, data = words()
    run = recorded(model, data[:1])
    run.write_dump(tmp_path / "dump")
    found = probe.compare(run, tmp_path / "dump")
    assert found.divergences == []
    assert found.fed_same
    assert found.counts["same"] > 150
    assert "diverged" not in found.counts


def test_a_fault_is_found_between_two_dumps(tmp_path):
    made, change, module = PLANTS["bias"]
    model, data = made()
    other = copy.deepcopy(model)
    change(other)
    for name, each in (("gpu", model), ("npu", other)):
        recorded(each, data[:1]).write_dump(tmp_path / name)
    found = probe.compare(tmp_path / "gpu", tmp_path / "npu")
    assert found.first_divergence().module == module
    assert "Result" in found.to_msprobe()


class _Backwards(nn.Linear):
    """Gives its outputs the other way round: the same numbers in other places."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).flip(-1)


DOUBT = "checksums alone differ: another order, last bits, or signs of zeros"


def _told(model: nn.Module, *data: Tensor) -> probe.Run:
    """Record a forward with checksums."""
    with torch.no_grad(), probe.watch(model, checksum="crc32", live=False) as made:
        model(*data)
    return made


def test_a_checksum_tells_that_numbers_changed_places_before_what_diverges():
    def run(first: type[nn.Linear]) -> probe.Run:
        torch.manual_seed(0)
        return _told(nn.Sequential(first(8, 8), nn.Linear(8, 8)), torch.randn(4, 8))

    found = probe.compare(run(nn.Linear), run(_Backwards))
    first = found.first_divergence()
    assert (first.module, first.phase) == ("1", "forward")  # the first product after it
    assert DOUBT in first.detail
    moved = found.rows_of("0", "output")
    assert (moved["verdict"].item(), moved["reason"].item()) == ("close", DOUBT)
    assert found.fed_same
    again = probe.compare(run(nn.Linear), run(nn.Linear))
    assert again.first_divergence() is None
    assert again.counts.keys() == {"same"}


@pytest.mark.parametrize("size", [64, 1000, 20_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_floats_that_changed_places_are_not_said_to_be_within_rounding(size, dtype):
    made = torch.Generator().manual_seed(size)
    data = torch.randn(size, generator=made, dtype=torch.float64).to(dtype)
    other = data[torch.randperm(size, generator=made)]
    found = probe.compare(_told(nn.Identity(), data), _told(nn.Identity(), other))
    assert found.first_divergence() is None
    assert found.fed_same.same is None
    assert f"inputs: the same statistics, but of 1 of 1 {DOUBT}" in found.fed_same.sentence
    said = " ".join(repr(found).split())
    assert said.startswith(f"✓ no divergence in the statistics; of 2 rows {DOUBT}")
    assert "within rounding" not in said


def test_a_parameter_of_which_rows_changed_places_is_told_with_what_diverges():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    other, data = copy.deepcopy(model), torch.randn(8, 16)
    with torch.no_grad():
        other[2].weight.copy_(other[2].weight.flip(0))
    found = probe.compare(_told(model, data), _told(other, data))
    first = found.first_divergence()
    assert (first.module, first.role) == ("2", "output")
    assert f"but of 1 row of it {DOUBT}" in first.detail
    assert found.fed_same.same is None
    assert f"initial parameters: the same statistics, but of 1 of 4 {DOUBT}" in repr(found.fed_same)


def test_checksums_of_two_formats_say_nothing():
    model, data = nn.LayerNorm(8), torch.ones(2, 8)  # ones, exact in both
    found = probe.compare(_told(model, data), _told(copy.deepcopy(model).double(), data.double()))
    assert found.fed_same
    assert DOUBT not in " ".join(repr(found).split())


@pytest.mark.parametrize("place", [3, 40])
@pytest.mark.parametrize("size", [64, 1000])
def test_one_last_bit_is_no_divergence_though_no_sum_shows_it(size, place):
    data = torch.randn(size, generator=torch.Generator().manual_seed(size))
    other = data.clone()
    other[place] = torch.nextafter(data[place], torch.tensor(0.0))
    found = probe.compare(_told(nn.Identity(), data), _told(nn.Identity(), other))
    assert found.first_divergence() is None
    assert not found.df["checksum_same"].any()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
@pytest.mark.parametrize("size", [64, 1000])
def test_another_checksum_of_whole_numbers_is_a_difference(size, dtype):
    made = torch.Generator().manual_seed(size)
    data = torch.randint(0, 50, (size,), generator=made).to(dtype)
    data[0], data[1] = 0, 1  # they change places
    other = data.flip(0)
    found = probe.compare(_told(nn.Identity(), data), _told(nn.Identity(), other))
    first = found.first_divergence()
    assert (first.phase, first.role, first.measure) == ("fed", "input", "exact")
    assert first.detail.startswith("whole numbers differ, by checksums alone: another order")
    assert found.fed_same.same is False
    same = probe.compare(_told(nn.Identity(), data), _told(nn.Identity(), data.clone()))
    assert same.counts == {"same": 2}


def test_a_run_that_is_the_same_where_it_can_be_compared_is_not_said_to_be_rounded():
    model = nn.Sequential(nn.Linear(4, 4), nn.Identity(), nn.Linear(4, 4))
    with probe.watch(model, live=False) as run:
        model(torch.ones(2, 4)).sum().backward()
    found = probe.compare(run, run)
    assert found.counts.keys() == {"same", "not_comparable"}
    many = found.counts["not_comparable"]
    said = f"✓ all that could be compared is the same; {many} rows could not be"
    assert repr(found).splitlines()[0] == said


def test_the_evidence_is_that_of_the_row_and_all_that_was_fed_otherwise_is_named():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    other, data = copy.deepcopy(model), torch.randn(4, 8)
    torch.manual_seed(1)
    other[0].reset_parameters()
    other[2].reset_parameters()
    keep = probe.Keep("*", roles="input,output")
    runs = []
    for each in (model, other):
        with torch.no_grad(), probe.watch(each, keep=keep, live=False) as run:
            each(data)
        runs.append(run)
    found = probe.compare(*runs)
    first = found.first_divergence()
    assert first.evidence == "statistics and histograms"  # parameters were not kept
    said = "not fed the same at step 0: 0 (parameter weight) and 3 more, also in 2"
    assert first.sentence == said
    assert "initial parameters: 4 of 4 rows differ (in 0, 2)" in found.fed_same.sentence


def test_checksums_tell_of_no_fault_where_the_order_of_sums_differs():
    def run(parts: int) -> probe.Run:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
        x = torch.randn(32, 64)
        if parts > 1:
            model[2].forward = lambda h: (
                sum(
                    a @ w.t()
                    for a, w in zip(
                        h.chunk(parts, -1), model[2].weight.chunk(parts, -1), strict=True
                    )
                )
                + model[2].bias
            )
        with probe.watch(model, checksum="crc32", live=False) as made:
            model(x).square().mean().backward()
        return made

    found = probe.compare(run(1), run(4))
    assert not found.df["checksum_same"].all()
    assert found.first_divergence() is None
