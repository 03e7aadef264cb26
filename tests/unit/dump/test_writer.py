import json
import math
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.dump import tensors, writer
from probe_nb.dump.writer_tree import Item, as_list, grown, planted, text_of
from probe_nb.dump.writer_values import Numbers, four, tensor, value
from probe_nb.errors import ConfigError, ProbeWarning
from probe_nb.terms import COUNTS, STATISTICS

NAN, INF = math.nan, math.inf
NONE = (None,) * 4


def numbers(dtype="float32", shape=(4,), status="ok", scale=None, checksum=None, **given):
    """Return what a row knows; statistics are min 1, max 3, mean 2, l2 5 unless said."""
    known = {"min": 1.0, "max": 3.0, "mean": 2.0, "l2": 5.0, "std": 0.5, "absmax": 3.0} | given
    return Numbers(
        dtype,
        shape,
        status,
        False,
        scale,
        checksum,
        {name: known[name] for name in STATISTICS},
        {name: given.get(name, 0) for name in COUNTS},
    )


FINITE_NONE = dict.fromkeys(("min", "max", "mean", "l2"))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (numbers(), (3.0, 1.0, 2.0, 5.0)),
        (numbers(mean=0.1), (3.0, 1.0, 0.10000000149011612, 5.0)),  # float32(0.1)
        (numbers(l2=1e300), (3.0, 1.0, 2.0, 1e300)),  # no float32 holds it
        (numbers("int64"), (3, 1, None, None)),
        (numbers("int64", max=2.0**53), (None, 1, None, None)),  # nobody knows which it was
        (numbers("uint8"), (3, 1, None, None)),
        (numbers("float64"), (3.0, 1.0, None, None)),
        (numbers("bool", max=1.0, min=0.0), (True, False, None, None)),
        (numbers("bool", (), max=0.0, min=0.0), (False, False, None, None)),
        (numbers("complex64"), (3.0, 1.0, 2.0, None)),
        (numbers("float8_e4m3fn"), NONE),
        (numbers(shape=(), min=-2.5, max=-2.5, l2=2.5), (-2.5,) * 4),
        (numbers("int32", (), min=7.0, max=7.0), (7,) * 4),
        (numbers(status="meta", **FINITE_NONE), NONE),
        (numbers(status="empty", **FINITE_NONE), NONE),
        (numbers(nan_count=1), (NAN,) * 4),
        (numbers(nan_count=1, posinf_count=1), (NAN,) * 4),
        (numbers(posinf_count=1), (INF, 1.0, INF, INF)),
        (numbers(neginf_count=2), (3.0, -INF, -INF, INF)),
        (numbers(posinf_count=1, neginf_count=1), (INF, -INF, NAN, INF)),
        (numbers(status="no_finite", posinf_count=4, **FINITE_NONE), (INF,) * 4),
        (numbers(status="no_finite", neginf_count=4, **FINITE_NONE), (-INF, -INF, -INF, INF)),
        (numbers(shape=(), status="no_finite", neginf_count=1, **FINITE_NONE), (-INF,) * 4),
        (numbers(status="has_nan", **FINITE_NONE), (NAN,) * 4),
        (numbers(status="has_inf", max=INF, mean=INF, l2=INF), (INF, 1.0, INF, INF)),
        (numbers(scale=1024.0), (3072.0, 1024.0, 2048.0, 5120.0)),
    ],
)
def test_the_four_statistics_are_what_msprobes_arithmetic_would_give(row, expected):
    assert repr(four(row)) == repr(expected)  # NaN, and the types, are told apart


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        ([[1.0, -2.0], [0.5, 3.0]], torch.float32),
        ([1.0, math.nan], torch.float32),
        ([1.0, math.inf, -3.0], torch.float32),
        ([-math.inf, math.inf], torch.float32),
        ([3, -7, 2**40], torch.int64),
        ([True, False], torch.bool),
        ([1.5, 2.5], torch.float64),
        (-2.5, torch.float32),
        ([], torch.float32),
    ],
)
def test_they_are_those_of_torch_itself(tmp_path, data, dtype):
    x = torch.tensor(data, dtype=dtype)
    model = nn.Sequential(nn.Identity())
    with probe.watch(model, roles="input") as run:
        model(x)
    (entry,) = data_of(run.write_dump(tmp_path / "dump")).values()
    found = entry["input_args"][0]
    assert found["shape"] == list(x.shape)
    assert found["dtype"] == str(dtype)
    if not x.numel():
        expected = NONE
    elif dtype is torch.bool:
        expected = (bool(x.any()), bool(x.all()), None, None)
    elif x.dim() == 0:
        expected = (x.item(),) * 4
    elif dtype is torch.float32:
        expected = (x.max().item(), x.min().item(), x.mean().item(), x.norm().item())
    else:
        expected = (x.max().item(), x.min().item(), None, None)
    for name, wanted in zip(("Max", "Min", "Mean", "Norm"), expected, strict=True):
        assert type(found[name]) is type(wanted)
        assert wanted is None or found[name] == pytest.approx(wanted, rel=1e-6, nan_ok=True)


def data_of(folder, step=0, name="dump.json"):
    (path,) = folder.glob(f"step{step}/*/{name}")
    return json.loads(path.read_text())["data"]


@pytest.mark.parametrize(
    ("checksum", "shown"),
    [
        ("0123abcd", "0123abcd"),
        ("0x00ff000000000001:12345678", "0x00ff000000000001"),
        ("-2.5:9", -2.5),
    ],
)
def test_of_a_checksum_msprobes_part_is_written(checksum, shown):
    made = tensor(numbers(checksum=checksum))
    assert made["md5"] == shown
    assert ("Max" in made) == (checksum == shown)  # xor has no statistics


@pytest.mark.parametrize(
    ("kind", "held", "path", "expected"),
    [
        ("int", 3, ["0"], {"type": "int", "value": 3}),
        ("bool", True, ["0"], {"type": "bool", "value": True}),
        ("None", None, ["0"], None),
        ("object", "Thing", ["0"], None),
        ("slice", [1, None, 2], ["0"], {"type": "slice", "value": [1, None, 2]}),
        ("ellipsis", "...", ["0"], {"type": "ellipsis", "value": "..."}),
        ("torch.Size", [2, 3], ["0"], {"type": "torch.Size", "value": [2, 3]}),
        ("float32", 1.5, ["0"], {"type": "float32", "value": 1.5}),
        ("torch.dtype", "torch.half", ["dtype"], {"type": "torch.dtype", "value": "torch.half"}),
        ("torch.dtype", "torch.half", ["0"], {}),
        ("torch.device", "cpu", ["device"], {"type": "torch.device", "value": "cpu:None"}),
        ("torch.device", "cuda:1", ["device"], {"type": "torch.device", "value": "cuda:1"}),
        ("str", "cpu", ["device"], {"type": "torch.device", "value": "cpu"}),
        ("torch.memory_format", "torch.channels_last", ["0"], {"type": "torch.memory_format", "format": "channels_last"}),
        ("list", [], ["0"], []),
        ("dict", {}, ["0"], {}),
    ],
)  # fmt: skip
def test_values_are_written_as_msprobe_writes_them(kind, held, path, expected):
    assert value(kind, held, path) == expected


# -- trees ----------------------------------------------------------------------------------------


def test_numbers_make_lists_and_names_make_dicts():
    tree = planted([(["0"], "a"), (["2", "x"], "b"), (["2", "y", "1"], "c")])
    assert grown(tree) == ["a", None, {"x": "b", "y": [None, "c"]}]
    assert as_list(planted([(["logits"], "a")])) == [{"logits": "a"}]
    assert as_list({}) == []


def test_a_hostile_number_makes_no_long_list():
    assert grown(planted([(["9999999"], "a")])) == {"9999999": "a"}


def test_a_leaf_at_the_place_of_another_loses_neither():
    assert planted([(["a"], Item(x=1)), (["a", "b"], 2)]) == {"a": {"x": 1}, "a_": {"b": 2}}
    assert planted([(["a", "b"], 2), (["a"], 1)]) == {"a": {"b": 2}, "a_": 1}


def test_the_text_is_json():
    node = {"a": [Item(x=[1, 2]), None, {}], "b\n": {"c": NAN}}
    text = "".join(text_of(node))
    assert text.splitlines()[2] == '  {"x": [1, 2]},'
    again = json.loads(text)
    assert again["a"] == [{"x": [1, 2]}, None, {}]
    assert math.isnan(again["b\n"]["c"])


# -- folders --------------------------------------------------------------------------------------


class Twice(nn.Module):
    """Uses one layer twice, and another one's weight."""

    def __init__(self):
        super().__init__()
        self.fc, self.tied = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
        self.tied.weight = self.fc.weight

    def forward(self, x):
        return {"out": self.tied(self.fc(self.fc(x))), "shape": x.shape}


def recorded(**options):
    model = Twice()
    with probe.watch(model, **options) as run:
        for _ in range(2):
            model(torch.ones(2, 3))["out"].sum().backward()
    return run


def test_what_is_passed_is_left_out_and_what_is_shared_has_both_names(tmp_path):
    data = data_of(recorded().write_dump(tmp_path / "dump"))
    assert [key for key in data if key.split(".")[1] == "Twice"] == []
    assert list(data["Module.fc.Linear.forward.1"]["parameters"]) == ["weight", "bias"]
    assert list(data["Module.tied.Linear.forward.0"]["parameters"]) == ["weight"]
    mine, its = (data[f"Module.{name}.Linear.parameters_grad.0"] for name in ("fc", "tied"))
    assert mine["weight"][0]["Max"] == its["weight"][0]["Max"]
    assert "bias" not in its


def test_gradients_of_parameters_are_those_accumulated(tmp_path):
    model = nn.Sequential(nn.Linear(1, 1))
    with probe.watch(model, micro_batches=3) as run:
        for factor in (1.0, 10.0, 100.0):
            model(torch.full((1, 1), factor)).sum().backward()
    data = data_of(run.write_dump(tmp_path / "dump"))
    keys = [key for key in data if "parameters_grad" in key]
    assert keys == [f"Module.0.Linear.parameters_grad.{k}" for k in range(3)]
    assert [data[key]["weight"][0]["Max"] for key in keys] == [1.0, 11.0, 111.0]
    assert [data[key]["bias"][0]["Max"] for key in keys] == [1.0, 2.0, 3.0]


def test_several_models_have_an_index(tmp_path):
    models = {"a": nn.Sequential(nn.ReLU()), "b": nn.Sequential(nn.Tanh())}
    with probe.watch(models, roles="input") as run:
        for each in models.values():
            each(torch.ones(1))
    keys = [key for step in (0, 1) for key in _keys(run.write_dump(tmp_path / f"{step}"), step)]
    assert set(keys) == {"Module.0.0.ReLU.forward.0", "Module.1.0.Tanh.forward.0"}
    bare = run.write_dump(tmp_path / "bare", listed=False)
    assert {k for step in (0, 1) for k in _keys(bare, step)} == {"Module.0.ReLU.forward.0", "Module.0.Tanh.forward.0"}  # fmt: skip


def _keys(folder, step):
    return list(data_of(folder, step)) if list(folder.glob(f"step{step}/*")) else []


def test_an_empty_dump_is_a_dump(tmp_path):
    model = nn.Linear(2, 2)
    with probe.watch(model) as run:
        model(torch.ones(2))
    assert data_of(run.write_dump(tmp_path / "dump")) == {}  # as msProbe: the root is left out


@pytest.mark.parametrize("level", ["module", "api", "mix", "debug"])
def test_the_dump_of_a_run_without_records_is_read_again(tmp_path, level):
    with probe.watch(nn.Linear(2, 2), level=level, first_step=3, live=False) as run:
        pass
    with pytest.warns(ProbeWarning, match="has no records: there is no entry in the dump"):
        folder = run.write_dump(tmp_path / "dump")
    again = probe.read_dump(folder)
    assert (len(again), again.info.steps, again.info.config["level"]) == (0, 1, level)
    assert "there is no record of a tensor in the dump" in str(again)
    assert [each.name for each in folder.iterdir()] == ["step3"]
    with pytest.raises(FileExistsError, match="is there already"), pytest.warns(ProbeWarning):
        run.write_dump(folder)


def test_a_row_that_failed_is_in_the_log(tmp_path, monkeypatch):
    from probe_nb.stats.summary import Reducer

    model = nn.Sequential(nn.Identity())
    monkeypatch.setattr(Reducer, "see", lambda *_, **__: 1 / 0)
    with (
        pytest.warns(UserWarning, match="could not record"),
        probe.watch(model, roles="output") as run,
    ):
        model(torch.ones(2))
    (log,) = run.write_dump(tmp_path / "dump").glob("step0/*/dump_error_info.log")
    assert "0, call 0: forward output `0` could not be measured (float32 [2])" in log.read_text()


def test_what_is_there_is_not_overwritten_unasked(tmp_path):
    run = recorded()
    folder = run.write_dump(tmp_path / "dump")
    before = data_of(folder)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        run.write_dump(folder)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError):
        run.write_dump(tmp_path / "file", overwrite=True)
    assert (tmp_path / "file").read_text() == "mine"
    recorded(roles="output").write_dump(folder, overwrite=True)
    assert set(data_of(folder)) < set(before)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["dump", "file"]


def test_ranks_write_beside_each_other(tmp_path):
    for rank in (0, 1):
        run = recorded()
        for block in run.columns._blocks:
            block.columns["rank"][:] = rank
        run.write_dump(tmp_path / "dump")
    assert sorted(e.name for e in (tmp_path / "dump" / "step0").iterdir()) == ["rank0", "rank1"]


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_a_dump_is_there_whole_or_not_at_all(tmp_path, monkeypatch, fails_at):
    run, times = recorded(), []
    old = recorded(roles="input").write_dump(tmp_path / "old")
    before = data_of(old)

    def fails(*args):
        times.append(args)
        if len(times) == fails_at:
            raise OSError("no space left")
        return text_of(*args)

    monkeypatch.setattr(writer, "text_of", fails)
    for target in ("new", "old"):
        times.clear()
        with pytest.raises(OSError, match="no space"):
            run.write_dump(tmp_path / target, overwrite=True)
    assert [each.name for each in tmp_path.iterdir()] == ["old"]
    assert data_of(old) == before


def test_folders_that_cannot_take_their_place_leave_all_as_it_was(tmp_path, monkeypatch):
    model = nn.Sequential(nn.Identity())
    with probe.watch(model, roles="input") as run:
        for _ in range(3):
            model(torch.ones(1))
            run.step()
    folder = run.write_dump(tmp_path / "dump")
    mark = {each: each.stat().st_ino for each in folder.glob("step*/*")}
    real, renamed = type(folder).rename, []

    def rename(self, target):
        renamed.append(target)
        if len(renamed) == 4:
            raise OSError("the disk is gone")
        return real(self, target)

    monkeypatch.setattr(type(folder), "rename", rename)
    with pytest.raises(OSError, match="the disk"):
        run.write_dump(folder, overwrite=True)
    assert {each: each.stat().st_ino for each in folder.glob("step*/*")} == mark


def test_a_task_that_is_none_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="statistics, tensor, structure"):
        recorded().write_dump(tmp_path / "dump", task="everything")


# -- tensors --------------------------------------------------------------------------------------

NAMES = [
    "../../evil",
    "/etc/evil",
    "..",
    ".hidden",
    "a/b",
    "x" * 400,
    "名前",
    "con:1",
    "nul\0l",
    "a\nb",
]


@pytest.mark.parametrize("name", NAMES)
def test_no_name_leads_out_of_the_folder(tmp_path, name):
    target = tmp_path / "with space" / "dump"
    model = nn.Sequential(nn.Identity())
    keep = probe.Keep("*", roles="input")
    with probe.watch(model, roles="input", keep=keep) as run, run.only(model, name):
        model(torch.full((2,), 3.0))
    run.write_dump(target)
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    tensors_there = [each for each in files if each.suffix == ".pt"]
    assert len(tensors_there) == 1
    assert tensors_there[0].parent.name == "dump_tensor_data"
    assert {each.parent for each in files if each.suffix != ".pt"} == {
        tensors_there[0].parent.parent
    }
    ((key, entry),) = data_of(target).items()
    assert key == f"Module.{name}.Sequential.forward.0"
    assert entry["input_args"][0]["data_name"] == tensors_there[0].name
    assert torch.load(tensors_there[0], weights_only=True).tolist() == [3.0, 3.0]


def test_different_names_have_different_files():
    names = ["a/b", "a_b", "a:b", "x" * 400, "x" * 401, "é" * 200]
    assert len({tensors.file_name(each) for each in names}) == len(names)
    assert all(len(tensors.file_name(each).encode()) <= 240 for each in names)


STREAMED = """
import sys, torch, probe_nb as probe
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
roles = "input,output,param,grad_output,grad_input,param_grad"
keep = probe.Keep("*", roles=roles, memory=None, folder=sys.argv[1], files="pt")
run = probe.start(model, optimizer=optimizer, keep=keep)
for step in range(3):
    optimizer.zero_grad()
    model(torch.ones(1, 2) * (step + 1)).sum().backward()
    optimizer.step()
raise RuntimeError("the training broke")
"""


def test_a_program_that_breaks_loses_no_tensor(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", STREAMED, str(tmp_path / "dump")],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "the training broke" in done.stderr
    for step in range(3):
        (folder,) = (tmp_path / "dump").glob(f"step{step}/*/dump_tensor_data")
        names = {each.name.removesuffix(".pt") for each in folder.iterdir()}
        linear = "Module.0.Linear"
        assert names >= {
            *(f"{linear}.forward.0.{part}" for part in ("input.0", "output.0")),
            *(f"{linear}.forward.0.parameters.{p}" for p in ("weight", "bias")),
            *(f"{linear}.parameters_grad.0.{p}" for p in ("weight", "bias")),
            *(f"Module.1.ReLU.{way}.0.input.0" for way in ("forward", "backward")),
        }
        x = torch.load(folder / f"{linear}.forward.0.input.0.pt", weights_only=True)
        assert x.tolist() == [[step + 1.0] * 2]


def test_files_written_as_they_come_get_the_records_beside_them(tmp_path):
    roles = "input,output,param,grad_output,grad_input,param_grad"
    folder = tmp_path / "dump"
    keep = probe.Keep("*", roles=roles, memory=None, folder=folder, files="pt")
    recorded(keep=keep).write_dump(folder)
    plain = recorded(keep=probe.Keep("*", roles=roles)).write_dump(tmp_path / "plain")
    for key, entry in data_of(plain).items():
        assert list(data_of(folder)[key]) == list(entry)
    for kind in (folder, plain):
        (place,) = kind.glob("step0/*/dump_tensor_data")
        said = set()
        for line in (place.parent / "dump.json").read_text().splitlines():
            if "data_name" in line:
                said.add(json.loads(line[line.index("{") :].rstrip(","))["data_name"])
        there = {each.name for each in place.iterdir() if not each.name.startswith("Module.Twice")}
        assert said == there
    assert len(said) > 20


def test_saved_values_stand_in_the_order_in_which_they_were_saved(tmp_path):
    with probe.watch(level="debug", live=False) as run:
        y = torch.ones(2, requires_grad=True) * 2
        for value, name in ((1, "a"), (y, "y"), ("s", "b"), ([y, 3], "c"), (y, "y"), (2, "a")):
            probe.save(value, name)
        y.sum().backward()
    (path,) = run.write_dump(tmp_path / "dump").rglob("debug.json")
    found = [*json.loads(path.read_text())["data"]]
    assert [name for name in found if "_grad" not in name] == [
        *("a.0.debug", "y.0.debug", "b.0.debug", "c.0.debug", "y.1.debug", "a.1.debug")
    ]
    for name in ("y.0", "c.0", "y.1"):  # each gradient right behind its value
        value, number = name.split(".")
        assert found[found.index(f"{name}.debug") + 1] == f"{value}_grad.{number}.debug"


def test_functions_that_take_and_give_no_tensors_stand_where_they_were_called(tmp_path):
    with probe.watch(level="api", apis="all", values=True, live=False) as run:
        x = torch.zeros(2)
        x.exp()
        torch.randn(2).cos()
    (path,) = run.write_dump(tmp_path / "dump").rglob("dump.json")
    found = [name.split(".")[1] for name in json.loads(path.read_text())["data"]]
    assert found == ["zeros", "exp", "randn", "cos"]


def test_a_folder_that_tensors_were_streamed_to_is_not_written_over(tmp_path, monkeypatch):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    keep = probe.Keep("0", folder=tmp_path / "dump", files="pt")
    with probe.watch(model, keep=keep, live=False) as run:
        model(torch.ones(1, 2))
    folder = run.write_dump(tmp_path / "dump")
    before = {path: path.read_bytes() for path in folder.rglob("*.json")}
    assert before
    with pytest.raises(FileExistsError, match=r"dump\.json` is there already.*`overwrite=True`"):
        run.write_dump(tmp_path / "dump")

    def fails(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr("probe_nb.dump.writer_calls.stack_file", fails)
    with pytest.raises(OSError, match="disk is full"):
        run.write_dump(tmp_path / "dump", overwrite=True, extras=False)
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in folder.rglob("*.json")} == before
    run.write_dump(tmp_path / "dump", overwrite=True)
    assert {path: path.read_bytes() for path in folder.rglob("*.json")} == before
    assert len([*folder.rglob("*.pt")]) == 1


def test_tensors_that_were_never_kept_are_said_to_be_missing_from_the_dump(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2))
    with probe.watch(model, live=False) as run:
        model(torch.ones(1, 2))
    with pytest.warns(ProbeWarning, match="keeps no tensors: the dump has statistics"):
        run.write_dump(tmp_path / "asked", task="tensor")
    assert not list(tmp_path.rglob("*.pt"))
    run.write_dump(tmp_path / "plain")  # warnings are errors here
