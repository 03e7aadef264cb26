"""The training monitor over a real training: what it writes, when, and what it leaves alone."""

from __future__ import annotations

import copy
import csv
import json
import logging
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import optimizer as torch_optimizer

from probe_nb.errors import ConfigError, ProbeWarning, SessionStateError
from probe_nb.monitor import TrainerMon
from tests.models import no_faults

ALL = {
    "xy_distribution": True,
    "wg_distribution": True,
    "mv_distribution": True,
    "param_distribution": True,
    "mg_direction": True,
    "ops": ["min", "max", "mean", "norm", "zeros", "nans"],
    "ndigits": 12,
}


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(4, 5)
        self.act = nn.ReLU(inplace=True)
        self.fc2 = nn.Linear(5, 2)

    def forward(self, x: Tensor, *, scale: Tensor | None = None) -> Tensor:
        y = self.fc2(self.act(self.fc1(x)))
        return y if scale is None else y * scale


def batches(steps: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(3, 4, generator=generator) for _ in range(steps)]


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: Sequence[Sequence[Tensor]],
) -> None:
    for step in steps:
        optimizer.zero_grad()
        for x in step:
            (model(x).pow(2).sum() / len(step)).backward()
        optimizer.step()


def monitored(config: Any, steps: int = 2, accumulated: int = 1, model: Any = None) -> TrainerMon:
    torch.manual_seed(0)
    model = Net() if model is None else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    monitor = TrainerMon(config)
    monitor.set_monitor(model, optimizer, grad_acc_steps=accumulated)
    data = batches(steps * accumulated)
    with no_faults():
        cut = [data[i * accumulated : (i + 1) * accumulated] for i in range(steps)]
        train(model, optimizer, cut)
    monitor.stop()
    return monitor


def files(monitor: TrainerMon) -> list[str]:
    assert monitor.folder is not None
    return sorted(path.name for path in monitor.folder.iterdir())


def rows(monitor: TrainerMon, name: str) -> list[dict[str, str]]:
    assert monitor.folder is not None
    with (monitor.folder / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def row(monitor: TrainerMon, file: str, name: str, **more: str) -> dict[str, str]:
    wanted = {"name": name, **more}
    found = [r for r in rows(monitor, file) if all(r[k] == v for k, v in wanted.items())]
    assert len(found) == 1, found
    return found[0]


def expected(t: Tensor, eps: float = 1e-8) -> dict[str, float]:
    x = t.detach().double().numpy()
    return {
        "min": x.min(),
        "max": x.max(),
        "mean": x.mean(),
        "norm": np.sqrt((x**2).sum()),
        "zeros": (np.abs(x) < eps).mean(),
        "nans": 0,
    }


def numbers(found: dict[str, str]) -> dict[str, float]:
    return {op: float(found[op]) for op in ("min", "max", "mean", "norm", "zeros", "nans")}


# -- numbers ----------------------------------------------------------------------------------------


def test_every_table_holds_what_numpy_says_of_a_training_done_by_hand():
    monitor = monitored(ALL, accumulated=2)
    # the same training, step by step, read by hand
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    data, weight = batches(4), model.fc1.weight
    for step in range(2):
        optimizer.zero_grad()
        before = weight.detach().clone()
        kept = copy.deepcopy(optimizer.state.get(weight, {}))
        for micro in range(2):
            x = data[2 * step + micro]
            hidden = model.fc1(x).clamp(min=0)
            (model.fc2(hidden).pow(2).sum() / 2).backward()
            found = row(monitor, f"actv_{step}-{step}.csv", "fc1.input", micro_step=str(micro))
            assert numbers(found) == pytest.approx(expected(x), abs=1e-6)
            found = row(monitor, f"actv_{step}-{step}.csv", "act.output", micro_step=str(micro))
            assert numbers(found) == pytest.approx(expected(hidden), abs=1e-6)
        grad = weight.grad
        assert grad is not None
        for table in ("grad_unreduced", "grad_reduced"):
            found = row(monitor, f"{table}_{step}-{step}.csv", "fc1.weight")
            assert numbers(found) == pytest.approx(expected(grad), rel=1e-5, abs=1e-6)
            assert found["shape"] == "[5, 4]"
            assert found["dtype"] == "torch.float32"
        optimizer.step()
        for table, t in (("param_origin", before), ("param_updated", weight)):
            found = row(monitor, f"{table}_{step}-{step}.csv", "fc1.weight")
            assert numbers(found) == pytest.approx(expected(t), abs=1e-6)
        for table, t in kept.items():
            if table != "step":
                found = row(monitor, f"{table}_{step}-{step}.csv", "fc1.weight")
                assert numbers(found) == pytest.approx(expected(t), rel=1e-5, abs=1e-9)
    other = row(monitor, "other_1-1.csv", "fc1.weight")
    agreeing = (torch.sign(grad) * torch.sign(kept["exp_avg"])).mean()
    assert float(other["mean"]) == pytest.approx((agreeing.item() + 1) / 2, abs=1e-6)
    assert "exp_avg_0-0.csv" not in files(monitor)


def test_the_gradients_of_activations_are_those_that_autograd_gives():
    monitor = monitored({"xy_distribution": True, "ops": ["min", "max", "norm"], "ndigits": 12}, 1)
    torch.manual_seed(0)
    model, x = Net(), batches(1)[0]
    first = model.fc1(x)
    hidden = first.clamp(min=0)
    y = model.fc2(hidden)
    loss = y.pow(2).sum()
    by_hand = torch.autograd.grad(loss, [first, hidden, y])
    names = ("act.input", "fc2.input", "fc2.output")
    for name, grad in zip(names, by_hand, strict=True):
        found = row(monitor, "actv_grad_0-0.csv", name)
        assert float(found["norm"]) == pytest.approx(grad.double().norm().item(), rel=1e-5)
        assert float(found["max"]) == pytest.approx(grad.max().item(), abs=1e-7)


def test_with_monitor_mbs_grad_each_micro_batch_has_its_gradient():
    config = {"wg_distribution": True, "monitor_mbs_grad": True, "ops": ["norm"], "ndigits": 12}
    monitor = monitored(config, steps=1, accumulated=3)
    found = [r for r in rows(monitor, "grad_unreduced_0-0.csv") if r["name"] == "fc2.bias"]
    assert [r["micro_step"] for r in found] == ["0", "1", "2"]
    torch.manual_seed(0)
    model = Net()
    for x, each in zip(batches(3), found, strict=True):
        (model(x).pow(2).sum() / 3).backward()
        grad = model.fc2.bias.grad
        assert grad is not None
        assert float(each["norm"]) == pytest.approx(grad.double().norm().item(), rel=1e-5)


def test_a_nan_and_an_infinity_spread_as_in_the_monitor():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))
            self.nan, self.inf, self.both = nn.Identity(), nn.Identity(), nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            self.nan(torch.tensor([1.0, torch.nan, torch.inf]))
            self.inf(torch.tensor([1.0, torch.inf]))
            self.both(torch.tensor([-torch.inf, torch.inf, 0.0]))
            return x * self.scale

    config = {"xy_distribution": True, "ops": ["min", "max", "mean", "norm", "zeros", "nans"]}
    monitor = monitored(config, 1, model=Odd())
    values = {
        name: [row(monitor, "actv_0-0.csv", f"{name}.output")[op] for op in config["ops"]]
        for name in ("nan", "inf", "both")
    }
    assert values["nan"] == ["nan", "nan", "nan", "nan", "0.0", "1"]
    assert values["inf"] == ["1.0", "inf", "inf", "inf", "0.0", "0"]
    assert values["both"] == ["-inf", "inf", "nan", "inf", "0.333333", "0"]


# -- names ------------------------------------------------------------------------------------------


class Many(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pair = nn.Bilinear(2, 3, 4)
        self.twice = nn.Linear(4, 4)
        self.lstm = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.pair(x[:, :2], x[:, 1:])
        y = self.twice(self.twice(y))
        return self.lstm(y.unsqueeze(1))[0]


def test_several_inputs_outputs_and_calls_have_numbers():
    monitor = monitored(
        {"xy_distribution": True, "forward_only": True, "ops": ["min"]}, 1, model=Many()
    )
    names = [r["name"] for r in rows(monitor, "actv_0-0.csv")]
    assert names == [
        *("pair.input_0", "pair.input_1", "pair.output"),
        *("twice.input", "twice.output", "twice.input#1", "twice.output#1"),
        *("lstm.input", "lstm.output_0", "lstm.output_1.0", "lstm.output_1.1"),
        *(".input", ".output"),
    ]


def test_keyword_arguments_are_numbered_behind_the_others():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainerMon({"xy_distribution": True, "ops": ["max"]})
    monitor.set_monitor(model, optimizer)
    with no_faults():
        model(batches(1)[0], scale=torch.tensor(7.0)).sum().backward()
        optimizer.step()
    monitor.stop()
    assert row(monitor, "actv_0-0.csv", ".input_1")["max"] == "7.0"


def test_targets_choose_modules_by_name_and_parameters_by_how_they_begin():
    monitor = monitored({**ALL, "targets": {"fc1": {}}}, 1)
    assert {r["name"] for r in rows(monitor, "actv_0-0.csv")} == {"fc1.input", "fc1.output"}
    found = {r["name"] for r in rows(monitor, "param_origin_0-0.csv")}
    assert found == {"fc1.weight", "fc1.bias"}


def test_with_all_xy_every_module_is_written_and_only_the_parameters_of_targets():
    monitor = monitored({**ALL, "all_xy": True, "targets": {"fc1": {}}}, 1)
    assert len(rows(monitor, "actv_0-0.csv")) == 8
    assert {r["name"] for r in rows(monitor, "grad_reduced_0-0.csv")} == {"fc1.weight", "fc1.bias"}


def test_a_list_of_models_is_told_apart_by_its_stage():
    torch.manual_seed(0)
    model = [nn.Linear(4, 4), nn.Linear(4, 2)]
    optimizer = torch.optim.SGD([*model[0].parameters(), *model[1].parameters()], lr=0.1)
    monitor = TrainerMon(
        {"xy_distribution": True, "forward_only": True, "ops": ["min"], "targets": {"1:": {}}}
    )
    monitor.set_monitor(model, optimizer)
    with no_faults():
        model[1](model[0](batches(1)[0])).sum().backward()
        optimizer.step()
    monitor.stop()
    found = rows(monitor, "actv_0-0.csv")
    assert [(r["vpp_stage"], r["name"]) for r in found] == [("1", ".input"), ("1", ".output")]


def test_squash_name_cuts_what_stands_before_the_layers():
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(4, 2)])})

        def forward(self, x: Tensor) -> Tensor:
            return self.module["layers"][0](x)

    config = {**ALL, "squash_name": True, "targets": {"layers.0": {}}}
    monitor = monitored(config, 1, model=Deep())
    assert [r["name"] for r in rows(monitor, "actv_0-0.csv")] == [
        "layers.0.input",
        "layers.0.output",
    ]
    assert [r["name"] for r in rows(monitor, "param_origin_0-0.csv")] == [
        "layers.0.weight",
        "layers.0.bias",
    ]


def test_of_two_names_that_would_be_cut_alike_one_is_whole():
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.ModuleDict({"layers": nn.Linear(4, 4)})
            self.b = nn.ModuleDict({"layers": nn.Linear(4, 4)})

        def forward(self, x: Tensor) -> Tensor:
            return self.b["layers"](self.a["layers"](x))

    monitor = monitored({**ALL, "squash_name": True}, 1, model=Deep())
    found = [r["name"] for r in rows(monitor, "param_origin_0-0.csv")]
    assert found == ["layers.weight", "layers.bias", "b.layers.weight", "b.layers.bias"]
    gradients = [r["name"] for r in rows(monitor, "grad_unreduced_0-0.csv")]
    assert sorted(gradients) == sorted(found)


# -- steps ------------------------------------------------------------------------------------------


def test_steps_are_chosen_by_start_interval_and_times():
    config = {
        "wg_distribution": True,
        "ops": ["norm"],
        "start_step": 1,
        "step_interval": 2,
        "collect_times": 2,
    }
    monitor = monitored(config, 7)
    assert files(monitor) == [
        f"{table}_{n}-{n}.csv" for table in ("grad_reduced", "grad_unreduced") for n in (1, 3)
    ]
    assert monitor.run is not None
    assert not monitor.run.is_open


def test_what_is_over_leaves_nothing_attached():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainerMon({"wg_distribution": True, "ops": ["norm"], "collect_times": 1})
    monitor.set_monitor(model, optimizer)
    train(model, optimizer, [[x] for x in batches(2)])
    assert len(torch_optimizer._global_optimizer_post_hooks) == 0  # without `stop()`


def test_several_steps_are_in_one_file():
    monitor = monitored({"wg_distribution": True, "ops": ["norm"], "step_count_per_record": 2}, 3)
    assert files(monitor) == [
        f"{table}_{part}.csv"
        for table in ("grad_reduced", "grad_unreduced")
        for part in ("0-1", "2-3")
    ]
    assert {r["step"] for r in rows(monitor, "grad_reduced_0-1.csv")} == {"0", "1"}


def test_the_first_step_may_have_another_number():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainerMon({"wg_distribution": True, "ops": ["norm"]})
    monitor.set_monitor(model, optimizer, start_iteration=40)
    train(model, optimizer, [[x] for x in batches(2)])
    monitor.stop()
    assert files(monitor) == [
        f"{table}_{n}-{n}.csv" for table in ("grad_reduced", "grad_unreduced") for n in (40, 41)
    ]


def test_each_step_is_written_when_the_optimizer_has_stepped_and_no_later():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainerMon({"wg_distribution": True, "ops": ["norm"]})
    monitor.set_monitor(model, optimizer)
    train(model, optimizer, [batches(1)])
    assert files(monitor) == ["grad_reduced_0-0.csv", "grad_unreduced_0-0.csv"]
    monitor.stop()


def test_the_folder_of_an_earlier_time_is_appended_to(tmp_path):
    first = monitored({"wg_distribution": True, "ops": ["norm"], "step_count_per_record": 9}, 1)
    assert first.folder is not None
    stamp = first.folder.name[:14]
    assert re.fullmatch(r"[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d", stamp)
    config = {"wg_distribution": True, "ops": ["norm"], "step_count_per_record": 9}
    second = monitored({**config, "append_output": [stamp, stamp]}, 2)
    assert second.folder == first.folder
    assert len(rows(second, "grad_reduced_0-8.csv")) == 3 * 4
    with pytest.raises(ConfigError, match="no folder of rank 0"):
        monitored({**config, "append_output": ["Jan01_00-00-00", "Jan01_00-00-01"]}, 1)


def test_a_rank_that_is_not_named_writes_nothing(tmp_path):
    monitor = monitored({"wg_distribution": True, "module_ranks": [3]}, 1)
    assert monitor.run is None
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_has_become_long_is_left_behind(monkeypatch):
    from probe_nb.monitor import stepping

    monkeypatch.setattr(stepping, "ROWS", 30)
    monitor = monitored({"wg_distribution": True, "ops": ["norm"]}, 9)
    assert monitor.run is not None
    assert 0 < len(monitor.run) <= 30 + 12
    assert len(files(monitor)) == 2 * 9
    whole = monitored({"wg_distribution": True, "ops": ["norm"]}, 9)
    for name in files(monitor):
        assert rows(monitor, name) == rows(whole, name) or "0-0" in name


# -- a configuration that changes -------------------------------------------------------------------


def test_a_configuration_that_changes_holds_from_the_next_step_on(tmp_path, monkeypatch):
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    path = tmp_path / "config.json"
    config = {"wg_distribution": True, "ops": ["norm"], "dynamic_on": False, "collect_times": 2}
    path.write_text(json.dumps(config))
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainerMon(path)
    monitor.set_monitor(model, optimizer)
    data = [[x] for x in batches(9)]
    train(model, optimizer, data[:2])
    assert monitor.folder is None
    path.write_text(json.dumps({**config, "dynamic_on": True}))
    os.utime(path, ns=(1, 1))
    train(model, optimizer, data[2:6])  # seen after step 2; steps 3 and 4 are collected
    assert [name for name in files(monitor) if "reduced_" in name and "un" not in name] == [
        "grad_reduced_3-3.csv",
        "grad_reduced_4-4.csv",
    ]
    assert json.loads(path.read_text())["dynamic_on"] is False
    path.write_text(json.dumps({**config, "dynamic_on": True, "collect_times": 1}))
    os.utime(path, ns=(2, 2))
    train(model, optimizer, data[6:8])
    assert "grad_reduced_7-7.csv" in files(monitor)
    monitor.stop()


def test_a_changed_configuration_that_is_wrong_is_told_and_not_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"dynamic_on": True, "wrong": 1}))
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="wrong"):
        TrainerMon(path)
    path.write_text(json.dumps({"dynamic_on": False}))
    monitor = TrainerMon(path)
    monitor.set_monitor(model, optimizer)
    path.write_text("{")
    os.utime(path, ns=(1, 1))
    with pytest.warns(ProbeWarning, match="not read again"):
        train(model, optimizer, [batches(1)])
    monitor.stop()


# -- alerts, stacks, features -------------------------------------------------------------------------


def test_rules_find_a_nan_and_a_jump_and_write_them(tmp_path, caplog):
    rules = [
        {"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}},
        {"rule_name": "AnomalyNan", "args": {"threshold": 1e10}},
    ]
    config = {
        "xy_distribution": True,
        "ops": ["mean", "max"],
        "alert": {"rules": rules, "dump": True},
    }
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    nn.init.ones_(model[0].weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    monitor = TrainerMon(config)
    monitor.set_monitor(model, optimizer)
    with caplog.at_level(logging.INFO, logger="probe_nb.monitor"):
        for x in (1.0, 1.1, torch.nan, 1.2, 9.0):  # a NaN does not spoil what comes after it
            model(torch.tensor([[x]])).sum().backward()
            optimizer.step()
    monitor.stop()
    path = tmp_path / "anomaly_detected" / "rank0" / "anomaly.json"
    found = [
        v
        for v in json.loads(path.read_text()).values()
        if v["tag_name"] == "0:0.input:0/rank0/actv"
    ]
    assert [v["step"] for v in found] == [2, 4]
    # the mean of |x| with weight 0.99 for what was: 1, 1, 1.001, (NaN), 1.00299
    assert found[1]["message"] == (
        "Rule AnomalyTurbulence reports anomaly signal in ('0:0.input:0/rank0/actv', 'mean') at "
        "step 4, current value 9.0, history mean 1.0029900007963180."
    ) or float(found[1]["message"].split()[-1][:-1]) == pytest.approx(1.00299, abs=1e-6)
    assert "AnomalyNan" in found[0]["message"]
    assert len([a for a in monitor.anomalies if a.tag_name.startswith("0:0.input")]) == 3
    assert "AnomalyTurbulence" in caplog.text


def test_anomalies_of_every_step_are_in_the_file_and_the_first_in_memory(tmp_path, monkeypatch):
    from probe_nb.monitor import alerts

    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path))
    monkeypatch.setattr(alerts, "_MOST", 5)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rule = {"rule_name": "AnomalyNan", "args": {"threshold": 0.5}}
    config = {"xy_distribution": True, "ops": ["max"], "alert": {"rules": [rule], "dump": True}}
    monitor = TrainerMon(config)
    monitor.set_monitor(model, optimizer)
    path = tmp_path / "anomaly_detected" / "rank0" / "anomaly.json"
    assert json.loads(path.read_text()) == {}
    steps, sizes = 6, []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(steps):
            model(torch.full((3, 2), 2.0 + step)).sum().backward()
            optimizer.step()
            found = json.loads(path.read_text())  # whole after each step
            sizes.append(len(found))
            assert {each["step"] for each in found.values()} == set(range(step + 1))
    monitor.stop()
    assert [each for each in caught if "more than 5 anomalies" in str(each.message)]
    assert len([each for each in caught if "anomalies" in str(each.message)]) == 1
    assert len(monitor.anomalies) == 5 < len(found)
    assert sizes == sorted(sizes)
    numbers = [
        float(each["message"].split("current value ")[1].split(",")[0])
        for name, each in found.items()
        if "input" in name and "actv" in name and "grad" not in name
    ]
    assert numbers == [2.0 + step for step in range(steps)]


def test_a_module_whose_input_has_no_gradient_is_no_anomaly():
    rules = {"rules": [{"rule_name": "AnomalyNan"}]}
    monitor = monitored({"xy_distribution": True, "ops": ["mean"], "alert": rules}, 1)
    assert monitor.anomalies == []


def test_stacks_are_written_once_and_begin_with_lines_of_the_users():
    monitor = monitored({"xy_distribution": True, "ops": ["min"], "stack_info": True}, 2)
    found = {r["module_name"]: r["stack_info"] for r in rows(monitor, "stack_info.csv")}
    assert set(found) == {"0:", "0:fc1", "0:act", "0:fc2"}
    assert "self.fc2(self.act(self.fc1(x)))" in found["0:fc1"]
    assert "torch/nn/modules" not in found["0:fc1"]


def test_features_of_weights_and_attentions_have_tables_of_their_own():
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.proj = nn.Linear(4, 4)
            self.core = Core()

        def forward(self, x: Tensor) -> Tensor:
            q = self.proj(x).reshape(3, 1, 1, 4)  # s, b, h, d
            return self.core(q, q, q)

    class Core(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return v * 1

    config = {
        "recording_l2_features": True,
        "l2_targets": {"linear_hook": [], "attention_hook": ["0:core"]},
        "ops": ["min"],
        "ndigits": 12,
    }
    torch.manual_seed(0)
    model, x = Attends(), batches(1)[0]
    before = model.proj.weight.detach().double().numpy().copy()
    with torch.no_grad():
        q = model.proj(x).double().numpy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainerMon(config)
    monitor.set_monitor(model, optimizer)
    with no_faults():
        model(x).sum().backward()
        optimizer.step()
    monitor.stop()
    sigma = np.linalg.svd(before, compute_uv=False)
    found = row(monitor, "linear_hook_0-0.csv", "proj.linear")
    assert float(found["kernel_norm"]) == pytest.approx(sigma[0], rel=1e-6)
    assert float(found["sr"]) == pytest.approx(np.linalg.norm(before) / sigma[0], rel=1e-6)
    entropies = []
    for place in range(3):
        s = np.array([q[place] @ q[other] / 2 for other in range(place + 1)])
        p = np.exp(s - s.max()) / np.exp(s - s.max()).sum()
        entropies.append(-(p * np.log(p)).sum())
    found = row(monitor, "attention_hook_0-0.csv", "core.attention")
    assert float(found["entropy"]) == pytest.approx(np.mean(entropies), rel=1e-5)


# -- the laws ---------------------------------------------------------------------------------------


def test_training_under_every_key_is_bit_identical(monkeypatch):
    def parameters(config: dict[str, Any] | None) -> list[Tensor]:
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        monitor = None if config is None else TrainerMon(config)
        if monitor is not None:
            monitor.set_monitor(model, optimizer, grad_acc_steps=2)
        data = batches(6)
        train(model, optimizer, [data[i : i + 2] for i in (0, 2, 4)])
        if monitor is not None:
            monitor.stop()
        return list(model.parameters())

    features = {"recording_l2_features": True, "l2_targets": {"linear_hook": []}}
    everything = {**ALL, **features, "ur_distribution": True, "stack_info": True}
    plain, watched = parameters(None), parameters(everything)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


def test_a_disk_that_is_full_stops_no_training(monkeypatch):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainerMon({"wg_distribution": True, "ops": ["norm"]})
    monitor.set_monitor(model, optimizer)

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "open", full)
    with pytest.warns(ProbeWarning, match="no space left"):
        train(model, optimizer, [batches(1)])
    monkeypatch.undo()
    train(model, optimizer, [batches(1)])
    assert files(monitor) == ["grad_reduced_1-1.csv", "grad_unreduced_1-1.csv"]
    monitor.stop()


def test_a_monitor_that_watches_is_not_started_again():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with TrainerMon({"wg_distribution": True}) as monitor:
        monitor.set_monitor(model, optimizer)
        with pytest.raises(SessionStateError, match="stop"):
            monitor.set_monitor(model, optimizer)
    monitor.monitor_gnorm_with_ad(model, optimizer)  # the name of earlier versions
    monitor.stop()


def test_without_an_optimizer_there_are_no_steps():
    with pytest.raises(ConfigError, match="optimizer"):
        TrainerMon({"wg_distribution": True}).set_monitor(Net(), None)
