"""The tree of modules, against a model whose numbers are worked out by hand."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

import probe_nb as probe
from probe_nb.errors import ConfigError, RunFormatError
from probe_nb.store import files
from probe_nb.view import report, structure
from tests.models import no_faults

if TYPE_CHECKING:
    from pathlib import Path


class Attend(nn.Module):
    """Takes keywords and gives a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor, *, mask: Tensor) -> dict[str, Tensor]:
        return {"out": self.proj(x) * mask, "mask": mask}


class Net(nn.Module):
    """Has a frozen part, a shared weight, a part that is not used and one that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(8, 4).requires_grad_(False)
        self.attend = Attend()
        self.act = nn.ReLU()
        self.head = nn.Linear(4, 8)
        self.head.weight = nn.Parameter(torch.zeros(8, 4))
        self.tied = nn.Linear(4, 8, bias=False)
        self.tied.weight = self.head.weight
        self.spare = nn.Linear(2, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.attend(self.emb(ids), mask=mask)["out"]
        return self.head(self.act(self.act(x))) + self.tied(x)


OWN = {
    "": 0,
    "emb": 32,
    "attend": 0,
    "attend.proj": 16,
    "act": 0,
    "head": 40,
    "tied": 32,
    "spare": 6,
}
TOTAL = {**OWN, "": 32 + 16 + 40 + 6, "attend": 16}  # the tied weight is counted once
TRAINABLE = {**TOTAL, "": 16 + 40 + 6, "emb": 0}


def watched(**options: Any) -> probe.Run:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    with no_faults(), probe.watch(model, optimizer=optimizer, **options) as run:
        for _ in range(2):
            model(torch.ones(2, 3, dtype=torch.long), torch.ones(3, 1)).sum().backward()
            optimizer.step()
    return run


@pytest.mark.parametrize("alone", [True, False])
def test_the_tree_has_classes_parameters_shapes_and_dtypes(alone: bool) -> None:
    df = watched(structure=alone).structure().df.set_index("module")
    assert list(df.index) == list(OWN)
    types = ["Net", "Embedding", "Attend", "Linear", "ReLU", "Linear", "Linear", "Linear"]
    assert df["type"].tolist() == types
    assert df["parameters"].to_dict() == OWN
    assert df["trainable"].to_dict() == {**OWN, "emb": 0}
    assert df["total"].to_dict() == TOTAL
    assert df["total_trainable"].to_dict() == TRAINABLE
    assert df["calls"].to_dict() == {**dict.fromkeys(OWN, 1), "act": 2, "spare": 0}
    assert df["step"].fillna(-1).to_dict() == {**dict.fromkeys(OWN, 0), "spare": -1}
    assert df["inputs"].to_dict() == {
        "": "0: int64 (2, 3), 1: float32 (3, 1)",
        "emb": "int64 (2, 3)",
        "attend": "0: float32 (2, 3, 4), kwargs.mask: float32 (3, 1)",
        "attend.proj": "float32 (2, 3, 4)",
        "act": "float32 (2, 3, 4)",
        "head": "float32 (2, 3, 4)",
        "tied": "float32 (2, 3, 4)",
        "spare": "",
    }
    assert df["outputs"].to_dict() == {
        "": "float32 (2, 3, 8)",
        "emb": "float32 (2, 3, 4)",
        "attend": "out: float32 (2, 3, 4), mask: float32 (3, 1)",
        "attend.proj": "float32 (2, 3, 4)",
        "act": "float32 (2, 3, 4)",
        "head": "float32 (2, 3, 8)",
        "tied": "float32 (2, 3, 8)",
        "spare": "",
    }
    grads = {"": "float32 (2, 3, 8)", "head": "float32 (2, 3, 8)", "emb": ""}
    assert {name: df["grad_outputs"][name] for name in grads} == grads
    grads = {"": "", "head": "float32 (2, 3, 4)", "attend.proj": "", "spare": ""}
    assert {name: df["grad_inputs"][name] for name in grads} == grads


def test_structure_alone_computes_nothing_and_says_so() -> None:
    run = watched(structure=True)
    df = run.df
    assert len(df) > 0
    assert set(df["status"]) == {"not_asked"}
    numbers = [*("min", "max", "mean", "std", "l2", "absmax", "nan_count", "zero_count")]
    assert df[numbers].isna().all().all()
    assert df["direction"].tolist().count("optimizer") == 0
    assert run.findings().empty
    assert run.first_nonfinite() is None
    assert "NaN" not in repr(run)
    assert "never called" in repr(run)


class Counts(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts what is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_no_operator_runs_but_the_models_own() -> None:
    seen = []
    for watches in (False, True):
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.BatchNorm1d(4))
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
        counts = Counts()
        watch = probe.watch(model, optimizer=optimizer, structure=True, stacks=True)
        run = watch.__enter__() if watches else None
        with counts:
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
        watch.__exit__(None, None, None)
        assert run is None or len(run) > 0
        seen.append(counts.seen)
    assert seen[0] == seen[1]


def test_options_that_need_numbers_are_refused_with_it() -> None:
    for option in ({"stop_on": "nonfinite"}, {"extras": "zeros"}):
        with pytest.raises(ConfigError, match="structure"):
            probe.watch(nn.Linear(1, 1), structure=True, **option)


def test_the_first_call_counts_and_a_step_can_be_asked_for() -> None:
    layer = nn.Linear(4, 2)
    with no_faults(), probe.watch(layer, steps="1:") as run:
        for rows in range(4):
            layer(torch.ones(rows + 1, 4))
    assert run.structure().df["inputs"].item() == "float32 (2, 4)"
    assert run.structure().df["step"].item() == 1
    assert run.structure(3).df["inputs"].item() == "float32 (4, 4)"
    assert run.structure(0).df["inputs"].item() == ""


def test_the_open_run_knows_what_was_built_or_added_since() -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    with no_faults(), probe.watch(model) as run:
        before = run.structure().df
        model(torch.ones(1, 5))
        built = run.structure().df
        model.append(nn.Linear(3, 2))
        model(torch.ones(1, 5))
    assert before["total"].isna().tolist() == [True, True]
    assert built["total"].tolist() == [18, 18]
    after = run.structure().df
    assert after["module"].tolist() == ["", "0", "1"]
    assert after["total"].tolist() == [26, 18, 8]


def test_a_model_that_is_gone_keeps_its_numbers() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    run = probe.start(model)
    model(torch.ones(1, 2))
    del model
    probe.stop(run)
    assert run.structure().df["total"].tolist() == [6, 6]


def test_a_saved_run_has_its_tree_and_one_without_has_what_its_rows_tell(tmp_path: Path) -> None:
    run = watched(structure=True)
    path = run.save(tmp_path / "a.parquet")
    assert probe.load(path).structure().df.equals(run.structure().df)
    run.info.tree = []
    older = probe.load(run.save(path)).structure().df.set_index("module")
    assert list(older.index) == [name for name in OWN if name != "spare"]
    assert older["total"].isna().all()
    assert older["inputs"]["head"] == "float32 (2, 3, 4)"


@pytest.mark.parametrize(
    "tree", [[["m", "", "Net"]], [["m", "", 3, 1, 1, 1, 1]], [["m", "", "Net", "1", 1, 1, 1]], "x"]
)
def test_a_tree_that_is_none_is_refused(tmp_path: Path, tree: Any) -> None:
    run = watched(structure=True)
    run.info.tree = tree
    path = files.save(tmp_path / "a.parquet", run.columns, run.info)
    with pytest.raises(RunFormatError, match="damaged"):
        probe.load(path)


def test_text_draws_the_tree() -> None:
    lines = repr(watched(structure=True).structure()).splitlines()
    assert lines[0] == "model · Net · 8 modules · 94 parameters (62 trainable)"
    names = [line.split("  ")[0] if line[0] != " " else line.rstrip() for line in lines[3:]]
    assert lines[2].split() == ["module", "type", "parameters", "inputs", "outputs"]
    assert names[0] == "(root)"
    at = lines[2].index("type")
    assert [line[:at].rstrip() for line in lines[3:]] == [
        "(root)",
        *("  emb", "  attend", "    proj", "  act", "  head", "  tied", "  spare"),
    ]
    assert lines[-1].endswith("6  (never called)")


class Cells(HTMLParser):
    """Reads the cells of a table, and which tags there are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        assert {name for name, _ in attrs} <= {"align", "style", "role", "cellpadding"}
        if tag == "tr":
            self.rows.append([])
        elif tag == "td":
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.replace("\n", "")


def test_html_is_a_bare_table_in_which_every_text_is_escaped() -> None:
    bad = "<script>alert(1)</script>"
    model = nn.Sequential()
    model.add_module(bad, nn.Linear(2, 2))
    with no_faults(), probe.watch({bad: model}, structure=True) as run:
        model(torch.ones(1, 2))
    for text in (run.structure()._repr_html_(), report.bundle(run)["text/html"]):
        read = Cells(text)
        assert read.tags == {"div", "b", "table", "thead", "tbody", "tr", "td", "code"}
        assert [row[0].strip("\xa0") for row in read.rows[1:]] == ["(root)", bad]
        assert read.rows[2][2:5] == ["6", "float32 (1, 2)", "float32 (1, 2)"]
        assert "colour" not in text
        assert "color" not in text


def test_a_large_model_is_shown_in_part_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "ROWS", 3)
    tree = watched(structure=True).structure()
    assert repr(tree).splitlines()[-1] == "… and 5 more modules: see run.structure().df"
    assert "and 5 more modules" in tree._repr_html_()
    assert len(Cells(tree._repr_html_()).rows) == 1 + 3
    assert len(tree.df) == 8


def test_two_models_are_two_trees() -> None:
    one, two = nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 3)
    with no_faults(), probe.watch(gen=one, disc=two, structure=True) as run:
        two(one(torch.ones(1, 2)))
    text = repr(run.structure())
    assert text.splitlines()[0] == "gen · Sequential, disc · Linear · 3 modules"
    assert "gen: (root)" in text
    assert "disc: (root)" in text


def test_module_struct_is_that_of_the_monitor(tmp_path: Path) -> None:
    path = (
        watched(structure=True).structure().to_module_struct(tmp_path / "x" / "module_struct.json")
    )
    found = json.loads(path.read_text())
    assert set(found["0:head"]) == {"input", "output", "input_grad", "output_grad"}
    assert found["0:head"]["input"] == {
        "config": "list[1]",
        "0": "size=(2, 3, 4), dtype=torch.float32",
    }
    assert found["0:head"]["output"] == {
        "config": "tensor",
        "tensor": "size=(2, 3, 8), dtype=torch.float32",
    }
    assert found["0:attend"]["input"] == {
        "config": "list[2]",
        "0": "size=(2, 3, 4), dtype=torch.float32",
        "1": "size=(3, 1), dtype=torch.float32",
    }
    assert "0:spare" not in found
    assert sorted(found) == sorted(f"0:{name}" for name in OWN if name != "spare")


def test_modules_that_are_known_in_another_order_lie_below_those_they_are_part_of() -> None:
    run = watched(structure=True)
    run.info.tree = [
        ["model", name, "M", None, None, None, None]
        for name in ("a.b.c", "x", "a.b.d", "a", "x.y", "a.b", "")
    ]
    names = run.structure().df["module"].tolist()
    assert names[:7] == ["", "x", "x.y", "a", "a.b", "a.b.c", "a.b.d"]
