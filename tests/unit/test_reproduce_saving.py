"""`random_save`: the file that msProbe writes, row by row, as the calls are made."""

# ruff: noqa: NPY002 - the functions that are looked for
from __future__ import annotations

import csv
import inspect
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from probe_nb.errors import ConfigError
from probe_nb.reproduce import random_save


def rows(path):
    """Return what a reader of CSV files sees."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file))


def only(folder):
    (path,) = folder.iterdir()
    return path


def test_the_file_is_there_at_once_and_each_call_is_written_when_it_is_made(tmp_path):
    with random_save(str(tmp_path / "made" / "output")):
        path = only(tmp_path / "made" / "output")
        assert re.fullmatch(rf"random_proc{os.getpid()}_\d{{14}}\.csv", path.name)
        assert path.read_bytes() == b"\xef\xbb\xbfapi_name,stack\r\n"
        random.random()
        assert [row[0] for row in rows(path)] == ["api_name", "python_random.random.0"]
        torch.randn(2), torch.randn(2), torch.ones(2).normal_(), np.random.rand(2), random.random()
        F.dropout(torch.ones(9))
    torch.randn(2)
    assert [row[0] for row in rows(path)[1:]] == [
        "python_random.random.0",
        "torch_random.randn.0",
        "torch_random.randn.1",
        "tensor_random.normal_.0",
        "numpy_random.rand.0",
        "python_random.random.1",
        "torch_random.dropout.0",
    ]


def test_the_stack_is_written_as_msprobe_writes_it(tmp_path):
    with random_save(str(tmp_path)):
        line = inspect.currentframe().f_lineno + 1
        nn.Dropout()(torch.ones(9))
    stack = rows(only(tmp_path))[1][1]
    torchs = inspect.getsourcelines(F.dropout)[1]
    found = re.findall(r"File (.+), line (\d+), in (\w+), \n (.+) \n", stack)
    assert (
        "".join(f"File {f}, line {n}, in {name}, \n {code} \n" for f, n, name, code in found[:2])
        == (stack[: stack.index("File", stack.index("in forward"))])
    )
    assert [(file, name) for file, _, name, _ in found[:2]] == [
        (F.__file__, "dropout"),
        (nn.modules.dropout.__file__, "forward"),
    ]
    assert 0 < int(found[0][1]) - torchs < 40
    mine = (__file__, str(line), "test_the_stack_is_written_as_msprobe_writes_it")
    assert (*mine, "nn.Dropout()(torch.ones(9))") in found
    assert "probe_nb/reproduce" not in stack


def test_the_file_takes_the_name_of_the_rank_once_there_is_one(tmp_path, monkeypatch):
    with random_save(str(tmp_path)):
        torch.rand(1)
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
        torch.rand(1)
        assert re.fullmatch(r"random_rank3_\d{14}\.csv", only(tmp_path).name)
    assert len(rows(only(tmp_path))) == 3


def test_a_forked_process_writes_a_file_of_its_own(tmp_path):
    with random_save(str(tmp_path)):
        torch.rand(1)
        child = os.fork()
        if child == 0:
            torch.randn(1)
            os._exit(0)
        os.waitpid(child, 0)
    (theirs,) = tmp_path.glob(f"random_proc{child}_*.csv")
    (ours,) = tmp_path.glob(f"random_proc{os.getpid()}_*.csv")
    assert [row[0] for row in rows(theirs)] == ["api_name", "torch_random.randn.0"]
    assert [row[0] for row in rows(ours)] == ["api_name", "torch_random.rand.0"]


def test_called_again_it_ends_the_one_before(tmp_path):
    first = random_save(str(tmp_path / "one"))
    second = random_save(str(tmp_path / "two"))
    torch.rand(1)
    second.stop()
    torch.rand(1)
    assert len(rows(only(tmp_path / "one"))) == 1
    assert len(rows(only(tmp_path / "two"))) == 2
    assert (len(first), len(second)) == (0, 1)


def test_the_users_directory_may_change_meanwhile(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with random_save():
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        torch.rand(1)
    assert len(rows(only(tmp_path / "output"))) == 2


@pytest.mark.parametrize("path", [None, 3, Path("x")])
def test_what_is_no_text_is_refused_in_words(path):
    with pytest.raises(ConfigError, match=r"`output_path` is .*; give the name of a folder"):
        random_save(path)


def test_a_disk_that_fails_is_said_once_and_never_stops_the_user(tmp_path):
    folder = tmp_path / "output"
    saved = random_save(str(folder))
    only(folder).unlink()
    folder.rmdir()
    with pytest.warns(UserWarning, match="could not be listed") as told:
        assert torch.rand(3).shape == (3,)
    torch.rand(3)
    saved.stop()
    assert len(told) == 1
    assert saved.df["count"].sum() == 2


def test_a_script_that_never_stops_it_ends_in_peace(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nfrom probe_nb.reproduce import random_save\nrandom_save('output')\n"
        "torch.rand(2)\n"
    )
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-W", "error", script], cwd=tmp_path, env=environment,
                         capture_output=True, text=True, check=False)  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")
    assert rows(only(tmp_path / "output"))[1] == [
        "torch_random.rand.0",
        f"File {script}, line 4, in <module>, \n torch.rand(2) \n",
    ]
