"""Folders of every layout and state: what is there is read, what is not is told, nothing else is touched."""

import json
import math
import os
import pickle
import resource
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import probe_nb as probe
from probe_nb.errors import RunFormatError, SelectionError

T = {
    "type": "torch.Tensor",
    "dtype": "torch.float32",
    "shape": [2, 3],
    "Max": 2.0,
    "Min": -1.0,
    "Mean": 0.5,
    "Norm": 3.0,
    "requires_grad": True,
}


def forward(**changes):
    return {
        "input_args": [T | changes],
        "input_kwargs": {},
        "output": [T | changes],
        "parameters": {},
    }


def write(
    folder,
    data,
    *,
    task="statistics",
    level="L0",
    framework="pytorch",
    name="dump.json",
    construct=None,
):
    folder.mkdir(parents=True, exist_ok=True)
    header = {"task": task, "level": level, "framework": framework, "dump_data_dir": None}
    (folder / name).write_text(json.dumps(header | {"data": data}))
    if construct is not None:
        (folder / "construct.json").write_text(json.dumps(construct))
    return folder


def notices(run):
    return "\n".join(run.info.notices)


# -- layouts ----------------------------------------------------------------------------------------


def test_steps_and_ranks_are_told_apart(tmp_path):
    for step in (2, 0, 10):
        for rank in (1, 0):
            write(
                tmp_path / f"step{step}/rank{rank}",
                {"Module.a.Linear.forward.0": forward(Max=float(10 * step + rank))},
            )
    run = probe.read_dump(tmp_path)
    outputs = run.frame(role="output")
    assert outputs[["step", "rank", "max"]].astype(float).values.tolist() == [
        [s, r, 10 * s + r] for s in (0, 2, 10) for r in (0, 1)
    ]
    assert run.df["order"].is_monotonic_increasing
    assert run.info.steps == 3
    assert set(probe.read_dump(tmp_path, rank=1).df["rank"]) == {1}
    assert set(probe.read_dump(tmp_path, step="2-10").df["step"]) == {2, 10}
    one = probe.read_dump(tmp_path / "step10/rank1/dump.json")
    assert one.df[["step", "rank"]].drop_duplicates().values.tolist() == [[10, 1]]


def test_one_process_has_no_rank_and_several_without_one_are_numbered(tmp_path):
    write(tmp_path / "a/step0/proc77", {"Module.a.Linear.forward.0": forward()})
    assert probe.read_dump(tmp_path / "a").df["rank"].isna().all()
    write(tmp_path / "a/step0/proc8", {"Module.a.Linear.forward.0": forward()})
    run = probe.read_dump(tmp_path / "a")
    assert set(run.df["rank"]) == {0, 1}
    assert "0 is proc8, 1 is proc77" in notices(run)


def test_gradients_of_parameters_have_an_index_or_in_old_dumps_none(tmp_path):
    data = {
        "Module.a.Linear.parameters_grad": {"weight": [T]},
        "Module.b.Linear.parameters_grad.1": {"weight": [T]},
    }
    run = probe.read_dump(write(tmp_path, data))
    assert run.df[["module", "role", "leaf", "backward"]].astype(str).values.tolist() == [
        ["a", "param_grad", "weight", "0"],
        ["b", "param_grad", "weight", "1"],
    ]


def test_mindspore_cells_and_types_are_read(tmp_path):
    tensor = {
        "type": "mindspore.Tensor",
        "dtype": "Float32",
        "shape": [4],
        "Max": 1.0,
        "Min": 0.0,
        "Mean": 0.5,
        "Norm": 1.5,
        "data_name": "Cell.net.Dense.forward.0.input.0.npy",
    }
    truth = {
        "type": "mindspore.Tensor",
        "dtype": "Bool",
        "shape": [],
        "Max": False,
        "Min": False,
        "Mean": None,
        "Norm": None,
    }
    data = {
        "Cell.net.Dense.forward.0": {
            "input_args": [tensor],
            "input_kwargs": {},
            "output": [truth],
            "parameters": {},
        },
        "Mint.add.0.forward": {
            "input_args": [tensor | {"dtype": "BFloat16", "data_name": None}],
            "input_kwargs": {},
            "output": [],
        },
    }
    folder = write(tmp_path / "step0/rank0", data, framework="mindspore", task="tensor")
    (folder / "dump_tensor_data").mkdir()
    np.save(
        folder / "dump_tensor_data/Cell.net.Dense.forward.0.input.0.npy",
        np.arange(4, dtype=np.float32),
    )
    run = probe.read_dump(tmp_path)
    assert run.df["dtype"].tolist() == ["float32", "bool", "bfloat16"]
    assert run.df["max"].tolist() == [1.0, 0.0, 1.0]
    assert run.df["module"].tolist() == ["net", "net", ""]
    assert "framework mindspore" in notices(run)
    assert torch.equal(run.tensor("net", "input"), torch.arange(4.0))


def test_msadapter_keeps_the_names_of_modules(tmp_path):
    grads = {
        "weight": [
            T
            | {
                "type": "mindspore.Tensor",
                "dtype": "Float32",
                "data_name": "Module.conv2.Conv2d.parameters_grad.weight.npy",
            }
        ]
    }
    run = probe.read_dump(
        write(
            tmp_path,
            {
                "Module.conv2.Conv2d.forward.0": forward(),
                "Module.conv2.Conv2d.parameters_grad": grads,
            },
            framework="mindtorch",
        )
    )
    assert run.df["role"].tolist() == ["input", "output", "param_grad"]
    assert set(run.df["module"]) == {"conv2"}


def test_arrays_of_static_graphs_are_measured_as_they_are_read(tmp_path):
    x = np.array([[1.0, -3.0, np.nan], [np.inf, 0.0, 5.0]], np.float32)
    folder = tmp_path / "step0/rank0"
    folder.mkdir(parents=True)
    np.save(folder / "x_float32_0.npy", x)
    np.save(folder / "x_grad_float32_0.npy", np.ones(4, np.float32))
    np.save(folder / "evil_float32_0.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    (folder / "broken_float32_1.npy").write_bytes(b"\x93NUMPY nonsense")
    run = probe.read_dump(tmp_path)
    forward, grad = (run.frame(direction=way).iloc[0] for way in ("forward", "backward"))
    finite = np.array([1.0, -3.0, 0.0, 5.0])
    assert (forward["api"], forward["role"], forward["shape"], forward["dtype"]) == (
        "x",
        "value",
        (2, 3),
        "float32",
    )
    assert (
        forward["nan_count"],
        forward["posinf_count"],
        forward["neginf_count"],
        forward["zero_count"],
    ) == (1, 1, 0, 1)
    assert [forward[n] for n in ("min", "max", "mean", "std", "l2", "absmax")] == pytest.approx(
        [-3, 5, finite.mean(), finite.std(), np.linalg.norm(finite), 5]
    )
    assert (grad["api"], grad["l2"]) == ("x", 2.0)
    assert len(run) == 2
    assert notices(run).count("it is no array") == 2
    assert run.first_nonfinite().kind == "NaN"


# -- names ------------------------------------------------------------------------------------------


def test_a_gradient_is_told_from_a_value_whose_name_ends_like_one(tmp_path):
    data = {"x_grad.0.debug": T, "y.0.debug": T, "y_grad.0.debug": T}
    run = probe.read_dump(write(tmp_path, data, name="debug.json", level="debug"))
    assert run.df[["api", "direction"]].astype(str).values.tolist() == [
        ["x_grad", "forward"],
        ["y", "forward"],
        ["y", "backward"],
    ]


def test_the_index_of_a_model_is_told_from_the_name_of_a_module(tmp_path):
    listed = {"Module.0.fc.Linear.forward.0": None, "Module.1.fc.Linear.forward.0": None}
    run = probe.read_dump(write(tmp_path / "a", dict.fromkeys(listed, forward()), construct=listed))
    assert run.df[["model", "module"]].drop_duplicates().astype(str).values.tolist() == [
        ["0", "fc"],
        ["1", "fc"],
    ]
    nested = {
        "Module.0.0.Linear.forward.0": "Module.0.Sequential.forward.0",
        "Module.0.Sequential.forward.0": None,
    }
    run = probe.read_dump(write(tmp_path / "b", dict.fromkeys(nested, forward()), construct=nested))
    assert run.df[["model", "module"]].drop_duplicates().astype(str).values.tolist() == [
        ["model", "0"],
        ["model", "0.0"],
    ]


def test_what_wrappers_add_to_names_is_taken_off(tmp_path):
    names = {
        "Module.module.Net.forward.0": None,
        "Module.module._orig_mod.fc.Linear.forward.0": "Module.module.Net.forward.0",
    }
    run = probe.read_dump(
        write(tmp_path, dict.fromkeys(reversed(names), forward()), construct=names)
    )
    assert run.df["module"].drop_duplicates().tolist() == ["", "fc"]
    names = {"Module.module.Net.forward.0": None, "Module.head.Linear.forward.0": None}
    run = probe.read_dump(write(tmp_path / "b", dict.fromkeys(names, forward()), construct=names))
    assert run.df["module"].drop_duplicates().tolist() == ["module", "head"]


def test_without_construct_paths_tell_what_ran_inside_what(tmp_path):
    names = [
        "Module.a.0.Linear.forward.0",
        "Module.a.1.Linear.forward.0",
        "Module.a.Sequential.forward.0",
        "Module.b.Linear.forward.0",
        "Module.a.0.Linear.forward.1",
        "Module.a.Sequential.forward.1",
    ]
    run = probe.read_dump(write(tmp_path, dict.fromkeys(names, forward())))
    calls = run.calls()
    assert calls["module"].tolist() == ["a", "a.0", "a.1", "b", "a", "a.0"]
    assert calls["parent"].tolist() == [pd.NA, 0, 0, pd.NA, pd.NA, 4]
    inputs = run.frame(role="input")
    assert inputs["module"].tolist() == ["a", "a.0", "a.1", "b", "a", "a.0"]


# -- numbers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "status", "there"),
    [
        (
            {},
            "ok",
            {"max": 2.0, "min": -1.0, "mean": 0.5, "l2": 3.0, "absmax": 2.0, "nan_count": 0},
        ),
        (
            dict.fromkeys(("Max", "Min", "Mean", "Norm"), math.nan),
            "has_nan",
            {"max": None, "l2": None, "nan_count": None},
        ),
        (
            {"Max": math.inf, "Mean": math.inf, "Norm": math.inf},
            "has_inf",
            {
                "max": math.inf,
                "min": -1.0,
                "mean": math.inf,
                "nan_count": 0,
                "neginf_count": 0,
                "posinf_count": None,
                "absmax": None,
            },
        ),
        (
            {"Min": -math.inf, "Max": math.inf, "Mean": math.nan},
            "has_inf",
            {"mean": None, "posinf_count": None, "neginf_count": None},
        ),
        ({"Norm": math.inf}, "ok", {"l2": math.inf, "absmax": 2.0, "posinf_count": 0}),
        ({"Mean": None, "Norm": None}, "ok", {"mean": None, "l2": None, "max": 2.0}),
        (dict.fromkeys(("Max", "Min", "Mean", "Norm")), "unsupported", {"max": None}),
        (
            dict.fromkeys(("Max", "Min", "Mean", "Norm")) | {"shape": [0, 3]},
            "empty",
            {"numel": 0, "nan_count": 0},
        ),
        (
            dict.fromkeys(("Max", "Min", "Mean", "Norm"), -2.0) | {"shape": []},
            "ok",
            {"l2": 2.0, "mean": -2.0},
        ),
        (
            {"Max": True, "Min": False, "Mean": None, "Norm": None, "dtype": "torch.bool"},
            "ok",
            {"max": 1.0, "min": 0.0},
        ),
        ({"Max": 10**400}, "has_inf", {"max": math.inf}),
    ],
)
def test_what_four_numbers_tell(tmp_path, said, status, there):
    run = probe.read_dump(write(tmp_path, {"Module.a.Linear.forward.0": forward(**said)}))
    row = run.df.iloc[0]
    assert row["status"] == status
    for name, value in there.items():
        assert pd.isna(row[name]) if value is None else row[name] == value, name


def test_a_norm_that_overflowed_is_no_infinity_in_the_tensor(tmp_path):
    run = probe.read_dump(
        write(
            tmp_path, {"Module.a.Linear.forward.0": forward(Norm=math.inf, dtype="torch.float16")}
        )
    )
    assert run.first_nonfinite() is None
    assert not run.findings()["kind"].isin(["non_finite"]).any()
    assert "no NaN or Inf" in repr(run)


# -- what is damaged or hostile -----------------------------------------------------------------------


def test_a_file_that_ends_in_the_middle_gives_what_is_whole(tmp_path):
    folder = write(tmp_path, {f"Module.a{n}.Linear.forward.0": forward() for n in range(5)})
    text = (folder / "dump.json").read_text()
    (folder / "dump.json").write_text(text[: text.index("Module.a3") + 40])
    run = probe.read_dump(tmp_path)
    assert run.df["module"].drop_duplicates().tolist() == ["a0", "a1", "a2"]
    assert (
        "ends in the middle of `Module.a3.Linear.forward.0`: the 3 entries before it were read"
        in notices(run)
    )


@pytest.mark.parametrize("text", ["", "[]", "nonsense", '{"a": 1}'])
def test_what_is_no_dump_is_refused_in_words(tmp_path, text):
    (tmp_path / "dump.json").write_text(text)
    with pytest.raises(RunFormatError, match="is a dump of msProbe's"):
        probe.read_dump(tmp_path)


def test_a_step_whose_process_was_killed_is_told_with_its_tensors(tmp_path):
    write(tmp_path / "step0/rank0", {"Module.a.Linear.forward.0": forward()})
    killed = tmp_path / "step1/rank0/dump_tensor_data"
    killed.mkdir(parents=True)
    for number in range(3):
        torch.save(torch.ones(2), killed / f"Module.a.Linear.forward.0.output.{number}.pt")
    (tmp_path / "step1/rank1").mkdir()
    told = notices(probe.read_dump(tmp_path))
    assert "step1/rank0` was skipped: there is no dump.json in it beside its 3 tensors" in told
    assert "step1/rank1` was skipped: there is no dump.json in it. Its process ended" in told
    with pytest.raises(RunFormatError, match="beside its 3 tensors"):
        probe.read_dump(tmp_path, step=1, rank=0)


def test_what_is_not_there_is_refused_in_words(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing at"):
        probe.read_dump(tmp_path / "none")
    with pytest.raises(RunFormatError, match="Nothing in"):
        probe.read_dump(tmp_path)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"shape": [-1]}, "its shape"),
        ({"shape": "large"}, "its shape"),
        ({"shape": [2**40, 2**40]}, "no tensor is so large"),
        ({"shape": [1] * 100}, "its shape"),
        ({"dtype": ""}, "its dtype"),
        ({"dtype": "x" * 10_000}, "its dtype"),
        ({"dtype": 3}, "its dtype"),
    ],
)
def test_a_tensor_that_cannot_be_is_skipped_alone(tmp_path, changes, why):
    data = {
        "Module.a.Linear.forward.0": {
            "input_args": [T, T | changes],
            "input_kwargs": {},
            "output": [T],
        }
    }
    run = probe.read_dump(write(tmp_path, data))
    assert run.df["leaf"].tolist() == ["0", "0"]
    assert f"input 1 was skipped: {why}" in notices(run)


def test_deep_nesting_stops_where_msprobe_stops(tmp_path):
    deep = T
    for _ in range(500):
        deep = [deep]
    run = probe.read_dump(
        write(tmp_path, {"Module.a.Linear.forward.0": {"input_args": [deep], "output": [T]}})
    )
    assert run.df["role"].tolist() == ["output"]
    assert "nested too deeply" in notices(run)


def test_many_faults_are_counted_and_not_listed(tmp_path):
    run = probe.read_dump(
        write(
            tmp_path,
            {f"nonsense {n}": {} for n in range(500)} | {"Module.a.Linear.forward.0": forward()},
        )
    )
    assert len(run.info.notices) == 22
    assert "480 more" in run.info.notices[-1]


@pytest.mark.parametrize(
    "name",
    ["../secret.pt", "/etc/passwd", "a/b.pt", "..", "", "x" * 300 + ".pt", "a\0.pt", "evil.pkl", 7],
)
def test_a_file_name_that_leads_elsewhere_is_not_opened(tmp_path, name):
    torch.save(torch.zeros(2, 3), tmp_path / "secret.pt")
    folder = write(
        tmp_path / "d/step0/rank0",
        {"Module.a.Linear.forward.0": forward(data_name=name)},
        task="tensor",
    )
    (folder / "dump_tensor_data").mkdir()
    run = probe.read_dump(tmp_path / "d")
    assert all(status.startswith("not kept: it") for status in run.kept()["status"])
    with pytest.raises(probe.errors.SelectionError):
        run.tensor("a")


def test_links_out_of_the_folder_pipes_and_devices_are_not_opened(tmp_path):
    outside = write(tmp_path / "outside", {"Module.secret.Linear.forward.0": forward()})
    torch.save(torch.zeros(2, 3), outside / "t.pt")
    inside = write(
        tmp_path / "d/step0/rank0",
        {
            "Module.a.Linear.forward.0": forward(data_name="link.pt"),
            "Module.b.Linear.forward.0": forward(data_name="pipe.pt"),
        },
        task="tensor",
    )
    (inside / "dump_tensor_data").mkdir()
    (inside / "dump_tensor_data/link.pt").symlink_to(outside / "t.pt")
    os.mkfifo(inside / "dump_tensor_data/pipe.pt")
    os.mkfifo(inside / "construct.json")
    (inside / "stack.json").symlink_to("/dev/zero")
    (tmp_path / "d/step1").symlink_to(outside)
    (tmp_path / "d/step2/rank0").mkdir(parents=True)
    (tmp_path / "d/step2/rank0/dump.json").symlink_to(outside / "dump.json")
    (tmp_path / "d/step3/rank0").mkdir(parents=True)
    os.mkfifo(tmp_path / "d/step3/rank0/dump.json")
    run = probe.read_dump(tmp_path / "d")
    assert set(run.df["module"]) == {"a", "b"}
    assert set(run.kept()["status"]) == {
        "not kept: it leads out of the folder",
        "not kept: it is no file",
    }
    told = notices(run)
    for part in (
        "step1` was skipped: it leads out",
        "step2/rank0/dump.json` was skipped: it leads out",
        "step3/rank0/dump.json` was skipped: it is no file",
    ):
        assert part in told


class Evil:
    """Runs code where somebody unpickles it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def test_a_tensor_file_that_holds_code_is_not_run(tmp_path):
    data = {
        "Module.a.Linear.forward.0": {
            "input_args": [T | {"data_name": "one.pt"}],
            "output": [T | {"data_name": "two.pt"}],
        }
    }
    folder = write(tmp_path / "step0/rank0", data, task="tensor")
    (folder / "dump_tensor_data").mkdir()
    (folder / "dump_tensor_data/one.pt").write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    torch.save(Evil(tmp_path / "ran"), folder / "dump_tensor_data/two.pt")
    run = probe.read_dump(tmp_path)
    for role in ("input", "output"):
        with pytest.raises(RunFormatError, match="Nothing in it was run") as caught:
            run.tensor("a", role)
        assert "weights_only" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_a_tensor_file_that_holds_something_else_is_refused(tmp_path):
    data = {
        "Module.a.Linear.forward.0": {
            "input_args": [T | {"data_name": "one.pt"}],
            "output": [T | {"data_name": "two.pt"}],
        }
    }
    folder = write(tmp_path / "step0/rank0", data, task="tensor")
    (folder / "dump_tensor_data").mkdir()
    torch.save(torch.zeros(5), folder / "dump_tensor_data/one.pt")
    torch.save({"a": torch.zeros(2, 3)}, folder / "dump_tensor_data/two.pt")
    run = probe.read_dump(tmp_path)
    with pytest.raises(RunFormatError, match="something else than the dump says"):
        run.tensor("a", "input")
    with pytest.raises(RunFormatError, match="something else than a tensor"):
        run.tensor("a", "output")


def test_a_small_file_that_says_it_is_large_takes_no_memory(tmp_path):
    n = 2**40
    huge = T | {"shape": [n], "data_name": "one.pt"}
    data = {"Module.a.Linear.forward.0": {"input_args": [huge], "output": []}}
    folder = write(tmp_path / "step0/rank0", data, task="tensor")
    (folder / "dump_tensor_data").mkdir()
    torch.save(torch.zeros(1).expand(n), folder / "dump_tensor_data/one.pt")
    run = probe.read_dump(tmp_path)
    with pytest.raises(RunFormatError, match="fewer elements than it says"):
        run.tensor("a", "input")


def test_a_huge_file_of_nothing_takes_little_memory(tmp_path):
    (tmp_path / "dump.json").write_bytes(b"")
    with (tmp_path / "dump.json").open("r+b") as file:
        file.write(b'{"task": "statistics", "data": {"Module.a.Linear.forward.0": {"x": "')
        file.truncate(2**30)  # a hole: a text of zeros that never ends
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = probe.read_dump(tmp_path)
    assert "more than" in notices(run)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000


def test_text_of_a_dump_is_shown_as_text(tmp_path):
    run = probe.read_dump(
        write(
            tmp_path,
            {
                "Module.<script>alert(1)</script>.Linear.forward.0": forward(
                    Max=math.nan, Min=math.nan, Mean=math.nan, Norm=math.nan
                )
            },
        )
    )
    assert "<script>alert" not in run._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize("broken", [False, True])
def test_a_dump_that_is_loaded_as_a_run_is_told_what_opens_it(tmp_path, broken):
    folder = write(tmp_path / "step0/rank0", {"Module.a.Linear.forward.0": forward()})
    if broken:  # its process ended before the step did
        (folder / "dump.json").unlink()
    openers = [probe.load, lambda path: probe.compare(path, path)] if broken else [probe.load]
    for opener in openers:  # a comparison opens a whole dump itself
        with pytest.raises(RunFormatError, match=r"a dump of msProbe's.*`probe\.read_dump`"):
            opener(tmp_path)


def test_a_histogram_of_a_dump_is_said_not_to_be_there_in_any_step(tmp_path):
    for step in range(2):
        write(tmp_path / f"step{step}/rank0", {"Module.a.Linear.forward.0": forward()})
    run = probe.read_dump(tmp_path)
    with pytest.raises(SelectionError, match=r"`a` output in any step\. Dumps of msProbe's hold"):
        run.histogram("a", "output")


def test_a_folder_of_dumps_names_them(tmp_path):
    (tmp_path / "a").mkdir()

    def refused(more, said):
        for name in more:
            write(tmp_path / name / "step0" / "rank0", {"Module.fc.Linear.forward.0": {}})
        with pytest.raises(RunFormatError, match=f"/b` is one{said}: give the folder of one dump"):
            probe.read_dump(tmp_path)

    refused("b", "")
    refused("cd", ", and so are `c`, `d`")
    named = ", ".join(f"`{name}`" for name in "cdefghijk")
    refused("efghijklm", f", and so are {named} and 2 more")
    with pytest.raises(RunFormatError, match=r"is a dump of msProbe's\.$"):
        probe.read_dump(tmp_path / "a")


def test_where_a_healthy_dump_comes_from_is_no_warning(tmp_path):
    write(tmp_path / "step0/rank0", {"Module.a.Linear.forward.0": forward()})
    run = probe.read_dump(tmp_path)
    (notice,) = run.info.notices
    assert notice.startswith("Read from an msProbe dump, ")
    for shown in (str(run), run._repr_mimebundle_()["text/html"]):
        assert "Read from an msProbe" in shown
        assert "! Read from" not in shown
    run.info.notices.append("something was lost")
    assert "! something was lost" in str(run)
