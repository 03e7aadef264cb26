"""Checksums: over which bytes they are taken, and when. Expected values come from zlib, NumPy and msProbe."""

from __future__ import annotations

import json
import math
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.tensor import DeviceMesh, DTensor, Shard

import probe_nb as probe
from probe_nb.errors import ConfigError, ProbeWarning
from probe_nb.stats import checksum
from tests.models import no_faults

REAL = json.loads(Path(__file__).with_name("checksums_of_msprobe.json").read_text())
"""What msProbe 26.2.0 wrote of `tensors()`: CRC-32, and exclusive or."""

DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8"),
    *("bool", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"),
)


def tensors():
    n = torch.arange(35, dtype=torch.float64).reshape(5, 7)
    base = (n * 37 % 101 - 50) / 8
    made = {}
    for name in DTYPES:
        t = (base.abs() if name == "uint8" else base).to(getattr(torch, name))
        made |= {name: t, f"{name} transposed": t.t(), f"{name} part": t[1:, 3:]}
        made |= {f"{name} shifted": t.flatten()[1:], f"{name} scalar": t[2, 3].clone()}
        made[f"{name} empty"] = t[:0]
    made["expanded"] = torch.tensor([2.5]).expand(16, 4)
    made["constant"] = torch.full((8, 4), 3.0)
    made["nan"] = torch.tensor(float("nan"))
    made["inf"] = torch.tensor(float("-inf"))
    made["negative zero"] = torch.tensor(-0.0)
    made["meta"] = torch.empty(3, device="meta")
    channels = torch.arange(120.0).reshape(2, 3, 4, 5)
    made["channels last"] = channels.to(memory_format=torch.channels_last)
    parts = [torch.ones(2, 3), torch.full((4, 3), 2.0)]
    made["jagged"] = torch.nested.nested_tensor(parts, layout=torch.jagged)
    return made


def crc(*arrays):
    return f"{zlib.crc32(b''.join(np.ascontiguousarray(a).tobytes() for a in arrays)):08x}"


def first(text):
    """The part of `xor` that is msProbe's, as it stands in its JSON."""
    if text is None:
        return None
    word = text.rsplit(":", 1)[0]
    return word if word.startswith("0x") else json.loads(word)


@pytest.mark.parametrize("name", REAL)
def test_a_crc32_is_the_one_that_msprobe_writes(name):
    assert checksum.crc32(tensors()[name]) == REAL[name][0]


@pytest.mark.parametrize("name", [n for n in REAL if "float8" not in n and "complex" not in n])
def test_the_first_part_of_an_xor_is_the_one_that_msprobe_writes(name):
    found, real = first(checksum.xor(tensors()[name])), REAL[name][1]
    assert type(found) is type(real)
    assert found == real or (math.isnan(found) and math.isnan(real))


@pytest.mark.parametrize("name", [n for n in DTYPES if "bfloat" not in n and "float8" not in n])
def test_both_are_those_of_the_bytes(name):
    t = tensors()[name]
    data = t.numpy().tobytes()
    words = np.frombuffer(data + bytes(-len(data) % 8), np.uint64)
    assert checksum.crc32(t) == f"{zlib.crc32(data):08x}"
    assert checksum.xor(t) == f"0x{np.bitwise_xor.reduce(words):016x}:{zlib.crc32(data):08x}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_bits_of_a_narrow_type_count_as_they_are(dtype):
    bits = np.array([0x3F80, 0xC000, 0x7FC1, 0x0001, 0x8000], np.uint16)
    assert checksum.crc32(torch.from_numpy(bits).view(dtype)) == crc(bits)


def test_an_expanded_tensor_counts_every_element():
    t = torch.tensor([[1.5], [-2.0]]).expand(2, 1000)
    assert checksum.crc32(t) == crc(np.repeat(np.float32([1.5, -2.0]), 1000))


def test_what_is_to_be_conjugated_or_negated_counts_as_its_value():
    values = np.array([1 + 2j, -3 + 0.5j], np.complex64)
    t = torch.from_numpy(values)
    assert checksum.crc32(t.conj()) == crc(values.conj())
    assert checksum.crc32(t.conj().imag) == crc(values.conj().imag)


def test_quantised_values_count_as_they_are_stored():
    t = torch.quantize_per_tensor(torch.tensor([-1.0, 0.0, 2.0]), 0.5, 3, torch.qint8)
    assert checksum.crc32(t) == crc(np.int8([1, 3, 7]))  # x / 0.5 + 3


def test_of_a_sparse_tensor_indices_and_values_count():
    places, values = [[2, 0, 2], [1, 0, 1]], [1.0, 5.0, 2.0]
    t = torch.sparse_coo_tensor(places, values, (3, 2), check_invariants=True)
    assert checksum.crc32(t) == crc(np.int64([[0, 2], [0, 1]]), np.float32([5.0, 3.0]))
    rows = t.to_dense().to_sparse_csr()
    expected = crc(np.int64([0, 1, 1, 2]), np.int64([0, 1]), np.float32([5.0, 3.0]))
    assert checksum.crc32(rows) == expected


def test_of_a_ragged_tensor_the_real_elements_count():
    t = torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(1, 3)])
    assert checksum.crc32(t) == crc(np.float32([1.0] * 6 + [0.0] * 3))


def test_equal_words_and_words_in_another_order_are_told_apart():
    ones, twos = checksum.xor(torch.ones(8)), checksum.xor(torch.full((8,), 2.0))
    assert first(ones) == first(twos) == "0x0000000000000000"
    assert ones != twos
    there, back = torch.arange(8).double(), torch.arange(7, -1, -1).double()
    assert first(checksum.xor(there)) == first(checksum.xor(back))
    assert checksum.xor(there) != checksum.xor(back)


def test_memory_that_was_let_go_is_not_read():
    t = torch.ones(1000)
    t.untyped_storage().resize_(0)
    assert checksum.crc32(t) is None
    assert checksum.xor(t) is None


def test_the_tensor_of_a_transform_has_the_checksum_of_its_values():
    seen = []

    def f(x):
        seen.append(checksum.crc32(x))
        return x.sum()

    torch.func.grad(f)(torch.tensor([1.0, 2.0]))
    assert seen == [crc(np.float32([1.0, 2.0]))]


def test_inside_vmap_there_is_none():
    seen = []
    torch.vmap(lambda x: seen.append(checksum.crc32(x)) or x)(torch.ones(2, 3))
    assert seen == [None]


# -- in a watch ----------------------------------------------------------------------------------


def one(run, **where):
    (found,) = run.frame(**where)["checksum"].tolist()
    return found


def test_it_is_of_the_input_as_it_was_before_a_module_wrote_it():
    x = np.float32([[-1.0, 2.0], [3.0, -4.0]])
    with no_faults(), probe.watch(model := nn.ReLU(inplace=True), checksum="crc32") as run:
        model(torch.from_numpy(x.copy()))
    assert one(run, role="input") == crc(x)
    assert one(run, role="output") == crc(np.maximum(x, 0))


def test_every_role_has_one_beside_its_statistics():
    model = nn.Linear(2, 1, bias=False)
    weight = model.weight.detach().numpy().copy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    x = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    with no_faults(), probe.watch(model, optimizer=optimizer, checksum="crc32") as run:
        model(x).sum().backward()
        optimizer.step()
    assert one(run, role="param", direction="forward") == crc(weight)
    assert one(run, role="grad_output") == crc(np.float32([[1.0], [1.0]]))
    assert one(run, role="param_grad", direction="backward", leaf="weight") == crc(
        np.float32([[4, 7]])
    )
    assert one(run, role="param", direction="optimizer") == crc(
        weight - np.float32(0.5) * np.float32([[4, 7]])
    )
    assert one(run, role="update") == crc(model.weight.detach().numpy() - weight)
    assert run.frame(role="input")["mean"].tolist() == [2.75]


def test_what_was_seen_already_has_the_same_and_is_not_read_again(monkeypatch):
    read = []
    sums = checksum.SUMS["crc32"]
    monkeypatch.setitem(checksum.SUMS, "crc32", lambda t: read.append(t.shape) or sums(t))
    model = nn.Sequential(nn.Tanh(), nn.Tanh())
    with no_faults(), probe.watch(model, checksum="crc32", roles="input,output") as run:
        model(torch.ones(2, 3))
    by = dict(
        zip(zip(run.df["module"], run.df["role"], strict=True), run.df["checksum"], strict=True)
    )
    assert by["0", "output"] == by["1", "input"] != by["1", "output"] == by["", "output"]
    assert len(read) == 3  # x, and what each of the two made


def test_a_part_of_the_same_memory_has_its_own():
    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Identity(), nn.Identity(), nn.Identity()

        def forward(self, x):
            return self.a(x[:2]), self.b(x[2:]), self.c(x.t())

    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    with no_faults(), probe.watch(model := Halves(), checksum="crc32", roles="input") as run:
        model(torch.from_numpy(x))
    found = {name: one(run, module=name) for name in "abc"}
    assert found == {"a": crc(x[:2]), "b": crc(x[2:]), "c": crc(x.T)}


def test_rows_without_numbers_have_none():
    class Makes(nn.Module):
        def forward(self, x):
            return x, torch.empty(3, device="meta"), x[:0]

    with no_faults(), probe.watch(model := Makes(), checksum="xor", roles="output") as run:
        model(torch.ones(2))
    assert run.df["checksum"].isna().tolist() == [False, True, True]
    assert run.df["status"].tolist() == ["ok", "meta", "empty"]


def test_each_row_keeps_its_own_where_drains_come_in_between():
    model = nn.Identity()
    with no_faults(), probe.watch(model, checksum="crc32", roles="input") as run:
        for step in range(5):
            model(torch.tensor([float(step)]))
            if step % 2:
                run.flush()
    assert run.df["checksum"].tolist() == [crc(np.float32([step])) for step in range(5)]


def test_a_watch_that_stops_and_one_that_keeps_have_them_too():
    model, x = nn.Identity(), np.float32([1.0, 2.0])
    options = {"checksum": "crc32", "roles": "input,output"}
    with probe.watch(model, stop_on="nonfinite", keep="(root)", **options) as run:
        model(torch.from_numpy(x))
    assert set(run.df["checksum"]) == {crc(x)}


def test_it_survives_a_file(tmp_path):
    with probe.watch(model := nn.Identity(), checksum="xor", roles="input") as run:
        model(torch.ones(2))
    loaded = probe.load(run.save(tmp_path / "run.parquet"))
    assert loaded.df["checksum"].tolist() == [f"0x3f8000003f800000:{crc(np.float32([1, 1]))}"]


def test_of_a_spread_tensor_it_is_of_the_part_that_is_here(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch puts its own there
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        part = torch.tensor([1.0, 2.0])
        spread = DTensor.from_local(part, DeviceMesh("cpu", [0]), [Shard(0)])
        with no_faults(), probe.watch(model := nn.Identity(), checksum="crc32") as run:
            model(spread)
    finally:
        torch.distributed.destroy_process_group()
    assert set(run.frame(role="input")["checksum"]) == {crc(part.numpy())}


def test_a_checksum_that_fails_is_absent_and_the_row_is_whole(monkeypatch):
    def broken(_):
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setitem(checksum.SUMS, "crc32", broken)
    model = nn.Identity()
    with pytest.warns(ProbeWarning, match="checksum"), probe.watch(model, checksum="crc32") as run:
        model(torch.ones(2))
    assert run.df["checksum"].isna().all()
    assert run.df["mean"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("interrupted", range(1, 7))
def test_an_interrupted_checksum_costs_its_row_and_shifts_no_other(monkeypatch, interrupted):
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(3, 4)
    outputs = {"0": model[0](x), "1": model[:2](x), "2": model(x)}
    calls, real = [], checksum._crc32

    def crc32(parts):
        calls.append(1)
        if len(calls) == interrupted:
            raise KeyboardInterrupt
        return real(parts)

    monkeypatch.setattr(checksum, "_crc32", crc32)
    with probe.watch(model, checksum="crc32", roles="input,output", reduce_once=False) as run:
        with pytest.raises(KeyboardInterrupt):
            model(x)
        model(x)
    last = run.frame(step=int(run.df["step"].max()), role="output")
    for path, output in outputs.items():
        (found,) = last.loc[last["module"] == path, "checksum"]
        assert found == f"{zlib.crc32(output.detach().numpy().tobytes()):08x}"
    first = run.frame(step=0)
    assert int(first["checksum"].isna().sum()) == 1
    assert first["checksum"].isna().to_list() == [False] * (len(first) - 1) + [True]


def test_without_the_option_there_are_none():
    with probe.watch(model := nn.Identity()) as run:
        model(torch.ones(2))
    assert run.df["checksum"].isna().all()


def test_another_word_is_refused():
    with pytest.raises(ConfigError, match="crc32 or xor"):
        probe.watch(nn.Identity(), checksum="md5")


def test_training_is_the_same_to_the_bit():
    def trained(kind):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        watch = probe.watch(model, optimizer=optimizer, checksum=kind, live=False)
        with no_faults(), watch:
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.randn(5, 3)).square().mean().backward()
                optimizer.step()
        return [p.detach().clone() for p in model.parameters()], torch.get_rng_state()

    plain, state = trained(None)
    for kind in checksum.SUMS:
        weights, after = trained(kind)
        assert all(map(torch.equal, plain, weights))
        assert torch.equal(state, after)
