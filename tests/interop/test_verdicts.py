"""The verdicts are msProbe's own, cell by cell: the tables in `samples/compare` are what it wrote."""

import csv
import io
import json
import shutil
import zipfile
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch

import probe_nb as probe
from probe_nb.dump import verdict_sheet, verdicts
from probe_nb.errors import RunFormatError, SelectionError

SAMPLES = Path(__file__).parent / "samples"
DUMPS, COMPARE = SAMPLES / "dumps", SAMPLES / "compare"
MLP = "Module.tf.mlp.0.Linear.forward.0.output.0"


def as_written(frame):
    """The cells of a table as msProbe writes them into a CSV."""
    out = io.StringIO()
    frame.replace({np.inf: " inf", -np.inf: " -inf"}).to_csv(out, index=False)
    return list(csv.reader(io.StringIO(out.getvalue())))


def expected(name):
    return list(csv.reader(io.StringIO((COMPARE / f"{name}.csv").read_text())))


def read(path, step=None):
    return probe.read_dump(path, step=step)


@pytest.mark.parametrize(
    ("name", "npu", "bench", "options"),
    [
        ("statistics", "dumps/P_statistics_L0_statistics", "dumps/statistics_L0_statistics", {}),
        (
            "statistics",
            "dumps/P_statistics_L0_statistics",
            "dumps/statistics_L0_statistics",
            {"cell_mapping": {"mlp.0.Linear": "mlp.0.Linear"}},
        ),
        (
            "statistics",
            "dumps/P_statistics_L0_statistics",
            "dumps/statistics_L0_statistics",
            {"data_mapping": {MLP: MLP}},
        ),
        (
            "fuzzy",
            "dumps/P_statistics_L0_statistics",
            "dumps/statistics_L0_statistics",
            {"fuzzy": True},
        ),
        ("edge", "compare/edge/npu", "compare/edge/bench", {}),
        ("inf", "dumps/inf_1", "dumps/inf_-1", {}),
        ("tensor", "dumps/P_tensor_L0_statistics", "dumps/tensor_L0_statistics", {}),
    ],
)
def test_every_cell_is_what_msprobe_wrote(name, npu, bench, options):
    found = verdicts.table(read(SAMPLES / bench, 0), read(SAMPLES / npu, 0), step=0, **options)
    assert as_written(found) == expected(name)


def test_checksums_are_judged_as_msprobe_does(tmp_path):
    wanted = expected("md5")
    names = wanted[0]
    (bench,) = (DUMPS / "statistics_L0_md5/step0").iterdir()
    npu = tmp_path / "npu/step0/proc1"
    shutil.copytree(bench, npu)
    sums = {row[names.index("NPU Name")]: row[names.index("NPU MD5")] for row in wanted[1:]}

    def renew(name, node):
        if isinstance(node, dict) and "md5" in node:
            node["md5"] = sums[name]
        elif isinstance(node, dict):
            for word, each in node.items():
                part = {"input_args": "input", "input_kwargs": "input"}.get(word, word)
                renew(f"{name}.{part}" if word in node else name, each)
        elif isinstance(node, list):
            grads = "parameters_grad" in name
            for place, each in enumerate(node):
                renew(name if grads else f"{name}.{place}", each)

    said = json.loads((npu / "dump.json").read_text())
    for name, entry in said["data"].items():
        renew(name, entry)
    (npu / "dump.json").write_text(json.dumps(said))
    found = verdicts.table(read(DUMPS / "statistics_L0_md5"), read(tmp_path / "npu"))
    assert as_written(found) == wanted


def test_a_mapping_finds_a_module_under_another_name(tmp_path):
    (bench,) = (DUMPS / "P_statistics_L0_statistics/step0").iterdir()
    npu = tmp_path / "step0/proc1"
    shutil.copytree(bench, npu)
    text = (npu / "dump.json").read_text().replace("tf.mlp.0.Linear", "tf.up.Dense")
    (npu / "dump.json").write_text(text)
    base = read(DUMPS / "P_statistics_L0_statistics")
    plain = verdicts.table(base, read(tmp_path)).set_index("NPU Name")
    moved = plain.index[plain.index.str.contains("tf.up.Dense")]
    assert set(plain.loc[moved, "Bench Name"]) == {"N/A"}
    mapped = verdicts.table(base, read(tmp_path), cell_mapping={"tf.up.Dense": "tf.mlp.0.Linear"})
    mapped = mapped.set_index("NPU Name")
    assert mapped.loc[moved, "Bench Name"].tolist() == [
        n.replace("tf.up.Dense", "tf.mlp.0.Linear") for n in moved
    ]
    assert set(mapped.loc[moved, "NormRelativeErr"]) == {"0"}


def test_runs_that_were_recorded_here_are_judged_as_the_dumps_they_would_be():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    x = torch.rand(4, 3)

    def run(scale):
        with probe.watch(model, roles="input,output,param") as found:
            model(x * scale)
        return found

    found = verdicts.table(run(1.0), run(3.0)).set_index("NPU Name")
    row = found.loc["Module.0.Linear.forward.0.input.0"]
    norm = x.double().norm().item()
    assert row["Bench l2norm"] == pytest.approx(norm, rel=1e-6)
    assert row["NPU l2norm"] == pytest.approx(3 * norm, rel=1e-6)
    assert float(row["NormRelativeErr"].strip("%")) == pytest.approx(200, rel=1e-5)
    assert found.loc["Module.0.Linear.forward.0.parameters.weight", "NormRelativeErr"] == "0"
    same = verdicts.table(run(1.0), run(1.0))
    assert set(same["Result"]) == {"pass"}
    assert set(same["L2norm diff"]) == {"0"}


def test_several_steps_stand_one_after_the_other():
    run = read(DUMPS / "statistics_L0_statistics")
    found = verdicts.table(run, run)
    assert found.index.names == ["step", "rank", "row"]
    assert found.index.get_level_values("step").unique().tolist() == [0, 1]
    assert set(found["Result"]) == {"pass"}


def test_what_cannot_be_compared_is_refused():
    statistics, tensors = (
        read(DUMPS / "statistics_L0_statistics"),
        read(DUMPS / "tensor_L0_statistics"),
    )
    with pytest.raises(RunFormatError, match="of one kind"):
        verdicts.table(statistics, tensors)
    with pytest.raises(SelectionError, match="no such step"):
        verdicts.table(statistics, statistics, step=9)


def _sheet(path):
    """Read a sheet by itself: the texts of its cells, and the colour behind each."""
    space = {"x": "http://schemas.openxmlformats.org/spreadsheetml/2006/main"}
    with zipfile.ZipFile(path) as file:
        texts = [
            "".join(t.text or "" for t in each.iter(f"{{{space['x']}}}t"))
            for each in ET.fromstring(file.read("xl/sharedStrings.xml"))
        ]
        styles = ET.fromstring(file.read("xl/styles.xml"))
        sheet = ET.fromstring(file.read("xl/worksheets/sheet1.xml"))
    fills = [
        (
            each.find(".//x:fgColor", space).get("rgb")
            if each.find(".//x:fgColor", space) is not None
            else ""
        )
        for each in styles.find("x:fills", space)
    ]
    behind = [fills[int(each.get("fillId"))] for each in styles.find("x:cellXfs", space)]
    rows = []
    for row in sheet.iter(f"{{{space['x']}}}row"):
        cells = []
        for cell in row:
            value = cell.find("x:v", space).text
            assert cell.find("x:f", space) is None  # no formula
            cells.append(
                (
                    texts[int(value)] if cell.get("t") == "s" else value,
                    behind[int(cell.get("s", 0))],
                )
            )
        rows.append(cells)
    return rows


def test_the_sheet_has_every_row_and_colours_what_is_wrong(tmp_path):
    frame = verdicts.table(read(COMPARE / "edge/bench"), read(COMPARE / "edge/npu"))
    frame.loc[0, "NPU Name"] = "=HYPERLINK(1)"  # a name is a text
    rows = _sheet(verdict_sheet.write(frame, tmp_path / "verdicts.xlsx"))
    assert [text for text, _ in rows[0]] == list(frame.columns)
    assert len(rows) == len(frame) + 1
    place = list(frame.columns).index("Result")
    colours = {"error": {"FFFFC7CE"}, "warning": {"FFFFEB9C"}, "pass": {""}}
    assert {row[place][0] for row in rows[1:]} == set(colours)
    for row in rows[1:]:
        assert {colour for _, colour in row} == colours[row[place][0]]
    assert rows[1][0][0] == "=HYPERLINK(1)"
    spoilt = frame.index[frame["NPU Name"].str.contains("npu_inf.forward.0.output")][0]
    assert rows[spoilt + 1][list(frame.columns).index("NPU max")][0] == "inf"
