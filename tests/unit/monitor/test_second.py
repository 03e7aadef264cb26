"""The second monitor: its files, names and numbers."""

from __future__ import annotations

import csv
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from probe_nb.errors import ConfigError, ProbeWarning, SessionStateError
from probe_nb.monitor import TrainerMonitorV2
from tests.models import no_faults

EVERY = {name: {"enabled": True} for name in ("module", "weight_grad", "optimizer", "param")}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.fc(x))


def rows(path: Any) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def trained(
    config: dict[str, Any], steps: int = 2, batches: int = 1
) -> tuple[TrainerMonitorV2, nn.Module]:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    monitor = TrainerMonitorV2(config, fr="pytorch")
    monitor.start(model=model, optimizer=optimizer, grad_acc_steps=batches)
    with no_faults():
        for _ in range(steps):
            optimizer.zero_grad()
            for _ in range(batches):
                model(torch.randn(4, 3)).pow(2).sum().backward()
            optimizer.step()
    monitor.stop()
    return monitor, model


def test_its_files_rows_and_numbers_are_those_of_a_training_done_by_hand(tmp_path):
    monitor, _ = trained({"output_dir": str(tmp_path), "monitors": EVERY})
    assert sorted(path.name for path in monitor.folder.iterdir()) == sorted(
        f"{name}_step{step}-{step}.csv" for name in EVERY for step in (0, 1)
    )
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    x = torch.randn(4, 3)
    first = model.fc(x)
    before = model.fc.weight.detach().clone()
    first.clamp(min=0).pow(2).sum().backward()
    optimizer.step()
    module = rows(monitor.folder / "module_step0-0.csv")
    names = [(r["module_name"], r["scope"]) for r in module]
    assert names == [
        *((f"{name}.0", "forward") for name in (".input", "fc.input", "fc.output")),
        *((f"{name}.0", "forward") for name in ("act.input", "act.output", ".output")),
        *((f"{name}.0", "backward") for name in ("act.grad_input", "act.grad_output")),
        (".grad_output.0", "backward"),
        ("fc.grad_output.0", "backward"),
    ]
    by_name = {r["module_name"]: r for r in module}
    assert float(by_name["act.input.0"]["min"]) == first.min().item() < 0
    assert by_name["act.input.0"]["vpp_stage"] == "-1"
    param = {(r["module_name"], r["scope"]): r for r in rows(monitor.folder / "param_step0-0.csv")}
    assert float(param["fc.weight", "param_origin"]["max"]) == before.max().item()
    assert float(param["fc.weight", "param_updated"]["max"]) == model.fc.weight.max().item()
    kept = {r["module_name"]: r for r in rows(monitor.folder / "optimizer_step0-0.csv")}
    moment = optimizer.state[model.fc.weight]["exp_avg"]
    assert float(kept["fc.weight.exp_avg"]["max"]) == moment.max().item()
    grads = rows(monitor.folder / "weight_grad_step0-0.csv")
    found = {(r["module_name"], r["scope"]): float(r["norm"]) for r in grads}
    norm = model.fc.weight.grad.double().norm().item()
    assert found["fc.weight", "unreduced"] == pytest.approx(norm, rel=1e-5)
    assert found["fc.weight", "reduced"] == pytest.approx(norm, rel=1e-5)
    assert list(grads[0])[:5] == ["vpp_stage", "step", "module_name", "scope", "micro_step"]


def test_gradients_of_each_micro_batch_are_counted_from_one(tmp_path):
    monitors = {"weight_grad": {"enabled": True, "monitor_mbs_grad": True}}
    monitor, _ = trained({"output_dir": str(tmp_path), "monitors": monitors}, 1, batches=2)
    found = rows(monitor.folder / "weight_grad_step0-0.csv")
    bias = [(r["scope"], r["micro_step"]) for r in found if r["module_name"] == "fc.bias"]
    assert bias == [("unreduced", "1"), ("unreduced", "2"), ("reduced", "2")]


def test_steps_and_files_are_chosen(tmp_path):
    config = {"output_dir": str(tmp_path), "start_step": 1, "step_interval": 2, "stop_step": 8}
    config |= {
        "step_count_per_record": 4,
        "collect_times": 3,
        "monitors": {"param": {"enabled": True}},
    }
    monitor, _ = trained(config, 9)
    steps = {
        path.name: sorted({int(r["step"]) for r in rows(path)}) for path in monitor.folder.iterdir()
    }
    assert steps == {"param_step1-4.csv": [1, 3], "param_step5-8.csv": [5]}


def test_targets_are_parts_of_names(tmp_path):
    monitors = {"module": {"targets": ["ac"]}}
    monitor, _ = trained({"output_dir": str(tmp_path), "monitors": monitors}, 1)
    found = {r["module_name"] for r in rows(monitor.folder / "module_step0-0.csv")}
    assert found == {f"act.{role}.0" for role in ("input", "output", "grad_input", "grad_output")}


def test_without_an_optimizer_steps_are_ended_by_hand(tmp_path):
    monitor = TrainerMonitorV2({"output_dir": str(tmp_path), "monitors": {"module": {}}})
    model = Net()
    monitor.start(model)
    for _ in range(2):
        model(torch.ones(1, 3))
        monitor.step()
    with pytest.raises(SessionStateError):
        monitor.start(model)
    monitor.stop()
    assert len(list(monitor.folder.iterdir())) == 2


def test_a_step_that_an_optimizer_ends_is_not_ended_twice(tmp_path):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"output_dir": str(tmp_path), "monitors": {"module": {}}}
    monitor = TrainerMonitorV2(config)
    monitor.start(model, optimizer)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    with pytest.warns(ProbeWarning, match="not needed"):
        monitor.step()
    assert monitor.current_step == 1
    monitor.stop()
    by_hand = TrainerMonitorV2({**config, "patch_optimizer_step": False})
    by_hand.start(model, optimizer)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert by_hand.current_step == 0
    by_hand.step()
    assert by_hand.current_step == 1
    by_hand.stop()


def test_what_reads_an_optimizer_needs_one(tmp_path):
    monitor = TrainerMonitorV2({"output_dir": str(tmp_path), "monitors": EVERY})
    with pytest.raises(ConfigError, match="give `optimizer`"):
        monitor.start(Net())


def test_another_rank_writes_nothing(tmp_path):
    config = {"output_dir": str(tmp_path / "out"), "rank": 3, "monitors": {"module": {}}}
    monitor = TrainerMonitorV2(config)
    monitor.start(Net())
    monitor.step()
    monitor.stop()
    assert not (tmp_path / "out").exists()


def test_a_list_of_models_is_told_apart_by_its_stage(tmp_path):
    monitor = TrainerMonitorV2({"output_dir": str(tmp_path), "monitors": {"module": {}}})
    models = [Net(), nn.Linear(2, 1)]
    monitor.start(models)
    models[1](models[0](torch.ones(1, 3)))
    monitor.step()
    monitor.stop()
    found = rows(monitor.folder / "module_step0-0.csv")
    assert {(r["vpp_stage"], r["module_name"]) for r in found} >= {
        ("0", "0:fc.input.0"),
        ("1", "1:.output.0"),
    }
