"""A dump that was read is written as it was: each number at its place, under the same names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.errors import ProbeWarning
from tests.models import no_faults

DUMPS = Path(__file__).parent / "samples" / "dumps"


def files(folder):
    """The records of each step, by themselves."""
    found = [*folder.rglob("dump.json"), *folder.rglob("debug.json")]
    return {
        (path.relative_to(folder).parts[0], path.name): json.loads(path.read_text())["data"]
        for path in found
    }


def headers(folder):
    """What each file says of itself, but for the place of its tensors."""
    names = ("task", "level", "framework")
    return {
        (path.relative_to(folder).parts[0], path.name): [
            json.loads(path.read_text())[n] for n in names
        ]
        for path in folder.rglob("d*.json")
    }


def text(data):
    """Content alone: NaN is itself, and members have no order."""
    return {key: json.dumps(entry, sort_keys=True) for key, entry in data.items()}


def dumped(folder, data, level="L1", task="statistics", rank=0):
    """Write a dump by hand."""
    place = folder / "step0" / f"rank{rank}"
    place.mkdir(parents=True)
    header = {"task": task, "level": level, "framework": "pytorch", "dump_data_dir": None}
    (place / "dump.json").write_text(json.dumps(header | {"data": data}))
    return folder


def tensor(number):
    return {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [2],
        "Max": number,
        "Min": number,
        "Mean": number,
        "Norm": number,
        "requires_grad": True,
    }


def written_again(folder, place):
    with no_faults():
        return files(probe.read_dump(folder).write_dump(place, extras=False))


@pytest.mark.parametrize("name", sorted(each.name for each in DUMPS.iterdir()))
def test_what_msprobe_wrote_is_written_as_it_was(name, tmp_path):
    before, after = files(DUMPS / name), written_again(DUMPS / name, tmp_path / "again")
    assert before.keys() == after.keys()
    for place, data in before.items():
        assert [*after[place]] == [*data]
        assert text(after[place]) == text(data)
    assert headers(tmp_path / "again") == headers(DUMPS / name)


@pytest.mark.parametrize("gradients", [[1.0, 2.0], [1.0, None, 2.0], [None, 3.0], [None], []])
@pytest.mark.parametrize("way", ["input", "output"])
@pytest.mark.parametrize("name", ["Functional.embedding.0", "Module.a.b.C"])
def test_gradients_stay_where_they_were_among_them(name, way, gradients, tmp_path):
    """Only some of the arguments have one, and a dump does not say which."""
    forward, backward = (
        (f"{name}.forward.0", f"{name}.backward.0")
        if name.startswith("Module")
        else (f"{name}.forward", f"{name}.backward")
    )
    given = [tensor(9.0), {"type": "int", "value": 3}, tensor(8.0), tensor(7.0)]
    other = "output" if way == "input" else "input"
    entry = {
        way: [None if each is None else tensor(each) for each in gradients],
        other: [tensor(5.0)],
    }
    parameters = {"parameters": {}} if name.startswith("Module") else {}
    data = {
        forward: {"input_args": given, "input_kwargs": {}, "output": given} | parameters,
        backward: entry,
    }
    folder = dumped(tmp_path / "dump", data, "mix")
    (after,) = written_again(folder, tmp_path / "again").values()
    assert text(after) == text(data)


@pytest.mark.parametrize(
    "names",
    [
        ["Module.1.a.C.forward.0", "Module.1.b.C.forward.0"],
        ["Module.1.a.C.forward.0", "Module.0.a.C.forward.0"],
        ["Module.7.a.C.forward.0", "Module.7.a.C.backward.0", "Module.3.a.C.forward.0"],
    ],
)
def test_models_of_a_list_keep_their_numbers(names, tmp_path):
    data = {
        name: {"input": [tensor(1.0 + n)], "output": [tensor(2.0)]}
        if "backward" in name
        else {
            "input_args": [tensor(1.0 + n)],
            "input_kwargs": {},
            "output": [tensor(2.0)],
            "parameters": {},
        }
        for n, name in enumerate(names)
    }
    folder = dumped(tmp_path / "dump", data, "L0")
    (folder / "step0" / "rank0" / "construct.json").write_text(
        json.dumps(dict.fromkeys(names))  # by these names the reader tells a list
    )
    (after,) = written_again(folder, tmp_path / "again").values()
    assert text(after) == text(data)


def test_what_wrappers_add_to_names_is_there_again(tmp_path):
    names = ["Module.module.a.C", "Module.module.a._checkpoint_wrapped_module.b.D"]
    data = {
        f"{name}.{way}": body
        for name in names
        for way, body in (
            (
                "forward.0",
                {
                    "input_args": [tensor(1.0)],
                    "input_kwargs": {},
                    "output": [tensor(2.0)],
                    "parameters": {"weight": tensor(3.0)},
                },
            ),
            ("parameters_grad.0", {"weight": [tensor(4.0)]}),
        )
    }
    folder = dumped(tmp_path / "dump", data, "L0")
    (folder / "step0" / "rank0" / "construct.json").write_text(
        json.dumps({name: None for name in data if "forward" in name})
    )
    assert "a.b" in set(probe.read_dump(folder).df["module"])
    (after,) = written_again(folder, tmp_path / "again").values()
    assert text(after) == text(data)


class Indexed(nn.Module):
    """Calls functions with tensors and values, in a layer and outside of any."""

    def __init__(self):
        super().__init__()
        self.layer = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        y = self.layer(x, x, x)[0][:, None]
        return torch.clamp(y, min=-1.0, max=torch.tensor(2.0)).sum(dim=(0, 1))


@pytest.mark.parametrize("extras", [True, False])
@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("level", ["api", "mix"])
def test_what_functions_were_given_is_written_whole_again(level, values, extras, tmp_path):
    model = Indexed()
    with probe.watch(model, level=level, apis="all", values=values, live=False) as run:
        model(torch.randn(2, 3, 4, requires_grad=True)).sum().backward()
    first = run.write_dump(tmp_path / "first", extras=extras)
    back = probe.read_dump(first)
    second = back.write_dump(tmp_path / "second", extras=extras)
    (before,), (after,) = files(first).values(), files(second).values()
    assert any(each for entry in before.values() for each in entry.get("input_args", []))
    assert text(after) == text(before)
    if extras:
        rows = back.frame(api="Tensor.__getitem__", direction="forward")
        assert set(rows["model"]) == {"model"}
        assert set(rows["type"]) == {"Indexed"}
    if extras and values:
        of = back.values()
        assert set(of.loc[of["api"] == "Tensor.__getitem__", "type"]) == {"Indexed"}


def plain(**about):
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [], **about}


@pytest.mark.parametrize(
    ("task", "tensors"),
    [
        ("structure", [plain(requires_grad=True), plain(requires_grad=False)]),
        ("statistics", [plain(md5=2.5, requires_grad=True), plain(md5=-3, requires_grad=False)]),
        ("statistics", [plain(md5="0x0000000000000001", requires_grad=True), plain(md5=True)]),
        ("statistics", [plain(md5=float("nan")), plain(md5=float("-inf"))]),
    ],
)
def test_what_has_no_statistics_gets_none(task, tensors, tmp_path):
    tensors = [{"requires_grad": False, **each} for each in tensors]
    entry = {"input_args": tensors, "input_kwargs": {}, "output": tensors[:1], "parameters": {}}
    data = {"Module.a.C.forward.0": entry}
    folder = dumped(tmp_path / "dump", data, "L0", task)
    (after,) = written_again(folder, tmp_path / "again").values()
    assert text(after) == text(data)
    assert headers(tmp_path / "again") == headers(folder)


def test_each_rank_has_its_own_tensors(tmp_path):
    """Files of the same name, one in the folder of each process."""
    expected = {}
    for rank in (0, 1):
        value = torch.full((2,), 1.0 + rank)
        name = "Module.a.C.forward.0.output.0.pt"
        data = {"Module.a.C.forward.0": {"output": [tensor(1.0 + rank) | {"data_name": name}]}}
        dumped(tmp_path / "dump", data, "L0", "tensor", rank)
        place = tmp_path / "dump" / "step0" / f"rank{rank}" / "dump_tensor_data"
        place.mkdir()
        torch.save(value, place / name)
        expected[rank] = value
    probe.read_dump(tmp_path / "dump").write_dump(tmp_path / "again")
    for rank, value in expected.items():
        (file,) = (tmp_path / "again" / "step0" / f"rank{rank}").rglob("*.pt")
        assert torch.equal(torch.load(file, weights_only=True), value)


@pytest.mark.parametrize("damage", ["cut", "gone", "other"])
def test_a_file_that_is_damaged_costs_its_tensor_alone(damage, tmp_path):
    names = [f"Module.{path}.C.forward.0.output.0.pt" for path in "ab"]
    data = {
        name.removesuffix(".output.0.pt"): {"output": [tensor(3.0) | {"data_name": name}]}
        for name in names
    }
    folder = dumped(tmp_path / "dump", data, "L0", "tensor")
    place = folder / "step0" / "rank0" / "dump_tensor_data"
    place.mkdir()
    for name in names:
        torch.save(torch.full((2,), 3.0), place / name)
    run = probe.read_dump(folder)
    assert len(run.kept()) == 2
    first = place / names[0]
    if damage == "cut":
        first.write_bytes(first.read_bytes()[:50])
    elif damage == "other":
        torch.save({"a": torch.ones(2)}, first)
    else:
        first.unlink()
    with pytest.warns(ProbeWarning, match=r"Module\.a\.C\.forward\.0\.output\.0 was not written"):
        run.write_dump(tmp_path / "again")
    (after,) = files(tmp_path / "again").values()
    found = [entry["output"][0] for entry in after.values()]
    assert [each["Max"] for each in found] == [3.0, 3.0]
    assert "data_name" not in found[0]
    assert found[1]["data_name"] == names[1]
    assert [path.name for path in (tmp_path / "again").rglob("*.pt")] == names[1:]
    (log,) = (tmp_path / "again").rglob("dump_error_info.log")
    assert "Module.a.C.forward.0.output.0" in log.read_text()
    assert any("was not written" in text for text in run.info.notices)
