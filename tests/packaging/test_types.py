"""Who uses probe_nb in typed code sees its types: mypy is asked about a project of a user's."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.xdist_group("packaging")

USER = """
import probe_nb as probe

run = probe.load("run.parquet")
reveal_type(run)
reveal_type(len(run))
reveal_type(probe.compare(run, run).first_divergence())
reveal_type(probe.watch)
probe.load(3)
probe.wacth()
"""


@pytest.fixture(scope="module")
def said(installed, tmp_path_factory) -> dict[int, str]:
    """What mypy says, by line; in strict mode, of an environment with the wheel alone."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "user.py").write_text(USER, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(installed)]
    done = subprocess.run(
        [*command, "--cache-dir", str(folder / "cache"), "user.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    found = re.findall(r"^user\.py:(\d+): (.*)$", done.stdout, re.MULTILINE)
    assert found, done.stdout + done.stderr
    return {int(line): text for line, text in found}


def test_the_types_of_the_package_are_seen(said):
    assert said[5] == 'note: Revealed type is "probe_nb.run.Run"'
    assert said[6] == 'note: Revealed type is "int"'
    assert "probe_nb.analysis.compare" in said[7]
    assert "def (" in said[8]
    assert "-> probe_nb.doors.Watch" in said[8]


def test_a_wrong_argument_and_a_wrong_name_are_found(said):
    assert '"load" has incompatible type "int"' in said[9]
    assert 'has no attribute "wacth"' in said[10]
    assert set(said) == set(range(5, 11)), "nothing else: not the missing marker of a typed package"
