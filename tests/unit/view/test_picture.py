"""The small picture of a kept tensor, held against plain loops and numbers worked out by hand."""

from __future__ import annotations

import base64
import gzip
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import probe_nb as probe
from probe_nb.store.kept import Kept
from probe_nb.view import picture, report
from probe_nb.view.frame import reading
from probe_nb.view.inspector import Inspector

NAN, INF = float("nan"), float("inf")


def kept(t, **given):
    data = t.contiguous().reshape(-1).view(torch.uint8).numpy().copy() if t.numel() else None
    dtype = str(t.dtype).removeprefix("torch.")
    facts = {
        "model": "model",
        "module": "fc",
        "direction": "forward",
        "role": "output",
        "leaf": "0",
        "step": 3,
        "micro_step": 0,
        "call": 0,
        "backward": -1,
        "dtype": dtype,
        "shape": tuple(t.shape),
        "bytes": t.numel() * t.element_size(),
    }
    return Kept(**facts | given, data=data)


def cells(t, **given):
    return picture.picture_of(kept(t, **given)).values


def largest(block):
    """Return the element of largest magnitude of a list, NaN if there is one."""
    if any(x != x for x in block):  # noqa: PLR0124 - NaN alone differs from itself
        return NAN
    return max(block, key=abs)


def unpacked(data):
    """Read a picture by its description alone."""
    magic, version, h, w, size, *zeros = np.frombuffer(data, "<u4", 8).tolist()
    assert (magic, version, zeros) == (0x31424E50, 4, [0, 0, 0])
    about = json.loads(data[32 : 32 + size])
    begin = 32 + -(-size // 8) * 8
    return about, np.frombuffer(data, "<f8", h * w, begin).reshape(h, w)


def test_a_small_matrix_is_drawn_element_by_element():
    t = torch.tensor([[1.5, -2.0, 0.0], [INF, -INF, NAN]])
    found = picture.picture_of(kept(t))
    np.testing.assert_array_equal(found.values, [[1.5, -2.0, 0.0], [INF, -INF, NAN]])
    assert {name: found.about[name] for name in ("nan", "posinf", "neginf")} == {
        "nan": 1,
        "posinf": 1,
        "neginf": 1,
    }
    assert (found.about["slice"], found.about["pooled"], found.about["step"]) == ("", "", 3)


@pytest.mark.parametrize("shape", [(128, 64), (64, 200), (65, 67), (300, 3), (1, 1000)])
def test_cells_keep_the_largest_magnitude_of_their_elements(shape):
    t = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = cells(t)
    h, w = (min(64, size) for size in shape)
    assert found.shape == (h, w)
    for i in range(h):
        for j in range(w):
            rows = range(i * shape[0] // h, (i + 1) * shape[0] // h)
            columns = range(j * shape[1] // w, (j + 1) * shape[1] // w)
            assert found[i, j] == largest([t[r, c].item() for r in rows for c in columns])


def test_one_bad_element_among_millions_survives_and_does_not_spread():
    t = torch.zeros(1024, 1024, dtype=torch.float16)
    t[17, 1023], t[500, 0], t[501, 1] = NAN, INF, -INF
    t[1023, 512] = -3
    found = cells(t)
    expected = np.zeros((64, 64))
    expected[1, 63], expected[31, 0], expected[63, 32] = NAN, INF, -3
    np.testing.assert_array_equal(found, expected)


def test_a_nan_weighs_more_than_an_infinity_in_its_cell():
    t = torch.ones(2, 128)
    t[0, 0], t[0, 1], t[1, 2] = INF, NAN, -INF
    found = cells(t)
    assert np.isnan(found[0, 0])
    assert found[1, 1] == -INF


def test_the_first_slice_with_a_nan_is_drawn_else_the_first_one():
    t = torch.arange(2 * 3 * 2 * 2, dtype=torch.float32).reshape(2, 3, 2, 2)
    found = picture.picture_of(kept(t))
    np.testing.assert_array_equal(found.values, [[0, 1], [2, 3]])
    assert found.about["slice"] == "slice [0, 0]"
    t[1, 2, 0, 1] = t[1, 1, 1, 0] = INF
    found = picture.picture_of(kept(t))
    np.testing.assert_array_equal(found.values, [[16, 17], [INF, 19]])
    assert found.about["slice"] == "slice [1, 1], the first with NaN or Inf"
    assert found.about["posinf"] == 1  # in this slice


def test_a_nan_far_into_a_large_tensor_is_found():
    t = torch.zeros(3, 1024, 1024, dtype=torch.bfloat16)
    t[2, 1000, 3] = NAN
    found = picture.picture_of(kept(t))
    assert found.about["slice"] == "slice [2], the first with NaN or Inf"
    assert found.about["pooled"] == "each cell the largest of 16\N{MULTIPLICATION SIGN}16 elements"
    assert np.isnan(found.values[62, 0])


def test_scalars_and_vectors_are_one_row():
    assert cells(torch.tensor(-2.5)).tolist() == [[-2.5]]
    assert cells(torch.tensor([1, -7, 3])).tolist() == [[1.0, -7.0, 3.0]]
    found = picture.picture_of(kept(torch.arange(130)))
    assert found.values.shape == (1, 64)
    assert found.values[0, -1] == 129
    assert (
        found.about["pooled"] == "each cell the largest of up to 1\N{MULTIPLICATION SIGN}3 elements"
    )


@pytest.mark.parametrize(
    "dtype",
    [
        *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
        *("int64", "int32", "int16", "int8"),
    ],
)
def test_every_number_is_exact_in_every_type(dtype):
    t = torch.tensor([[0.0, 1.0, -2.0], [3.0, -96.0, 0.25]]).to(getattr(torch, dtype))
    assert cells(t).tolist() == t.to(torch.float64).tolist()


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_all_patterns_of_eight_bits_are_what_torch_says(dtype):
    t = torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype)).reshape(16, 16)
    np.testing.assert_array_equal(cells(t), t.to(torch.float64).numpy())


def test_sizes_that_only_float64_has_are_neither_zero_nor_infinite():
    t = torch.tensor([[1e300, -1e-300]], dtype=torch.float64)
    assert cells(t).tolist() == [[1e300, -1e-300]]


def test_bools_and_complex_numbers_are_drawn_as_what_they_are():
    assert cells(torch.tensor([True, False])).tolist() == [[1.0, 0.0]]
    found = picture.picture_of(kept(torch.tensor([3 - 4j, complex(NAN, 1)])))
    np.testing.assert_array_equal(found.values, [[5.0, NAN]])
    assert found.about["part"] == "magnitudes"


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: kept(torch.empty(0, 4)), "The tensor has no elements."),
        (
            lambda: kept(torch.ones(2), status="not kept: budget", shape=(5,), dtype="float32"),
            "not its shape",
        ),
        (lambda: kept(torch.ones(2), dtype="quint8"), "quint8 cannot be drawn."),
    ],
)
def test_what_cannot_be_drawn_has_a_reason(made, why):
    with pytest.raises(picture.Undrawn, match=why):
        picture.picture_of(made())


def test_a_tensor_that_made_room_says_so():
    each = kept(torch.ones(2))
    each.drop("made room")
    with pytest.raises(picture.Undrawn, match="not kept: made room"):
        picture.picture_of(each)


# -- of a run ------------------------------------------------------------------------------------


def watched(**options):
    model = torch.nn.Linear(3, 2)
    with probe.watch(model, live=False, **options) as run:
        for step in range(3):
            model(torch.full((2, 3), float(step)))
            run.step()
    return run


def pictures(run, *args):
    with reading(run) as builder:
        sites = builder.tally.columns.tables.sites.values
        return {
            (site.module, site.role): unpacked(builder.picture(row, *args))
            for row, site in enumerate(sites)
        }


def test_a_row_has_the_tensor_of_the_step_that_it_shows():
    run = watched(keep="*")
    about, values = pictures(run)["", "input"]
    assert about["step"] == 2
    np.testing.assert_array_equal(values, np.full((2, 3), 2.0))
    about, values = pictures(run, 1)["", "input"]
    assert (about["step"], values[0, 0]) == (1, 1.0)
    about, _ = pictures(run, 99)["", "input"]
    assert about["step"] == 2  # the newest, and it says so


def test_a_row_whose_tensor_was_not_asked_for_says_so():
    about, values = pictures(watched(keep="*"))["", "output"]
    assert about["why"] == "keep= did not ask for this tensor."
    assert values.size == 0


def test_a_row_has_the_call_that_its_numbers_are_of():
    model = torch.nn.Linear(3, 2)
    with probe.watch(model, live=False, keep="*") as run:
        model(torch.tensor([[1.0, NAN, 3.0]])).sum().backward()
        model(torch.ones(1, 3)).sum().backward()
    about, values = pictures(run)["", "input"]
    assert about["call"] == 0
    assert np.isnan(values[0, 1])


def test_a_saved_run_is_drawn_without_torch(tmp_path):
    watched(keep="*").save(tmp_path / "run.parquet")
    code = f"""
import json, pathlib, sys
from probe_nb.store import tensors
from probe_nb.store.kept import described
from probe_nb.view import picture, report
path = pathlib.Path({str(tmp_path / "run.safetensors")!r})
with path.open("rb") as file:
    head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
about = json.loads(head["__metadata__"]["probe_nb"])["tensors"]
for number, (*facts, crc) in enumerate(about):
    each = described(facts)
    each.data = tensors.Stored(path, str(number), each.bytes, crc)
    print(each.step, picture.picture_of(each).values.tolist())
assert "torch" not in sys.modules, "torch was imported"
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == [f"{step} {[[float(step)] * 3] * 2}" for step in range(3)]


def test_a_damaged_or_missing_file_is_a_reason_and_no_error(tmp_path):
    watched(keep="*").save(tmp_path / "run.parquet")
    path = tmp_path / "run.safetensors"
    data = bytearray(path.read_bytes())
    run = probe.load(tmp_path / "run.parquet")
    run.kept()  # reads what is there, not the tensors
    data[-1] ^= 1
    path.write_bytes(data)
    about, _ = pictures(run)["", "input"]
    assert "damaged" in about["why"]
    path.unlink()
    about, _ = pictures(run)["", "input"]
    assert about["why"] == "The file with the tensor is gone."


# -- in the inspector and in a report ------------------------------------------------------------


def test_the_widget_answers_with_the_picture_of_the_row_that_was_asked_for():
    run = watched(keep="*")
    widget = Inspector(run)
    sites = run.columns.tables.sites.values
    row = next(at for at, site in enumerate(sites) if site.role == "input")
    widget._handle_custom_msg({"ask": "picture", "row": row, "step": 1}, [])
    about, values = unpacked(widget.picture)
    assert (about["row"], about["step"]) == (row, 1)
    np.testing.assert_array_equal(values, np.full((2, 3), 1.0))
    widget._handle_custom_msg({"ask": "picture", "row": 99}, [])  # there is no such row
    assert "IndexError" in json.loads(widget.refused)["picture"]
    widget.close()


def embedded(html):
    found = re.search(r' data-picture="([^"]*)"', html)
    data = gzip.decompress(base64.b64decode(found[1])) if found and found[1] else b""
    pictures = []
    while data:
        about, values = unpacked(data)
        pictures.append((about, values))
        size = int(np.frombuffer(data, "<u4", 8)[4])
        data = data[32 + -(-size // 8) * 8 + values.nbytes :]
    return pictures


def test_a_report_brings_the_tensors_of_the_culprits_module():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
    with probe.watch(model, live=False, keep=probe.Keep("1", roles="input, output")) as run:
        model(torch.tensor([[1.0, NAN, 2.0]]))
        with torch.no_grad():
            model[1].bias[0] = NAN
    found = embedded(report.html_page(run))
    rows = {about["row"] for about, _ in found}
    assert len(found) == len(rows) == 2
    for _, values in found:
        np.testing.assert_array_equal(values, [[NAN, NAN]])


def test_a_report_knows_of_each_row_why_nothing_of_it_is_kept():
    """No other place is named, as if it had what was never kept."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
    keep = probe.Keep("1", roles="input, output")
    with probe.watch(model, live=False, keep=keep) as run:
        model(torch.ones(1, 3))
    for kept in run.tensors.known():
        if kept.role == "input":
            kept.drop("the budget was used up")
    with reading(run) as builder:
        rows = np.arange(builder.tally.sites)[::-1]
        whys = json.loads(builder.status(rows))["unkept"]
        assert json.loads(builder.status())["unkept"] == []
        sites = [builder.tally.columns.tables.sites.values[row] for row in rows]
    wanted = {
        ("1", "output"): "",
        ("1", "input"): "The tensor is not kept: the budget was used up.",
    }
    asked = "keep= did not ask for this tensor."
    assert whys == [wanted.get((site.module, site.role), asked) for site in sites]
    assert set(whys) == {*wanted.values(), asked}
    with probe.watch(model, live=False) as run:
        model(torch.ones(1, 3))
    with reading(run) as builder:
        assert json.loads(builder.status(np.arange(2)))["unkept"] == []


def test_a_report_reads_no_tensor_that_would_keep_the_cell_waiting(monkeypatch):
    monkeypatch.setattr(report, "LARGEST", 40)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 20))
    with probe.watch(model, live=False, keep=probe.Keep("*", roles="output")) as run:
        model(torch.ones(1, 3))
    assert [about["shape"] for about, _ in embedded(report.html_page(run))] == [[1, 2]]


def test_an_answer_says_what_was_asked_and_a_fault_of_ours_is_a_reason(monkeypatch):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    with probe.watch(model, live=False, keep=probe.Keep("*", roles="output")) as run:
        model(torch.ones(1, 3))
    with reading(run) as builder:
        sites = builder.tally.columns.tables.sites.values
        row = [(site.module, site.role) for site in sites].index(("0", "output"))
        assert unpacked(builder.picture(row, 0))[0]["asked"] == 0
        assert unpacked(builder.picture(row))[0]["asked"] is None
        monkeypatch.setattr(picture, "picture_of", lambda _: 1 / 0)
        why = unpacked(builder.picture(row, 0))[0]["why"]
    assert why == "The tensor cannot be drawn: ZeroDivisionError: division by zero"


def test_large_pictures_leave_a_report_as_small_as_it_was_promised():
    model = torch.nn.Linear(64, 64)
    with probe.watch(model, live=False, keep=probe.Keep("*", roles="input, output")) as run:
        model(torch.randn(64, 64, dtype=torch.float32))
    html = report.html_page(run)
    assert len(html) < report.LIMIT
    assert len(re.search(r' data-picture="([^"]*)"', html)[1]) <= report.PICTURES


def test_a_run_that_keeps_nothing_has_no_picture_to_embed():
    assert embedded(report.html_page(watched())) == []
