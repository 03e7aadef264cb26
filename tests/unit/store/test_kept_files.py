"""Kept tensors are saved beside the records, and read when somebody asks for them."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.errors import RunFormatError
from probe_nb.store import tensors
from probe_nb.store.kept import Kept


class Takes(nn.Module):
    def forward(self, **values):
        return torch.ones(1)


FLOATS = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    torch.float8_e8m0fnu,
]
WHOLE = [
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
]
VALUES = torch.tensor([[1.5, -2.0, 0.0], [1e-3, 4.0, -0.5]])
EVERY = {str(dtype): VALUES.to(dtype) for dtype in FLOATS}
EVERY |= {str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in WHOLE}
EVERY |= {
    "torch.bool": VALUES > 0,
    "torch.complex64": torch.complex(VALUES, -VALUES),
    "torch.complex128": torch.complex(VALUES.double(), -VALUES.double()),
    "nan": torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0]),
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0, 3),
    'a line\nbreak, "quotes" and ❄ \ud800': torch.ones(1),
}


def bits(t):
    return (t.dtype, tuple(t.shape), t.reshape(-1).view(torch.uint8).tolist() if t.numel() else [])


@pytest.fixture
def run():
    model = Takes()
    with probe.watch(model, keep="(root)") as found:
        model(**EVERY)
    return found


def test_tensors_of_every_type_come_back_bit_for_bit(run, tmp_path):
    path = run.save(tmp_path / "run.parquet")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.parquet", "run.safetensors"]
    again = probe.load(path)
    assert again.kept().equals(run.kept())
    assert set(again.kept()["status"]) == {"kept"}
    assert len(again.kept()) == len(EVERY)
    for (name, t), leaf in zip(EVERY.items(), again.kept()["leaf"], strict=True):
        assert bits(again.tensor("(root)", leaf=leaf)) == bits(t), name
    assert again.df.equals(run.df)


def test_types_that_others_know_are_written_as_such(run, tmp_path):
    from safetensors.torch import load_file

    run.save(tmp_path / "run.parquet")
    found = [*load_file(tmp_path / "run.safetensors").values()]
    known = {t.dtype for t in found}
    assert {torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.int64} <= known


def small(value=1.0):
    model = nn.Linear(2, 2)
    with probe.watch(model, keep="(root)") as run:
        model(torch.full((1, 2), value))
    return run


def test_a_run_that_keeps_nothing_is_one_file(tmp_path):
    model = nn.Linear(2, 2)
    with probe.watch(model) as run:
        model(torch.ones(1, 2))
    assert probe.load(run.save(tmp_path / "run.parquet")).kept().empty
    assert [p.name for p in tmp_path.iterdir()] == ["run.parquet"]


def test_the_tensors_belong_to_the_whole_name_of_the_records(tmp_path):
    for number, name in enumerate(("run.1", "run.2", "run")):
        small(float(number)).save(tmp_path / name)
    for number, name in enumerate(("run.1", "run.2", "run")):
        assert probe.load(tmp_path / name).tensor("(root)")[0, 0] == number


def test_a_file_of_somebody_elses_is_never_overwritten(tmp_path):
    from safetensors.torch import save_file

    weights = tmp_path / "model.safetensors"
    save_file({"weight": torch.ones(3)}, weights)
    before = weights.read_bytes()
    with pytest.raises(FileExistsError, match=r"model\.safetensors"):
        small().save(tmp_path / "model.parquet")
    assert weights.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_run_that_is_saved_again_takes_the_place_of_both_files(tmp_path):
    small(1.0).save(tmp_path / "run.parquet")
    small(2.0).save(tmp_path / "run.parquet")
    again = probe.load(tmp_path / "run.parquet")
    assert again.tensor("(root)")[0, 0] == 2.0
    again.save(tmp_path / "run.parquet")
    assert probe.load(tmp_path / "run.parquet").tensor("(root)")[0, 0] == 2.0
    moved = again.save(tmp_path / "copy.parquet")
    assert probe.load(moved).tensor("(root)")[0, 0] == 2.0


def test_tensors_of_another_run_are_noticed_and_the_records_are_read(tmp_path):
    small(1.0).save(tmp_path / "a.parquet")
    small(2.0).save(tmp_path / "b.parquet")
    (tmp_path / "b.safetensors").replace(tmp_path / "a.safetensors")
    run = probe.load(tmp_path / "a.parquet")
    assert len(run.df) == 4
    for ask in (run.kept, lambda: run.tensor("(root)")):
        with pytest.raises(RunFormatError, match="other tensors than belong to the records"):
            ask()


def test_a_file_that_is_gone_is_said_when_somebody_asks(tmp_path):
    small().save(tmp_path / "run.parquet")
    (tmp_path / "run.safetensors").unlink()
    run = probe.load(tmp_path / "run.parquet")
    assert len(run.df) == 4
    with pytest.raises(FileNotFoundError, match=r"run\.safetensors"):
        run.tensor("(root)")


def test_a_file_damaged_at_any_byte_is_an_error_of_the_format_or_harmless(tmp_path):
    small(3.0).save(tmp_path / "run.parquet")
    path = tmp_path / "run.safetensors"
    whole = path.read_bytes()
    refused = 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            _, (kept,) = tensors.read(path)
            t = tensors.as_tensor(kept, kept.data.result())
        except RunFormatError:
            refused += 1
        else:  # a space
            assert bits(t) == bits(torch.full((1, 2), 3.0)), place
    assert refused > len(whole) * 0.9
    for end in (0, 5, 8, 100, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(RunFormatError, match=r"run\.safetensors"):
            probe.load(tmp_path / "run.parquet").kept()


def with_metadata(path, change):
    """Write a file anew with other metadata."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    about = json.loads(header["__metadata__"]["probe_nb"])
    change(about)
    header["__metadata__"]["probe_nb"] = json.dumps(about)
    header["__metadata__"]["probe_nb crc32"] = f"{zlib.crc32(json.dumps(about).encode()):08x}"
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


CHANGES = {
    "newer": lambda about: about.update(version=2),
    "a shape of nobody": lambda about: about["tensors"][0].__setitem__(11, [-1, -2]),
    "no format": lambda about: about.pop("format"),
    "no id": lambda about: about.pop("id"),
    "no tensors": lambda about: about.pop("tensors"),
    "a fact too few": lambda about: about["tensors"][0].pop(),
    "a role of nobody": lambda about: about["tensors"][0].__setitem__(4, "inputs"),
    "a text for a number": lambda about: about["tensors"][0].__setitem__(6, "0"),
    "a shape of text": lambda about: about["tensors"][0].__setitem__(11, ["2"]),
    "a tensor that is not there": lambda about: about["tensors"].append(about["tensors"][0]),
    "a wrong sum": lambda about: about["tensors"][0].__setitem__(-1, 0),
    "a size of another": lambda about: about["tensors"][0].__setitem__(12, 4),
    "a shape of another": lambda about: about["tensors"][0].__setitem__(11, [3, 3]),
    "a type of nobody": lambda about: about["tensors"][0].__setitem__(10, "float33"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_the_file_says_of_tensors_is_checked(what, tmp_path):
    small().save(tmp_path / "run.parquet")
    with_metadata(tmp_path / "run.safetensors", CHANGES[what])
    with pytest.raises(RunFormatError, match=r"run\.safetensors"):
        probe.load(tmp_path / "run.parquet").tensor("(root)")


def test_what_the_records_say_of_tensors_is_checked(tmp_path):
    import pyarrow.parquet as pq

    path = small().save(tmp_path / "run.parquet")
    table = pq.read_table(path)
    about = json.loads(table.schema.metadata[b"probe_nb"])
    for wrong in (3, [], {}, {"id": "a"}, {"id": "a", "folder": 3}):
        about["tensors"] = wrong
        metadata = table.schema.metadata | {b"probe_nb": json.dumps(about).encode()}
        pq.write_table(table.replace_schema_metadata(metadata), path)
        with pytest.raises(RunFormatError, match=r"run\.parquet"):
            probe.load(path)


def test_a_streamed_run_is_saved_with_the_name_of_its_folder(tmp_path):
    model = nn.Linear(2, 2)
    with probe.watch(model, keep=probe.Keep("(root)", folder=tmp_path / "kept")) as run:
        model(torch.ones(1, 2))
        run.save(tmp_path / "early.parquet")
        model(torch.zeros(1, 2))
    path = run.save(tmp_path / "run.parquet")
    assert {p.name for p in tmp_path.iterdir()} == {"early.parquet", "kept", "run.parquet"}
    again = probe.load(path)
    assert again.kept().equals(run.kept())
    assert again.tensor("(root)", step=0).tolist() == [[1.0, 1.0]]
    third = probe.load(again.save(tmp_path / "third.parquet"))
    assert third.tensor("(root)").tolist() == [[0.0, 0.0]]
    (tmp_path / "kept").rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError, match="kept"):
        probe.load(path).kept()
    assert len(probe.load(tmp_path / "moved").kept()) == 2


def test_a_disk_that_fails_while_saving_leaves_the_pair_that_was_there(tmp_path, monkeypatch):
    small(1.0).save(tmp_path / "run.parquet")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def fails(*_, **__):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(tensors, "write", fails)
        with pytest.raises(OSError, match="no space left"):
            small(2.0).save(tmp_path / "run.parquet")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_more_than_a_header_can_describe_is_refused_and_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(tensors, "_HEADER", 1000)
    kept = [
        Kept(
            "m",
            "a",
            "forward",
            "input",
            "0",
            n,
            0,
            0,
            -1,
            "uint8",
            (1,),
            1,
            data=np.zeros(1, np.uint8),
        )
        for n in range(20)
    ]
    with pytest.raises(ValueError, match="20 tensors are too many for one file"):
        tensors.write(tmp_path / "x.safetensors", kept, "a", lasting=False)
    assert not list(Path(tmp_path).iterdir())


def test_reading_a_run_and_listing_its_tensors_needs_no_torch(tmp_path):
    import subprocess
    import sys

    path = small().save(tmp_path / "run.parquet")
    script = (
        "import sys; from probe_nb.run import load; run = load(sys.argv[1]);"
        "assert len(run.df) == 4; assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
