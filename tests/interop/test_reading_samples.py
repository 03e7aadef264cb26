"""Dumps that msProbe 26.2 wrote are read as runs: every number, place and order of them."""

import json
import math
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch

import probe_nb as probe

SAMPLES = Path(__file__).parent / "samples"
DUMPS = SAMPLES / "dumps"
NAMES = sorted(each.name for each in DUMPS.iterdir())


def loaded(name, step=0):
    (path,) = [*(DUMPS / name / f"step{step}").glob("*/d*.json")]
    return json.loads(path.read_text())


def tensors_in(node):
    """Count tensors by themselves, in whatever they are nested."""
    if isinstance(node, dict):
        if isinstance(node.get("type"), str):
            return int("shape" in node)
        return sum(map(tensors_in, node.values()))
    return sum(map(tensors_in, node)) if isinstance(node, list) else 0


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_of_a_dump_is_a_record(name):
    run = probe.read_dump(DUMPS / name, step=0)
    assert len(run) == tensors_in(loaded(name)["data"]) > 0
    assert not [text for text in run.info.notices if "skipped" in text]
    said = loaded(name)
    assert run.info.config["dump"]["level"] == said["level"]
    assert run.info.config["dump"]["task"] == said["task"]
    assert f"level {said['level']}, task {said['task']}, framework pytorch" in run.info.notices[0]


def test_numbers_are_those_of_the_dump():
    run = probe.read_dump(DUMPS / "statistics_L0_statistics", step=0)
    entry = loaded("statistics_L0_statistics")["data"]["Module.cnn.features.0.Conv2d.forward.0"]
    row = run.frame(module="cnn.features.0", role="output").iloc[0]
    there = entry["output"][0]
    assert (row["max"], row["min"], row["mean"], row["l2"]) == tuple(
        there[n] for n in ("Max", "Min", "Mean", "Norm")
    )
    assert row["absmax"] == max(abs(there["Max"]), abs(there["Min"]))
    assert (row["dtype"], row["shape"], row["numel"]) == ("float32", (4, 8, 8, 8), 2048)
    assert row["requires_grad"]
    assert (row["type"], row["call"], row["step"], row["status"]) == ("Conv2d", 0, 0, "ok")
    assert pd.isna(row["std"])
    assert (row["nan_count"], row["posinf_count"], row["neginf_count"]) == (0, 0, 0)
    assert pd.isna(row["zero_count"])
    parameters = run.frame(module="cnn.features.0", role="param")
    assert parameters["leaf"].tolist() == ["weight", "bias"]
    assert parameters["max"].tolist() == [entry["parameters"][n]["Max"] for n in ("weight", "bias")]


def test_what_arrives_and_leaves_in_the_backward_has_our_names():
    run = probe.read_dump(DUMPS / "statistics_L0_statistics", step=0)
    data = loaded("statistics_L0_statistics")["data"]
    entry = data["Module.tf.head.Linear.backward.0"]
    assert run.frame(module="tf.head", role="grad_output")["l2"].item() == entry["input"][0]["Norm"]
    assert run.frame(module="tf.head", role="grad_input")["l2"].item() == entry["output"][0]["Norm"]
    grads = run.frame(module="tf.head", role="param_grad")
    said = data["Module.tf.head.Linear.parameters_grad.0"]
    assert dict(zip(grads["leaf"], grads["l2"], strict=True)) == {
        n: t[0]["Norm"] for n, t in said.items()
    }
    assert set(grads["direction"]) == {"backward"}


def test_records_stand_in_execution_order_and_not_in_that_of_the_file():
    run = probe.read_dump(DUMPS / "statistics_L0_statistics", step=0)
    forward = run.frame(direction="forward", role=["input", "output"])
    first = forward[["module", "role"]].astype(str).apply(tuple, axis=1).tolist()[:5]
    assert first == [
        ("cnn", "input"),
        ("cnn.features", "input"),
        ("cnn.features.0", "input"),
        ("cnn.features.0", "output"),
        ("cnn.features.1", "input"),
    ]
    ends = forward[forward["role"] == "output"]["module"].tolist()
    assert ends == [
        name.split(".forward.")[0].removeprefix("Module.").rpartition(".")[0]
        for name, entry in loaded("statistics_L0_statistics")["data"].items()
        if ".forward." in name
        for _ in range(tensors_in(entry["output"]))
    ]
    assert run.df["order"].tolist() == list(range(len(run)))


def test_calls_have_the_parents_of_construct_and_the_lines_of_stack():
    run = probe.read_dump(DUMPS / "statistics_mix_statistics", step=0)
    calls = run.calls()
    (path,) = [*(DUMPS / "statistics_mix_statistics/step0").glob("*/construct.json")]
    construct = json.loads(path.read_text())
    conv = calls[(calls["api"] == "Functional.conv2d") & (calls["call"] == 0)].iloc[0]
    assert construct["Functional.conv2d.0.forward"] == "Module.cnn.features.0.Conv2d.forward.0"
    assert calls.loc[conv["parent"], "module"] == "cnn.features.0"
    assert conv["module"] == "cnn.features.0"
    assert (calls["parent"].dropna() < calls.index[calls["parent"].notna()]).all()
    up, paths = conv["parent"], []
    while not pd.isna(up):
        paths.append(calls.loc[up, "module"])
        up = calls.loc[up, "parent"]
    assert paths == ["cnn.features.0", "cnn.features", "cnn"]
    assert "in forward\n    return self.cnn(img) + self.tf(ids, mask=mask)" in conv["stack"]


def test_what_is_no_tensor_is_among_the_values():
    run = probe.read_dump(DUMPS / "statistics_mix_statistics", step=0)
    values = run.values()
    norm = values[(values["api"] == "Functional.batch_norm") & (values["call"] == 0)]
    assert dict(zip(norm["leaf"], norm["value"], strict=True)) == {"5": True, "6": 0.1, "7": 1e-05}
    assert norm["kind"].tolist() == ["bool", "float", "float"]
    inplace = values[values["leaf"] == "kwargs.inplace"]
    assert set(inplace["module"]) == {"cnn.features.2", "cnn.features.5"}


def test_saved_values_and_their_gradients_are_read():
    run = probe.read_dump(DUMPS / "misc_save")
    rows = (
        run.df[["api", "role", "direction", "leaf", "call", "max"]]
        .astype({"api": str, "role": str, "direction": str, "leaf": str})
        .values.tolist()
    )
    said = loaded("misc_save")["data"]
    assert rows == [
        ["blob", "value", "forward", "h", 0, said["blob.0.debug"]["h"]["Max"]],
        ["blob", "value", "forward", "lst.0", 0, said["blob.0.debug"]["lst"][0]["Max"]],
        ["blob", "value", "backward", "h", 0, 1.0],
        ["blob", "value", "forward", "", 1, said["blob.1.debug"]["Max"]],
        ["blob", "value", "backward", "", 1, 1.0],
    ]
    values = run.values()
    assert values[values["direction"] == "forward"]["value"].tolist() == [1, "a"]


def test_the_index_of_a_model_in_a_list_is_its_name():
    run = probe.read_dump(DUMPS / "misc_list_models")
    assert set(run.df["model"]) == {"0"}
    assert list(dict.fromkeys(run.df["module"])) == ["0", "1", "2"]
    assert "read as that of a model" in run.info.notices[0]


@pytest.mark.parametrize("name", ["statistics_L0_md5", "statistics_L0_xor"])
def test_checksums_are_in_their_column(name):
    run = probe.read_dump(DUMPS / name)
    said = loaded(name)["data"]["Module.cnn.features.0.Conv2d.forward.0"]["input_args"][0]["md5"]
    row = run.frame(module="cnn.features.0", role="input").iloc[0]
    assert row["checksum"] == said
    assert row["status"] == ("ok" if name.endswith("md5") else "not_asked")


def test_tensors_are_listed_and_read_one_by_one():
    run = probe.read_dump(DUMPS / "tensor_L0_statistics")
    kept = run.kept()
    assert len(kept) == len(run) == 34
    assert set(kept["status"]) == {"kept"}
    found = run.tensor("tf.head", "param", leaf="weight")
    (path,) = (DUMPS / "tensor_L0_statistics").rglob("*head.Linear.forward.0.parameters.weight.pt")
    assert torch.equal(found, torch.load(path, weights_only=True))
    row = run.frame(module="tf.head", role="param", leaf="weight")
    assert found.max().item() == row["max"].item()
    grad = run.tensor("tf.head", "param_grad", leaf="bias")
    assert grad.norm().item() == pytest.approx(
        run.frame(module="tf.head", role="param_grad", leaf="bias")["l2"].item(), rel=1e-6
    )


def test_a_run_of_a_dump_is_saved_and_loaded_with_all_that_it_knew(tmp_path):
    run = probe.read_dump(DUMPS / "tensor_L0_statistics")
    again = probe.load(run.save(tmp_path / "run.parquet"))
    pd.testing.assert_frame_equal(again.df, run.df)
    pd.testing.assert_frame_equal(again.values(), run.values())
    pd.testing.assert_frame_equal(again.calls(), run.calls())
    assert len(again.kept()) == 34
    assert torch.equal(again.tensor("tf.head", "output"), run.tensor("tf.head", "output"))


def test_steps_and_files_can_be_chosen():
    both = probe.read_dump(DUMPS / "statistics_L0_statistics")
    assert both.history("tf.head", stat="l2").index.tolist() == [0, 1]
    one = probe.read_dump(DUMPS / "statistics_L0_statistics", step=1)
    assert set(one.df["step"]) == {1}
    (file,) = (DUMPS / "statistics_L0_statistics/step1").glob("*/dump.json")
    for path in (file, file.parent, file.parent.parent):
        pd.testing.assert_frame_equal(probe.read_dump(path).df, one.df)
    with pytest.raises(probe.errors.SelectionError, match="Steps: 0, 1"):
        probe.read_dump(DUMPS / "statistics_L0_statistics", step=7)


def test_infinity_that_was_fed_is_the_first_that_is_not_finite():
    run = probe.read_dump(DUMPS / "inf_1")
    row = run.frame(role="output").iloc[0]
    assert (row["status"], row["max"], row["min"], row["nan_count"], row["neginf_count"]) == (
        "has_inf",
        math.inf,
        0.0,
        0,
        0,
    )
    assert pd.isna(row["posinf_count"])
    origin = run.first_nonfinite()
    assert (origin.module, origin.role, origin.kind, origin.phase) == (
        "0",
        "input",
        "+Inf",
        "input",
    )
    assert "how many is not in the dump" in origin.detail
    assert probe.read_dump(DUMPS / "inf_-1").first_nonfinite() is None  # as masks are written
    assert "+Inf, not counted" in repr(run)


def test_the_first_nan_is_where_msprobe_finds_the_overflow(tmp_path):
    (found,) = json.loads((SAMPLES / "compare/overflow.json").read_text())["rank_0"]
    tensor = found["data_info"]["input_args"][0]
    entry = {"input_args": [tensor], "input_kwargs": {}, "output": [tensor], "parameters": {}}
    spoilt = found["data_info"]["output"]
    data = {
        "Module.0.Linear.forward.0": entry,
        found["op_name"]: found["data_info"],
        found["construct_info"][0]: entry | {"output": spoilt},
        "Module.2.Linear.forward.0": entry | {"input_args": spoilt, "output": spoilt},
    }
    folder = tmp_path / "step0" / "rank0"
    folder.mkdir(parents=True)
    (folder / "dump.json").write_text(
        json.dumps(
            {
                "task": "statistics",
                "level": "mix",
                "framework": "pytorch",
                "dump_data_dir": None,
                "data": data,
            }
        )
    )
    (folder / "construct.json").write_text(
        json.dumps(
            {
                found["op_name"]: found["construct_info"][0],
                found["construct_info"][0]: None,
                "Module.0.Linear.forward.0": None,
                "Module.2.Linear.forward.0": None,
            }
        )
    )
    run = probe.read_dump(tmp_path)
    origin = run.first_nonfinite()
    assert found["op_name"] == "Torch.log.0.forward"
    assert (origin.module, origin.kind, origin.role, origin.phase) == (
        "1",
        "NaN",
        "output",
        "forward",
    )
    assert origin.rows["api"].iloc[0] == "Torch.log"
    assert "NaN among 8 elements, how many is not in the dump" in origin.detail
    assert set(run.frame(module="2")["status"]) == {"has_nan"}
    assert run.findings()["kind"].tolist()[0] == "non_finite"
    assert run.frame(module="2")["max"].isna().all()


def test_dumps_of_checksums_alone_are_compared_by_them(tmp_path):
    source = DUMPS / "statistics_L0_xor"
    run = probe.read_dump(source)
    assert "Checksums alone were recorded" in str(run)
    same = probe.compare(run, run)
    assert set(same.df["verdict"]) == {"same"}
    shutil.copytree(source, tmp_path / "other")
    (file,) = (tmp_path / "other/step0").glob("*/dump.json")
    data = json.loads(file.read_text())
    changed = data["data"]["Module.cnn.features.0.Conv2d.forward.0"]["output"][0]
    changed["md5"] = "0x" + "1" * 16
    file.write_text(json.dumps(data))
    found = probe.compare(run, probe.read_dump(tmp_path / "other")).first_divergence()
    assert (found.module, found.role) == ("cnn.features.0", "output")
    assert "checksums differ" in found.detail
