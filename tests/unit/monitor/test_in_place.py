"""The seven cases of the design for the inputs of in-place modules, at no copy of a tensor."""

from __future__ import annotations

import csv
import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from probe_nb.monitor import TrainerMon
from tests.models import no_faults

OPS = ["min", "max", "mean", "nans"]
X = torch.tensor([[-0.5, 0.8, 0.25, -0.125], [0.5, -1.5, 2.0, 0.0]])


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path))


class Relu(nn.Module):
    """Hands its input to an activation, and has a weight that a step can move."""

    def __init__(self, *, inplace: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.relu = nn.ReLU(inplace=inplace)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(x * self.scale)


class Two(nn.Module):
    """A module of two inputs that writes into the first."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.add(x, y, out=x)


class AddsInPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.add = Two()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            z = self.add(x.clone(), y)
        return z * self.scale


class Clones(TorchDispatchMode):
    """Counts copies of whole tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def trained(model: nn.Module, *args: Tensor, config: dict[str, Any]) -> TrainerMon:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainerMon({"xy_distribution": True, "ops": OPS, "ndigits": 12, **config})
    monitor.set_monitor(model, optimizer)
    with no_faults():
        model(*args).sum().backward()
        optimizer.step()
    monitor.stop()
    return monitor


def rows(monitor: TrainerMon, table: str) -> dict[str, dict[str, str]]:
    assert monitor.folder is not None
    path = monitor.folder / f"{table}_0-0.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def numbers(row: dict[str, str]) -> list[float]:
    return [float(row[op]) for op in OPS]


def truth(x: Tensor) -> list[float]:
    x64 = x.numpy().astype(np.float64)
    return [x64.min(), x64.max(), x64.mean(), np.isnan(x64).sum()]


def test_1_the_input_of_an_in_place_module_is_that_before_it_ran():
    of = [
        rows(trained(Relu(inplace=i), X, config={"targets": {"relu": {}}}), "actv") for i in (0, 1)
    ]
    for each in of:
        assert numbers(each["relu.input"]) == pytest.approx(truth(X), abs=1e-6)
    assert numbers(of[0]["relu.input"]) == pytest.approx(numbers(of[1]["relu.input"]), abs=1e-6)


def test_2_its_input_and_its_output_differ():
    found = rows(trained(Relu(inplace=True), X, config={"targets": {"relu": {}}}), "actv")
    assert numbers(found["relu.output"]) == pytest.approx(truth(X.clamp(min=0)), abs=1e-6)
    assert found["relu.input"]["min"] == "-1.5"
    assert found["relu.output"]["min"] == "0.0"


def test_1_and_2_cost_no_copy():
    model = Relu(inplace=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def operators(*, monitored: bool) -> list[str]:
        monitor = TrainerMon({"xy_distribution": True, "ops": OPS})
        if monitored:
            monitor.set_monitor(model, optimizer)
        with Clones() as seen:
            model(X)
        monitor.stop()
        return seen.names

    assert operators(monitored=True) == operators(monitored=False)
    assert "clone" not in operators(monitored=True)


def test_3_a_module_that_is_not_in_place_has_the_input_it_had():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(10, 10)), torch.randn(4, 10)
    before = [each.detach().clone() for each in model.parameters()]
    found = rows(trained(model, x, config={"targets": {"0": {}}}), "actv")
    assert numbers(found["0.input"]) == pytest.approx(truth(x), abs=1e-6)
    weight, bias = (each.detach().double().numpy() for each in before)
    y = x.double().numpy() @ weight.T + bias
    expected = [y.min(), y.max(), y.mean(), 0]
    assert numbers(found["0.output"]) == pytest.approx(expected, abs=1e-6)
    assert set(found) == {"0.input", "0.output"}


def test_4_the_structure_of_all_modules_is_written_and_training_goes_on(tmp_path):
    model = Relu(inplace=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainerMon({"print_struct": True, "xy_distribution": True, "ops": OPS})
    monitor.set_monitor(model, optimizer)
    with no_faults():
        for _ in range(2):
            optimizer.zero_grad()
            model(X).sum().backward()
            optimizer.step()
    monitor.stop()
    found = json.loads((tmp_path / "module_struct" / "rank0" / "module_struct.json").read_text())
    shape = "size=(2, 4), dtype=torch.float32"
    assert set(found) == {"0:", "0:relu"}
    for each in found.values():
        assert each["input"] == {"config": "list[1]", "0": shape}
        assert each["output"] == {"config": "tensor", "tensor": shape}
    assert found["0:relu"]["input_grad"] == {"config": "tuple[1]", "0": shape}
    assert found["0:relu"]["output_grad"] == {"config": "tuple[1]", "0": shape}
    assert model.scale.item() != 1.0
    assert monitor.folder is not None
    assert [path.name for path in sorted(monitor.folder.glob("actv_[0-9]*"))] == ["actv_1-1.csv"]


def test_5_backward_only_gives_no_forward_rows_and_no_forward_reductions():
    monitor = trained(Relu(inplace=True), X, config={"backward_only": True})
    assert monitor.folder is not None
    assert [path.name for path in monitor.folder.iterdir()] == ["actv_grad_0-0.csv"]
    assert monitor.run is not None
    assert set(monitor.run.df["direction"]) == {"backward"}
    assert set(monitor.run.df["role"]) <= {"grad_input", "grad_output"}


def test_5_forward_only_gives_no_gradients():
    monitor = trained(Relu(inplace=True), X, config={"forward_only": True})
    assert monitor.folder is not None
    assert [path.name for path in monitor.folder.iterdir()] == ["actv_0-0.csv"]


def test_6_each_input_of_a_module_that_writes_into_one_is_measured_before():
    y = X * 3 + 1
    found = rows(trained(AddsInPlace(), X, y, config={"targets": {"add": {}}}), "actv")
    assert numbers(found["add.input_0"]) == pytest.approx(truth(X), abs=1e-6)
    assert numbers(found["add.input_1"]) == pytest.approx(truth(y), abs=1e-6)
    assert numbers(found["add.output"]) == pytest.approx(truth(X + y), abs=1e-6)


def test_7_a_module_in_evaluation_has_no_rows():
    model = Relu(inplace=True).eval()
    monitor = trained(model, X, config={})
    assert monitor.run is not None
    assert monitor.folder is not None
    assert list(monitor.folder.iterdir()) == []
    assert len(monitor.run) == 0


def test_7_of_a_model_in_training_the_part_in_evaluation_has_none():
    model = Relu(inplace=True)
    model.relu.eval()
    found = rows(trained(model, X, config={}), "actv")
    assert set(found) == {".input", ".output"}
