"""The public names, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import probe_nb

HEAVY = ("torch", "pandas", "numpy", "IPython", "matplotlib", "ipywidgets", "anywidget", "pyarrow")

LOADED = "import sys, {room}; print(*sorted(set({heavy}) & set(sys.modules)))"

READS = """
import sys
sys.modules["torch"] = None
import probe_nb
run = probe_nb.load(sys.argv[1])
print(len(run), len(run.df), "layer" in repr(run), "layer" in run._repr_mimebundle_()["text/html"])
"""


def python(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_importing_probe_nb_imports_nothing_heavy():
    assert python(LOADED.format(room="probe_nb", heavy=HEAVY)) == []


@pytest.mark.parametrize("room", ["config", "terms", "errors", "exponents", "run", "store.files"])
def test_rooms_that_read_runs_import_no_torch(room):
    assert "torch" not in python(LOADED.format(room=f"probe_nb.{room}", heavy=HEAVY))


def test_a_saved_run_is_read_and_shown_where_torch_is_not_installed(tmp_path):
    import torch

    model = torch.nn.ModuleDict({"layer": torch.nn.Linear(2, 2)})
    with probe_nb.watch(model, roles="input,output", live=False) as run:
        model["layer"](torch.ones(1, 2))
    run.save(tmp_path / "run.parquet")
    assert python(READS, str(tmp_path / "run.parquet")) == ["2", "2", "True", "True"]


def test_the_public_names_are_those_that_are_documented():
    assert {"Run", "load", "save", "start", "step", "stop", "watch", "__version__"} <= set(
        probe_nb.__all__
    )
    assert sorted(probe_nb.__all__) == probe_nb.__all__


@pytest.mark.parametrize("name", probe_nb.__all__)
def test_a_public_name_is_there_and_has_a_docstring(name):
    value = getattr(probe_nb, name)
    assert name in dir(probe_nb)
    assert isinstance(value, str) or value.__doc__


def test_a_name_that_is_not_public_is_refused_by_name():
    with pytest.raises(AttributeError, match="`probe_nb` has no attribute `wacth`"):
        _ = probe_nb.wacth


def test_star_import_gives_the_public_names():
    found: dict[str, object] = {}
    exec("from probe_nb import *", found)
    assert set(probe_nb.__all__) <= set(found)
