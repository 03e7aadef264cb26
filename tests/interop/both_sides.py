"""Scripts written for msProbe, run by msProbe and, with their import changed, by us; and compared."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
TORCH = "/site-packages/torch/"
THEIRS, OURS = "from msprobe.pytorch import", "from probe_nb.debugger import"


def run_both(python: str | Path, jobs: dict[str, tuple[str, dict[str, Any]]], folder: Path) -> None:
    """Run scripts on both sides, each with its configuration in a folder of its own.

    Job `name` leaves `ours` and `theirs` in the folder that `at` tells.
    """
    for name, (_, config) in jobs.items():
        for side in ("ours", "theirs"):
            made = at(folder, name) / side
            shutil.copytree(HERE / "scripts", made)
            written = json.dumps({"dump_path": "./dump_path"} | config)
            (made / "config.json").write_text(written, encoding="utf-8")
        for script in (at(folder, name) / "ours").glob("*.py"):
            text = script.read_text(encoding="utf-8").replace(THEIRS, OURS)
            script.write_text(text, encoding="utf-8")
    sides = (("ours", sys.executable, "probe_nb.debugger"), ("theirs", python, "msprobe.pytorch"))
    todo = {
        side: [(f"{job[0]}.py", str(at(folder, name) / side)) for name, job in jobs.items()]
        for side in ("ours", "theirs")
    }
    both = {  # at once: much of it is waiting
        side: subprocess.Popen(
            [str(interpreter), "-m", "tests.interop.runner", module, json.dumps(todo[side])],
            cwd=HERE.parent.parent,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for side, interpreter, module in sides
    }
    for side, process in both.items():
        _, error = process.communicate(timeout=280)
        said = [error[-3000:], *(_failure(Path(where)) for _, where in todo[side])]
        assert process.returncode == 0, "\n".join(said)


def at(folder: Path, name: str) -> Path:
    """Return the folder of a job; msProbe refuses a path with a space in it."""
    return folder / re.sub(r"\W+", "-", name)


def _failure(folder: Path) -> str:
    """Return what a script that failed has printed last."""
    printed = folder / "printed"
    text = printed.read_text(errors="replace") if printed.exists() else ""
    return f"{folder}: {text[-3000:]}" if "Traceback (most recent" in text else ""


# -- what differs -------------------------------------------------------------------------------


def differences(folder: Path) -> list[str]:
    """Return in words how our dump differs from msProbe's, file by file and key by key."""
    found = []
    mine, real = folder / "ours", folder / "theirs"
    ours, theirs = (_files(side / "dump_path") for side in (mine, real))
    for path in sorted({*ours, *theirs}):
        if path not in ours or path not in theirs:
            found.append(f"{path}: only {'theirs' if path in theirs else 'ours'}")
        elif path.endswith(".json"):
            one, other = (_json(*each) for each in ((ours[path], mine), (theirs[path], real)))
            found += [f"{path}: {each}" for each in _differ(one, other, "")]
            found += [f"{path}: {each}" for each in _orders(one, other)]
        elif path.endswith(".pt"):
            found += [f"{path}: {each}" for each in _tensors(ours[path], theirs[path])]
    return found


def _files(root: Path) -> dict[str, Path]:
    """Return the files by their names, in which the numbers of processes are left out."""
    found = {}
    for path in root.rglob("*.*"):
        parts = ["proc" if p.startswith("proc") else p for p in path.relative_to(root).parts]
        found["/".join(parts)] = path
    return found


def _json(path: Path, side: Path) -> Any:
    """Read a file; places in it count from the folder of its side, and torch's own are left out."""
    text = path.read_text(encoding="utf-8").replace(str(side), ".")
    read = json.loads(re.sub(r"/proc\d+/", "/proc/", text))
    if path.name == "stack.json":
        stacks = ((name, stack) for names, stack in read.values() for name in names)
        hidden = (TORCH, "tests/interop/runner.py", "<frozen runpy>")
        return {n: [line for line in s if not any(h in line for h in hidden)] for n, s in stacks}
    return read


def _orders(one: Any, other: Any) -> list[str]:
    """Compare the order of forwards; that of gradients is a matter of the hooks that see them."""
    orders = [
        [key for key in each.get("data", {}) if "forward" in key and key in both.get("data", {})]
        for each, both in ((one, other), (other, one))
    ]
    return [] if orders[0] == orders[1] else [f"/order ours {orders[0]}, theirs {orders[1]}"]


def _differ(one: Any, other: Any, where: str, scale: float = 0.0) -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        found = []
        if "Max" in other and "Norm" in other:
            scale = max(abs(float(other[each] or 0)) for each in ("Max", "Min"))
        for key in [*other, *(key for key in one if key not in other and key != "probe_nb")]:
            at = f"{where}/{key}"
            if key not in one or key not in other:
                found.append(f"{at} only {'theirs' if key in other else 'ours'}")
            else:
                found += _differ(one[key], other[key], at, scale)
        return found
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [each for n, pair in pairs for each in _differ(*pair, f"{where}/{n}")]
    return [] if _same(one, other, scale) else [f"{where} ours {one!r}, theirs {other!r}"]


def _same(one: Any, other: Any, scale: float) -> bool:
    """Tell whether two values are equal; sums depend on the order in which they are taken."""
    if all(isinstance(each, float | int) and not isinstance(each, bool) for each in (one, other)):
        if math.isnan(one) and math.isnan(other):
            return True
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=5e-7 * scale)
    return type(one) is type(other) and one == other


def _tensors(one: Path, other: Path) -> list[str]:
    a, b = (torch.load(each, weights_only=True) for each in (one, other))
    said = [f"{t.dtype} {list(t.shape)} {t.requires_grad}" for t in (a, b)]
    if said[0] != said[1]:
        return [f"ours {said[0]}, theirs {said[1]}"]
    return [] if torch.allclose(a, b, rtol=1e-6, atol=1e-7) else ["other elements"]
