"""What needs no torch runs where there is none, with the files of the wheel alone.

`make packages` does the same in environments that really have none.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, run

pytestmark = pytest.mark.xdist_group("packaging")

HERE = Path(__file__).parent


def test_saved_runs_are_read_compared_shown_and_written_without_torch(site, tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MPLCONFIGDIR": str(tmp_path)}
    run(sys.executable, HERE / "saved.py", tmp_path, env=env)
    read = run(sys.executable, "-I", HERE / "reads.py", tmp_path, site, env=env)
    assert Path(read.strip()).is_relative_to(site)
