"""Importing probe_nb costs nothing until something is asked of it."""

from __future__ import annotations

import os
import sys

import pytest

from tests.packaging.conftest import ROOT, run

pytestmark = pytest.mark.xdist_group("packaging")

LOADS = """
import sys, typing, __future__
before = set(sys.modules)
import probe_nb
print(*sorted(set(sys.modules) - before))
"""

FROM_FILE = """
import sys, time
started = time.perf_counter()
import probe_nb
print(time.perf_counter() - started)
"""

LIMIT = 0.05
"""Seconds; a machine that does nothing else takes a tenth of it, most of that for `typing`."""


def test_importing_it_loads_one_module_and_two_of_python(installed, tmp_path):
    """Where nothing else is installed, not even torch."""
    assert run(installed, "-I", "-c", LOADS, cwd=tmp_path).split() == ["probe_nb"]


def test_importing_it_loads_as_little_where_everything_is_installed(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert run(sys.executable, "-c", LOADS, cwd=tmp_path, env=env).split() == ["probe_nb"]


def test_importing_it_takes_less_than_a_twentieth_of_a_second(installed, tmp_path):
    """The quickest of ten tells what it costs; the others, what else the machine did."""
    times = [float(run(installed, "-I", "-c", FROM_FILE, cwd=tmp_path)) for _ in range(10)]
    assert min(times) < LIMIT
