"""Names and numbers of functions are those of msProbe, but for those that docs/api-level.md lists."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

import probe_nb as probe
from tests.interop.functions import program
from tools.msprobe import ROOT

pytestmark = pytest.mark.xdist_group("names of msProbe")

CREATED = ("randn", "ones", "zeros", "zeros_like", "ones_like", "empty", "tensor")
OURS_ALONE = {
    *(f"Torch.{name}" for name in CREATED),
    *("Tensor.__getitem__", "Tensor.__neg__", "Tensor.__invert__", "Tensor.copy_"),
    *("Tensor.detach", "Tensor.clone", "Tensor.contiguous", "Tensor.view", "Tensor.zero_"),
    *("Torch.fft", "Aten.relu"),
}
"""What msProbe does not record, of what the program calls."""

RENAMED = {
    "Torch.relu_": "Functional.relu_",  # one function in two packages
    "Tensor.__matmul__": "Tensor.matmul",  # called by `operator.matmul`, once
}
"""msProbe's name of a call, and ours."""

ONE_MORE = "Tensor.abs"
"""What `abs(x)` is called; msProbe does not record it."""


@pytest.fixture(scope="module")
def real(msprobe_python, tmp_path_factory):
    """Return the keys of msProbe's own dump, in its order."""
    folder = tmp_path_factory.mktemp("names")
    done = subprocess.run(
        [str(msprobe_python), "-m", "tests.interop.names_real", str(folder)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "names.json").read_text())


@pytest.fixture(scope="module")
def ours():
    """Return the same keys of our own run of the same program."""
    with probe.watch(level="api", apis="all", live=False) as run:
        program()
    rows = zip(run.df["api"].astype(str), run.df["call"], run.df["direction"], strict=True)
    return [f"{api}.{call}.{way}" for api, call, way in dict.fromkeys(rows)]


def called(keys, way="forward"):
    """Return the names of the calls that have a direction, in their order."""
    return [key.rsplit(".", 2)[0] for key in keys if key.endswith(f".{way}")]


def test_the_program_is_large_enough(real):
    assert len(set(called(real))) > 150
    assert {key.partition(".")[0] for key in real} == {"Functional", "Tensor", "Torch"}


def test_every_call_has_msprobes_name_and_is_counted_as_often(real, ours):
    mine, theirs = Counter(called(ours)), Counter(called(real))
    for name, other in RENAMED.items():
        theirs[name] -= 1
        theirs[other] += 1
    theirs[ONE_MORE] += 1
    assert set(mine) - set(theirs) == OURS_ALONE
    assert {name: mine[name] for name in theirs if theirs[name]} == +theirs


def test_the_calls_stand_in_msprobes_order(real, ours):
    other = {*OURS_ALONE, *RENAMED, *RENAMED.values(), ONE_MORE}
    mine, theirs = ([n for n in called(keys) if n not in other] for keys in (ours, real))
    assert mine == theirs


def test_every_backward_that_msprobe_has_is_there(real, ours):
    assert set(called(real, "backward")) <= set(called(ours, "backward"))
    assert len(called(real, "backward")) >= 5


def test_the_page_lists_every_difference():
    page = (Path(ROOT) / "docs" / "api-level.md").read_text(encoding="utf-8")
    for name in (*OURS_ALONE, *RENAMED, *RENAMED.values(), ONE_MORE):
        assert re.search(rf"`{re.escape(name)}`|`{re.escape(name.partition('.')[2])}`", page), name
