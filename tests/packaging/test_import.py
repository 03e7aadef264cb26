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

CALLS = """
import sys, typing, __future__
made = []
sys.setprofile(lambda frame, event, arg: made.append(frame.f_code.co_name) if "call" in event else None)
import probe_nb
sys.setprofile(None)
print(len(made))
"""

LIMIT = 1000
"""Calls, with those of the import itself: a few thousandths of a second."""


def test_importing_it_loads_one_module_and_two_of_python(installed, tmp_path):
    """Where nothing else is installed, not even torch."""
    assert run(installed, "-I", "-c", LOADS, cwd=tmp_path).split() == ["probe_nb"]


def test_importing_it_loads_as_little_where_everything_is_installed(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert run(sys.executable, "-c", LOADS, cwd=tmp_path, env=env).split() == ["probe_nb"]


def test_importing_it_calls_hardly_anything(installed, tmp_path):
    """What it takes on a clock is what else the machine does; this is what it costs."""
    assert int(run(installed, "-I", "-c", CALLS, cwd=tmp_path)) < LIMIT
