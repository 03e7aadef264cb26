"""torch_npu installed where there is no NPU: torch loads it by itself and cannot be imported.

A stand-in does what the real package did when it was tried: an entry point of the group
`torch.backends` whose import raises. Where the real one is at hand, the environment variable
PROBE_NB_TORCH_NPU names the folder it was installed into (`make test-npu-wheel` sees to both), and
every test runs with it as well.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import probe_nb as probe

ROOT = Path(__file__).parents[2]
REAL = os.environ.get("PROBE_NB_TORCH_NPU")
MISSING = "libhccl.so: cannot open shared object file: No such file or directory"
REMEDIES = ("TORCH_DEVICE_BACKEND_AUTOLOAD=0", "set_env.sh", "restart Python")


@pytest.fixture(scope="module", params=["stand-in", *(["real"] if REAL else [])])
def folder(request, tmp_path_factory) -> Path:
    if request.param == "real":
        return Path(REAL)
    room = tmp_path_factory.mktemp("torch_npu")
    package, distribution = room / "torch_npu", room / "torch_npu-2.13.0.dist-info"
    package.mkdir()
    distribution.mkdir()
    (package / "__init__.py").write_text(f"raise ImportError({MISSING!r})\n")
    facts = "Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.13.0\n"
    (distribution / "METADATA").write_text(facts)
    entry = "[torch.backends]\ntorch_npu = torch_npu:_autoload\n"
    (distribution / "entry_points.txt").write_text(entry)
    return room


@pytest.fixture
def python(folder, tmp_path):
    """Run code with torch_npu on the path, as if it were installed."""

    def run(code: str, **environment: str) -> str:
        path = os.pathsep.join([str(folder), str(ROOT)])
        clean = {k: v for k, v in os.environ.items() if k != "TORCH_DEVICE_BACKEND_AUTOLOAD"}
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            env={**clean, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_torch_itself_fails_and_does_not_say_why(python):
    said = python("""
try:
    import torch
except RuntimeError as error:
    print(error)
""")
    assert "Failed to load the backend extension: torch_npu" in said
    assert "libhccl" not in said


@pytest.mark.parametrize(
    "act",
    [
        "from probe_nb import watch",
        "probe_nb.self_check",
        "probe_nb.load_ipython_extension(None)",
    ],
)
def test_what_needs_torch_says_what_was_found_and_what_to_do(python, act):
    said = python(f"""
import probe_nb
from probe_nb.errors import ProbeError, TorchError
try:
    {act}
except ImportError as error:
    assert isinstance(error, TorchError) and isinstance(error, ProbeError)
    assert isinstance(error.__cause__, RuntimeError)
    print(error)
""")
    assert re.search(r"torch could not be imported: it loads torch_npu \d[\w.]+ by itself", said)
    assert "failed with ImportError: lib" in said
    assert [word for word in REMEDIES if word not in said] == []


def test_a_second_attempt_is_told_from_its_misleading_error(python):
    said = python("""
import probe_nb
for _ in range(2):
    try:
        probe_nb.watch
    except ImportError as error:
        said = str(error)
print(said)
""")
    assert "An import of it failed before in this process" in said
    assert re.search(r"torch_npu \d", said)
    assert [word for word in REMEDIES if word not in said] == []


def test_the_same_is_said_after_the_user_s_own_import_failed(python):
    said = python("""
try:
    import torch
except RuntimeError:
    pass
import probe_nb
try:
    probe_nb.watch
except ImportError as error:
    print(error)
""")
    assert re.search(r"torch_npu \d", said)
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in said


def test_a_saved_run_is_read_and_shown_all_the_same(python, tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with probe.watch(model, roles="output", live=False) as run:
        model(torch.ones(1, 2))
    run.save(tmp_path / "run.parquet")
    said = python("""
import probe_nb, sys
run = probe_nb.load("run.parquet")
print(len(run), len(run.df), len(repr(run)) > 20, "<td" in run._repr_mimebundle_()["text/html"])
print(run.info.versions["torch"], "torch" in sys.modules)
""")
    assert said.split() == ["2", "2", "True", "True", torch.__version__, "False"]


def test_with_autoloading_off_everything_works_and_torch_npu_stays_unimported(python):
    said = python(
        """
import sys, torch, probe_nb as probe
model = torch.nn.Linear(2, 2)
with probe.watch(model, live=False) as run:
    model(torch.ones(1, 2)).sum().backward()
print(len(run) > 4, set(run.df["device"]), run.info.devices, "torch_npu" in sys.modules)
try:
    probe.self_check("npu")
except probe.errors.DeviceError as error:
    print(error)
print("torch_npu" in sys.modules)
""",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    first, second, third = said.splitlines()
    assert first == "True {'cpu'} ['cpu'] False"
    assert re.search(r"torch_npu \d[\w.]+ is installed and not imported", second)
    assert "set_env.sh" in second
    assert third == "False"


BROKEN = """
import sys
sys.modules[{name!r}] = None
import probe_nb
try:
    probe_nb.watch
except ImportError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("torch", ["TorchError", "torch is not installed"]),
        ("pandas", ["ModuleNotFoundError", "pandas"]),
    ],
)
def test_what_is_missing_is_called_by_its_name(name, words):
    done = subprocess.run(
        [sys.executable, "-c", BROKEN.format(name=name)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [word for word in words if word not in done.stdout] == []
    assert ("torch" in done.stdout) == (name == "torch")
