"""What we write, held against what msProbe writes of the same programs, by msProbe's own tools."""

from __future__ import annotations

import csv
import json
import math
import re
import sqlite3

import numpy as np
import pytest
import torch

import probe_nb as probe
from tests.interop import programs
from tests.interop.dumps import DUMPS
from tests.interop.ours import run_of

ROLES = "input,output,param,grad_output,grad_input,param_grad"
SUMS = {"md5": "crc32", "xor": "xor"}

COMPOSITE = (
    "Functional.linear",
    "Functional.cross_entropy",
    "Functional.multi_head_attention_forward",
)
"""Functions of several nodes: msProbe writes what leaves the last one, not what leaves the call."""

WRITTEN_IN_PLACE = (
    "Functional.batch_norm",
    "Tensor.add_",
    "Tensor.masked_fill_",
    "Tensor.__setitem__",
)
"""Functions of whose arguments msProbe may take the checksum after they were written."""

UNSEEN = {
    "Torch.randn",
    "Torch.randint",
    "Torch.zeros",
    "Torch.zeros_like",
    "VF.lstm",
    "Tensor.__getitem__",
}
"""Functions that msProbe does not wrap."""

NEVER_CALLED = "Module.attn.out_proj.NonDynamicallyQuantizableLinear.parameters_grad"
"""Gradients of a module that is never called: its parameters are used by the one around it."""


COMPARED = [
    *(
        (name, 1, "theirs")
        for name in ("L0", "L1", "mix", "md5", "xor", "tensor", "inplace", "bare")
    ),
    *((name, 0, "theirs") for name in ("L0", "tensor", "shared", "debug")),
    *((name, 1, "ours") for name in ("L0", "L1", "mix")),
    *((name, 0, "ours") for name in ("inplace", "debug")),
]
"""Name of a dump, its step (the second one adds up two micro batches), and whose rows are listed:
msProbe drops those of the other side."""


def step(folder, number):
    """Return the folder of the one process in a step."""
    (found,) = folder.glob(f"step{number}/*")
    return found


def file_of(name, folder, number):
    return step(folder, number) / ("debug.json" if name == "debug" else "dump.json")


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """Return our dumps of the same programs, by the same names; one of them is in two forms."""
    root, found = tmp_path_factory.mktemp("ours"), {}
    for name, (program, config) in DUMPS.items():
        kept = {"keep": probe.Keep("*", roles=ROLES)} if name == "tensor" else {}
        run = run_of(program, config["level"], checksum=SUMS.get(name), **kept)
        found[name] = run.write_dump(root / name)
        if name == "L0":
            found["bare"] = run.write_dump(root / "bare", extras=False)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Softmax(-1), torch.nn.Linear(2, 1))
    model[1].forward = lambda x: x / 0
    with probe.watch(model, values=True, stacks=True) as run:
        model(torch.ones(3, 2))
    found["overflow"] = run.write_dump(root / "overflow")
    return found


@pytest.fixture(scope="module")
def tools(msprobe_jobs, theirs, ours, tmp_path_factory):
    """Return the folder in which each tool of msProbe's has left its result."""
    out = tmp_path_factory.mktemp("tools")
    jobs = []
    for name, number, way in COMPARED:
        real = theirs["L0" if name == "bare" else name]
        sides = [str(file_of(name, side, number)) for side in (real, ours[name])]
        target, golden = sides if way == "theirs" else sides[::-1]
        place = str(out / f"{name}{number}-{way}")
        jobs.append(["compare", "-tp", target, "-gp", golden, "-o", place])
    for name in ("L0", "mix", "tensor", "overflow"):
        folder = str(ours[name])
        jobs.append(["overflow_check", "-i", f"{folder}/step0", "-o", str(out / f"{name}-check")])
        jobs.append(["graph_visualize", "-tp", folder, "-o", str(out / f"{name}-graph")])
        jobs.append(
            ["data2db", "--data", folder, "--db", str(out / f"{name}-db"), "--format", "dump"]
        )
    msprobe_jobs.run([{"argv": argv} for argv in jobs])
    return out


def table(tools, name, number, way="theirs"):
    """Return the rows of a comparison, what was compared first on the side called NPU."""
    (path,) = (tools / f"{name}{number}-{way}").glob("*.csv")
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def paired(rows):
    return [row for row in rows if row["Bench Name"] != "N/A"]


def alone(rows):
    """Return the names of what is on one side only, nulls left out: they are nothing."""
    return [r["NPU Name"] for r in rows if r["Bench Name"] == "N/A" and r["NPU Dtype"] != "N/A"]


def is_of(name, functions):
    return name.startswith(tuple(f"{each}." for each in functions))


def is_composite(name):
    return is_of(name, COMPOSITE) and ".backward." in name and ".output." in name


def is_spoiled(row):
    """Tell whether msProbe's arithmetic in half precision has Mean and Norm of its own."""
    return row["NPU Dtype"] in ("torch.float16", "torch.bfloat16")


def same_numbers(row):
    """Hold one row of statistics: limits to the bit, the others to the rounding of their type."""
    dtype = row["NPU Dtype"].removeprefix("torch.")
    theirs, mine = (
        [row[f"{side} {n}"] for n in ("max", "min", "mean", "l2norm")] for side in ("NPU", "Bench")
    )
    assert theirs[:2] == mine[:2], row
    if not dtype.startswith(("float", "bfloat")) or theirs == mine:
        assert theirs == mine, row
        return
    limits, sums = np.array(mine[:2], float), np.array([theirs[2:], mine[2:]], float)
    numel = math.prod(json.loads(row["NPU Tensor Shape"]))
    eps = torch.finfo(getattr(torch, dtype)).eps
    assert abs(sums[0, 0] - sums[1, 0]) <= 4 * eps * abs(limits).max(), row
    if math.isinf(sums[0, 1]):  # half precision: the true norm does not fit into it
        assert torch.finfo(torch.float16).max < sums[1, 1] <= abs(limits).max() * numel**0.5, row
    else:
        assert abs(sums[0, 1] - sums[1, 1]) <= 4 * eps * sums[1, 1], row


@pytest.mark.parametrize(
    ("name", "number"), [("L0", 0), ("L0", 1), ("L1", 1), ("mix", 1), ("inplace", 1), ("debug", 0)]
)
def test_no_number_differs_from_msprobes_own(tools, name, number):
    rows = [row for row in paired(table(tools, name, number)) if not is_composite(row["NPU Name"])]
    assert len(rows) > 10
    for row in rows:
        assert row["NPU Dtype"] == row["Bench Dtype"], row
        assert row["NPU Tensor Shape"] == row["Bench Tensor Shape"], row
        assert row["Requires_grad Consistent"] in ("True", "N/A"), row
        assert row["Result"] == "pass" or is_spoiled(row), row
        same_numbers(row)


@pytest.mark.parametrize("name", ["L0", "L1", "mix", "inplace", "tensor", "xor", "md5"])
def test_every_record_of_msprobes_is_there(tools, name):
    assert alone(table(tools, name, 1)) == []


def test_every_saved_value_is_there(tools):
    assert alone(table(tools, "debug", 0)) == []
    assert alone(table(tools, "debug", 0, "ours")) == []


@pytest.mark.parametrize(("name", "functions"), [("L0", set()), ("L1", UNSEEN), ("mix", UNSEEN)])
def test_what_we_have_alone_is_what_msprobe_cannot_see(tools, name, functions):
    found = alone(table(tools, name, 1, "ours"))
    modules = {each for each in found if each.startswith("Module.")}
    expected = [f"{NEVER_CALLED}.{k}.{p}" for k in (0, 1) for p in ("bias", "weight")]
    assert modules == (set() if name == "L1" else set(expected))
    others = [each for each in found if each not in modules and not is_composite(each)]
    seen = {re.sub(r"\.\d+\.(forward|backward).*", "", each) for each in others}
    assert seen == functions | ({"Tensor.__setitem__"} if functions else set())  # it gives nothing


def test_msprobe_loses_the_backward_of_what_is_written_in_place(tools):
    found = {each.rsplit(".", 2)[0] for each in alone(table(tools, "inplace", 0, "ours"))}
    assert found == {
        "Module.act.ReLU.backward.0",
        "Module.act.ReLU.backward.1",
        "Module.first.Conv2d.backward.0",
    }


@pytest.mark.parametrize("number", [0, 1])
def test_every_tensor_is_the_same_to_the_bit(tools, number):
    rows = paired(table(tools, "tensor", number))
    compared = [row for row in rows if row["MaxAbsErr"] != "unsupported"]
    assert len(compared) > 100 * (number + 1)
    assert {float(row["MaxAbsErr"]) for row in compared} == {0.0}
    assert {row["Result"] for row in rows} == {"pass"}
    one_number = [row for row in rows if row["MaxAbsErr"] == "unsupported"]
    for row in one_number:
        assert row["NPU max"] == row["Bench max"], row


@pytest.mark.parametrize(("name", "least"), [("xor", 240), ("md5", 700)])
def test_every_checksum_is_the_same(tools, name, least):
    rows = [row for row in paired(table(tools, name, 1)) if not is_composite(row["NPU Name"])]
    different = [row["NPU Name"] for row in rows if row["Result"] != "pass"]
    # msProbe sums in threads: a busy one comes to a parameter after the optimizer's step
    late = [each for each in different if ".parameters." in each]
    assert [each for each in different if not is_of(each, WRITTEN_IN_PLACE)] == late
    assert len(rows) - len(different) > least


def test_only_what_shares_a_tensor_differs(tools):
    rows = table(tools, "shared", 0)
    split = (
        "Module.attn.MultiheadAttention.backward.0.output",
        "Module.inner.Inner.backward.0.input",
    )
    others = [row for row in paired(rows) if not row["NPU Name"].startswith(split)]
    for row in others:
        assert row["Result"] == "pass", row
    assert all(each.startswith(split) for each in alone(rows))


@pytest.mark.parametrize("name", [name for name in DUMPS if name != "debug"])
def test_entries_stand_in_the_order_of_msprobe(theirs, ours, name):
    for number in (0, 1):
        real, mine = (
            list(json.loads(file_of(name, side[name], number).read_text())["data"])
            for side in (theirs, ours)
        )
        assert [key for key in mine if key in set(real)] == [
            key for key in real if key in set(mine)
        ]
        assert set(real) <= set(mine)


def test_the_header_is_that_of_msprobe(theirs, ours):
    for name in DUMPS:
        real, mine = (
            json.loads(file_of(name, side[name], 0).read_text()) for side in (theirs, ours)
        )
        assert list(real) == list(mine)
        for key in ("task", "level", "framework"):
            assert real[key] == mine[key]
        folder = step(ours[name], 0) / "dump_tensor_data"
        assert mine["dump_data_dir"] == (str(folder) if name == "tensor" else None)


def test_calls_are_in_what_they_are_in_for_msprobe(theirs, ours):
    for name in ("L0", "mix", "inplace", "shared"):
        real, mine = (
            json.loads((step(side[name], 0) / "construct.json").read_text())
            for side in (theirs, ours)
        )
        forward = {key: up for key, up in real.items() if "forward" in key and up != "optimizer"}
        assert {key: mine[key] for key in forward} == forward
        lost = {key for key, up in real.items() if "backward" in key and mine[key] != up}
        around = {"Module.conv", "Functional.conv2d", "Functional.embedding", "Module.second"}
        assert {".".join(key.split(".")[:2]) for key in lost} <= around


def test_the_names_of_tensors_are_those_of_msprobe(theirs, ours):
    real, mine = (
        {each.name for each in (step(side["tensor"], 1) / "dump_tensor_data").iterdir()}
        for side in (theirs, ours)
    )
    assert real <= mine
    assert {each for each in mine - real if not each.startswith(NEVER_CALLED)} == set()


def test_msprobe_passes_over_what_is_ours_alone(tools):
    assert table(tools, "bare", 1) == table(tools, "L0", 1)


def test_the_first_overflow_is_found_by_msprobe(tools):
    found = {}
    for name in ("overflow", "mix", "L0", "tensor"):
        for path in (tools / f"{name}-check").glob("*.json"):
            found[name] = json.loads(path.read_text())["rank_0"][0]["op_name"]
    assert found == {
        "overflow": "Module.1.Softmax.forward.0",  # divides by 0
        "mix": "Tensor.masked_fill_.0.forward",  # the mask of the attention: -Inf
    }


@pytest.mark.parametrize("name", ["L0", "mix", "tensor"])
def test_the_graph_has_every_call(tools, ours, name):
    (path,) = (tools / f"{name}-graph").glob("*.vis.db")
    with sqlite3.connect(path) as db:
        nodes = {row[0] for row in db.execute("SELECT node_name FROM tb_nodes WHERE step = 0")}
    calls = json.loads((step(ours[name], 0) / "construct.json").read_text())
    assert set(calls) <= nodes


def test_the_trend_database_has_our_numbers(tools, ours):
    with sqlite3.connect(tools / "L0-db" / "dump_data.trend.db") as db:
        found = db.execute(
            "SELECT max, min, mean, norm FROM trend_data JOIN monitoring_targets USING (target_id)"
            " WHERE step = 0 AND target_name = 'Module.emb.Embedding.output.0'"
        ).fetchall()
    entry = json.loads(file_of("L0", ours["L0"], 0).read_text())["data"][
        "Module.emb.Embedding.forward.0"
    ]
    mine = tuple(entry["output"][0][name] for name in ("Max", "Min", "Mean", "Norm"))
    assert found == [mine]


def test_the_programs_are_the_same_in_every_process():
    first, second = (run_of("net", "L0", checksum="crc32") for _ in range(2))
    assert first.df["checksum"].tolist() == second.df["checksum"].tolist()
    assert set(programs.MODELS) == {program for program, _ in DUMPS.values()} - {"save"}
