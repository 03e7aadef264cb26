"""Every key of both monitors' configurations: taken, or refused with the reason."""

from __future__ import annotations

import json

import pytest

from probe_nb.errors import ConfigError, ProbeError
from probe_nb.monitor import TrainerMon, TrainerMonitorV2
from probe_nb.monitor.settings import read

WHOLE = {
    "targets": {"fc1": {"input": "tuple[2]:0", "output": "tensor"}},
    "l2_targets": {"linear_hook": [], "attention_hook": ["0:attn"]},
    "recording_l2_features": True,
    "sa_order": "b, s, h, d",
    "print_struct": False,
    "module_ranks": [0, 1],
    "start_step": 3,
    "collect_times": 10,
    "step_interval": 2,
    "format": "csv",
    "ops": ["norm", "min", "max", "zeros", "nans", "id", "mean", "shape", "dtype"],
    "eps": 1e-6,
    "ndigits": 9,
    "xy_distribution": True,
    "all_xy": True,
    "forward_only": False,
    "backward_only": True,
    "wg_distribution": True,
    "mv_distribution": True,
    "param_distribution": True,
    "ur_distribution": True,
    "mg_direction": True,
    "cc_distribution": {"enable": False, "cc_codeline": [], "cc_pre_hook": False},
    "alert": {
        "rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}}],
        "dump": True,
    },
    "stack_info": True,
    "monitor_mbs_grad": True,
    "squash_name": True,
    "dynamic_on": True,
    "step_count_per_record": 5,
    "append_output": ["Dec03_21-34-40", "Dec03_21-34-41"],
    "micro_batches": 4,
}


def test_the_whole_configuration_is_taken():
    settings = read(WHOLE)
    assert settings.eps == 1e-6
    assert settings.numbers["ndigits"] == 9
    assert settings.numbers["micro_batches"] == 4
    assert settings.targets == ("fc1",)
    assert settings.order == "bshd"
    assert settings.ranks == (0, 1)
    assert [n for n in range(30) if settings.wants(n)] == list(range(3, 23, 2))
    assert "actv" not in settings.layout().tables
    assert "actv_grad" in settings.layout().tables


def test_what_is_not_given_is_as_in_msprobe():
    settings = read({})
    assert settings.ops == ("norm", "shape", "dtype")
    assert settings.eps == 1e-8
    assert settings.numbers["ndigits"] == 6
    assert settings.numbers["step_interval"] == 1
    assert settings.layout().tables == ()


def test_shape_and_dtype_are_always_written():
    assert read({"ops": ["min"]}).ops == ("min", "shape", "dtype")


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"traget": {}}, "`targets`"),
        ({"targets": []}, "give an object"),
        ({"ops": ["maxx"]}, "closest"),
        ({"ops": "min"}, "give a list"),
        ({"eps": 1}, "above 0"),
        ({"eps": -1e-8}, "above 0"),
        ({"ndigits": 21}, "20 digits"),
        ({"ndigits": 0}, "from 1 on"),
        ({"xy_distribution": 1}, "true or false"),
        ({"forward_only": True, "backward_only": True}, "leave nothing"),
        ({"cc_distribution": {"enable": True}}, 'level="mix"'),
        ({"alert": {"rules": [{"rule_name": "Other"}]}}, "AnomalyNan"),
        ({"alert": {"rules": [{"rule_name": "AnomalyTurbulence"}]}}, "threshold"),
        (
            {"alert": {"rules": [{"rule_name": "AnomalyNan", "args": {"threshold": -1}}]}},
            "threshold",
        ),
        ({"alert": {"rules": [], "dump": 1}}, "true or false"),
        ({"format": "api"}, "run.df"),
        ({"format": "xlsx"}, "tensorboard"),
        ({"sa_order": "h,b"}, "s,b,h,d"),
        ({"l2_targets": {"linear": []}}, "linear_hook"),
        ({"l2_targets": {"attention_hook": []}}, "names none"),
        ({"module_ranks": ["1"]}, "whole numbers"),
        ({"append_output": ["Dec03_21-34-40"]}, "first and the last"),
        ({"start_step": -1}, "from 0 on"),
        ({"step_interval": 0}, "from 1 on"),
        ({"step_count_per_record": True}, "from 1 on"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_would_do(config, text):
    with pytest.raises(ConfigError, match=text):
        TrainerMon(config)


def test_a_file_that_is_no_json_is_refused(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{")
    for door in (TrainerMon, TrainerMonitorV2):
        with pytest.raises(ConfigError, match="not JSON"):
            door(path)
    path.write_text("[]")
    for door in (TrainerMon, TrainerMonitorV2):
        with pytest.raises(ConfigError, match="JSON object"):
            door(path)
    with pytest.raises(FileNotFoundError):
        TrainerMon(tmp_path / "none.json")


def test_a_configuration_that_asks_for_nothing_is_refused_when_it_begins(tmp_path, monkeypatch):
    import torch

    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path))
    model = torch.nn.Linear(1, 1)
    with pytest.raises(ConfigError, match="asks for nothing"):
        TrainerMon({}).set_monitor(model, torch.optim.SGD(model.parameters()))
    assert list(tmp_path.iterdir()) == []


SECOND = {
    "framework": "pytorch",
    "output_dir": "here",
    "rank": [0],
    "start_step": 1,
    "stop_step": 9,
    "step_interval": 2,
    "step_count_per_record": 3,
    "collect_times": 4,
    "patch_optimizer_step": True,
    "async_write": False,
    "format": "csv",
    "monitors": {
        "module": {"enabled": True, "targets": ["fc"], "ops": ["min"], "eps": 1e-8},
        "weight_grad": {"enabled": True, "monitor_mbs_grad": True, "grad_acc_steps": 2},
        "optimizer": {"enabled": True, "mv_distribution": True},
        "param": {"enabled": True, "param_distribution": True},
        "cc": {"enabled": False},
    },
}


def test_no_number_of_backwards_makes_no_step(tmp_path, monkeypatch):
    import torch

    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path))
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    for wrong in (0, -1, True, 1.5, "2"):
        with pytest.raises(ConfigError, match="how many backwards make a step"):
            TrainerMon({"targets": {"": {}}}).set_monitor(model, optimizer, grad_acc_steps=wrong)
        second = TrainerMonitorV2(SECOND | {"output_dir": str(tmp_path / "v2")})
        with pytest.raises(ConfigError, match="how many backwards make a step"):
            second.start(model=model, optimizer=optimizer, micro_batch_number=wrong)


def test_a_configuration_that_an_editor_began_with_a_mark_is_read(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"format": "csv", "ndigits": 4}', encoding="utf-8-sig")
    assert TrainerMon(path).settings.numbers["ndigits"] == 4


def test_the_whole_second_configuration_is_taken(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SECOND))
    assert TrainerMonitorV2(path, fr="pytorch").folder.name == "rank_0"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"frame": 1}, "`framework`"),
        ({"framework": "mindspore"}, "here it is `pytorch`"),
        ({"format": "tensorboard"}, "csv"),
        ({"monitors": {"modul": {}}}, "`module`"),
        ({"monitors": {"module": {"target": []}}}, "`targets`"),
        ({"monitors": {"module": {"ops": ["zeros"]}}}, "no quantity"),
        ({"monitors": {"cc": {"enabled": True}}}, 'level="mix"'),
        ({"monitors": {"param": {}}}, "switches nothing on"),
        ({"monitors": []}, "give an object"),
        ({"rank": "0"}, "a number or a list"),
        ({"step_interval": 0}, "from 1 on"),
    ],
)
def test_what_makes_no_sense_in_the_second_is_refused(change, text):
    with pytest.raises(ProbeError, match=text):
        TrainerMonitorV2({**SECOND, **change})
