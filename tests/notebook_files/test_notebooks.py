"""The committed notebooks: they run in a fresh kernel, and what is committed with them can be read anywhere.

To write the outputs anew::

    jupyter nbconvert --to notebook --inplace --execute --ExecutePreprocessor.store_widget_state=False \
        --ExecutePreprocessor.record_timing=False notebooks/*.ipynb
"""

from __future__ import annotations

import functools
import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import pytest
from nbclient import NotebookClient

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
BYTES = 500_000
WIDGET = "application/vnd.jupyter.widget-view+json"
PLACES = re.compile(r"(?<![\w.:/])/(home|root|work|tmp|mnt|var|opt|Users)/|[A-Z]:\\+Users|file://")

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [output for cell in code_cells(notebook) for output in cell.outputs]


def bundles(notebook: nbformat.NotebookNode) -> list[dict[str, str]]:
    return [output.data for output in outputs(notebook) if "data" in output]


def reports(notebook: nbformat.NotebookNode) -> list[dict[str, str]]:
    return [data for data in bundles(notebook) if "data-probe-nb" in data.get("text/html", "")]


def kinds_of(cell_outputs: list[nbformat.NotebookNode]) -> list[list[str]]:
    """Return the kinds of what a cell shows; text arrives in as many parts as the kernel likes."""
    kinds: list[list[str]] = []
    for output in cell_outputs:
        kind = sorted(output.get("data", {output.output_type: ""}))
        if kind != ["stream"] or kinds[-1:] != [kind]:
            kinds.append(kind)
    return kinds


@pytest.fixture(scope="module")
def execute(tmp_path_factory) -> Callable[[Path], nbformat.NotebookNode]:
    """Execute a notebook without its outputs in a fresh kernel of its own, the first time that it is asked for."""

    @functools.cache
    def executed(path: Path) -> nbformat.NotebookNode:
        folder = tmp_path_factory.mktemp("notebooks")
        data = shutil.copytree(ROOT / "notebooks" / "data", folder / "data")
        before = sorted(data.rglob("*"))
        done = read(path)
        client = NotebookClient(
            done,
            timeout=280,
            startup_timeout=200,
            iopub_timeout=200,  # what is shown last may come late
            store_widget_state=False,
            resources={"metadata": {"path": str(folder)}},
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(ROOT))
            patch.setenv("TQDM_DISABLE", "1")  # a machine that is slow would show bars
            client.execute()
        assert list(folder.iterdir()) == [data], "a notebook leaves files behind"
        assert sorted(data.rglob("*")) == before
        return done

    return executed


@pytest.fixture
def executed(execute, path) -> nbformat.NotebookNode:
    """The notebook of this test, executed."""
    return execute(path)


def test_there_is_a_first_look():
    assert "01_first_look" in {path.stem for path in NOTEBOOKS}


@pytest.mark.xdist_group("notebook_files")
@each_notebook
def test_a_notebook_runs_in_a_fresh_kernel_without_noise(executed, path):
    assert [o for o in outputs(executed) if o.get("name") == "stderr"] == []


@pytest.mark.xdist_group("notebook_files")
@each_notebook
def test_the_committed_outputs_are_those_of_the_committed_code(executed, path):
    """Numbers differ in their last digits between machines; what the first lines say must not."""
    kinds = [
        [kinds_of(cell.outputs) for cell in cells]
        for cells in (code_cells(read(path)), code_cells(executed))
    ]
    assert kinds[0] == kinds[1]
    first_lines = [
        [data["text/plain"].splitlines()[0].split(";")[0] for data in reports(notebook)]
        for notebook in (read(path), executed)
    ]
    assert first_lines[0] == first_lines[1]


@pytest.mark.xdist_group("notebook_files")
@each_notebook
def test_the_story_is_the_same_on_this_machine(executed, path):
    found = [data["text/plain"].splitlines()[0] for data in reports(executed)]
    if path.stem == "01_first_look":
        assert found[0].startswith("✓ 29 steps, 10 modules, no NaN or Inf")
        assert found[1] == "✕ NaN first appeared at step 28 in contrast (forward output)"
    if path.stem == "02_hunt_a_nan":
        first = " ".join(reports(executed)[0]["text/plain"].split())
        assert first.startswith(
            "✕ NaN first appeared at step 0 between transformer.h.3.attn.c_attn (output finite) "
            "and transformer.h.3.attn.c_proj (its input was not): in the forward of "
            "transformer.h.3.attn"
        )
        said = [o.text for o in outputs(executed) if o.output_type == "stream"]
        assert any("your code: Cell In[3]:" in text for text in said)
        assert any("c_attn returns values" in text for text in said)
        assert said[-1].startswith("float16: 1.9")
    if path.stem == "03_gradients_and_updates":
        assert found[0].startswith("! ")
        assert "anish" in found[0]
    if path.stem == "04_two_devices":
        said = [o.text for o in outputs(executed) if o.output_type == "stream"]
        text = "".join(said)
        assert "first diverges at blocks.0.act (GELU) at step 0: forward output" in text
        shown = [data["text/plain"] for data in bundles(executed)]
        assert shown[0].startswith("✕ the candidate is ")
        assert "rounding does not explain that of the candidate" in " ".join(shown[0].split())
        assert text.endswith("first divergence: None\n")
        assert shown[1].startswith("✓ ")
    if path.stem == "05_msprobe_folders":
        assert found[0] == "✕ +Inf first appeared at step 0 in blocks.3.act (forward output)"
        assert found[1] == "✕ first diverges at blocks.0.scale (Scale) at step 0: forward output"
        assert found[2].startswith("✓ 2 steps, 23 modules, no NaN or Inf")
        shown = [data["text/plain"] for data in bundles(executed)]
        assert "{'same': 127, 'only_in_baseline': 3}" in shown
    if path.stem == "06_a_debugging_day":
        assert found[0] == "! lm_head has gradients and does not move"
        assert found[1] == (
            "✕ first diverges at model.layers.0.input_layernorm (LlamaRMSNorm) at step 0: "
            "forward output"
        )
        said = "".join(o.text for o in outputs(executed) if o.output_type == "stream")
        assert "at step 0: optimizer state weight.step and 38" in said
        assert "\nNone\n" in said  # with the eps mended nothing diverges
        assert "\nTrue 0." in said  # the saved run is the same


def test_the_folder_of_the_cluster_is_msprobes_own_and_names_no_machine():
    folder = ROOT / "notebooks" / "data" / "cluster"
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} == {"dump.json", "construct.json", "stack.json"}
    assert [path for path in files if PLACES.search(path.read_text(encoding="utf-8"))] == []
    assert '"probe_nb"' not in (folder / "step0" / "rank0" / "dump.json").read_text()


@each_notebook
def test_a_notebook_is_small_and_strict_json(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < BYTES

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    json.loads(text, parse_constant=refuse)
    nbformat.validate(read(path))


@each_notebook
def test_every_cell_was_run_in_order_and_none_failed(path):
    cells = code_cells(read(path))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert {o.output_type for o in outputs(read(path))} <= {
        "stream",
        "display_data",
        "execute_result",
    }
    assert [o for o in outputs(read(path)) if o.get("name") == "stderr"] == []


@each_notebook
def test_nothing_of_the_machine_is_saved(path):
    notebook = read(path)
    saved = [cell.source for cell in notebook.cells]
    saved += [o.text for o in outputs(notebook) if o.output_type == "stream"]
    for data in bundles(notebook):
        saved += [re.sub(r'data-\w+="[^"]*"', "", text) for text in data.values()]
    assert [text for text in saved if PLACES.search(text)] == []
    assert set(notebook.metadata) <= {"kernelspec", "language_info"}
    assert all(not cell.metadata for cell in notebook.cells)


@each_notebook
def test_the_results_need_no_kernel(path):
    notebook = read(path)
    printed = "".join(o.text for o in outputs(notebook) if o.output_type == "stream")
    assert reports(notebook) or "first diverges at" in printed
    for data in bundles(notebook):
        assert WIDGET not in data
        assert "text/plain" in data
        assert " object at 0x" not in data["text/plain"]
    for data in reports(notebook):
        assert "<table" in data["text/html"]
        assert data["text/plain"][0] in "✓✕!"
