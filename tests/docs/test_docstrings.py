"""The examples in the docstrings of public names run, and show what they say."""

from __future__ import annotations

import doctest
import inspect
import sys

import matplotlib as mpl
import pytest

import probe_nb
from probe_nb.analysis.compare.divergence import Divergence
from probe_nb.analysis.finding import Finding
from probe_nb.analysis.origins import Origin
from probe_nb.exponents import Histogram
from probe_nb.view.plots import Plots
from probe_nb.view.structure import Structure

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
RESULTS = (Divergence, Finding, Histogram, Origin, Plots, Structure)

PUBLIC = {f"probe.{n}": getattr(probe_nb, n) for n in probe_nb.__all__ if n != "__version__"}
PUBLIC |= {
    f"{kind.__name__}.{name}": getattr(kind, name)
    for kind in (*filter(inspect.isclass, PUBLIC.values()), *RESULTS)
    for name in dir(kind)
    if not name.startswith("_") and not hasattr(BaseException, name)
}


def examples(name: str) -> doctest.DocTest:
    found = PUBLIC[name]
    code = found.fget if isinstance(found, property) else found
    names = vars(sys.modules[code.__module__]) if hasattr(code, "__module__") else {}
    text = inspect.getdoc(found) or ""
    return doctest.DocTestParser().get_doctest(text, dict(names), name, None, None)


WITH_EXAMPLE = [
    name for name in PUBLIC if examples(name).examples and type(PUBLIC[name]) is not int
]


@pytest.mark.parametrize("name", WITH_EXAMPLE)
def test_the_example_of_a_public_name_runs(monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)  # what it writes does not stay
    said: list[str] = []
    with mpl.rc_context({"backend": "agg"}):
        doctest.DocTestRunner(optionflags=FLAGS).run(examples(name), out=said.append)
    assert said == []


def test_every_function_and_what_a_run_is_asked_for_has_an_example():
    asked = {name for name in PUBLIC if name.startswith(("probe.", "Run.", "Plots."))}
    without = {
        *("Run.bind", "Run.flush", "Run.is_open", "Run.inspect", "Run.plot"),
        *("Run.restore_custom_api", "Run.step", "Run.to_tensorboard"),
    }
    assert asked - set(WITH_EXAMPLE) == without


def test_every_public_name_is_described():
    said = {name: inspect.getdoc(found) for name, found in PUBLIC.items() if found is not None}
    assert [name for name, text in said.items() if not text] == []
