"""A script written for msProbe, run by msProbe and, with its import changed, by us; and compared."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any


SCRIPTS = Path(__file__).parent / "scripts"
TORCH = "/site-packages/torch/"
THEIRS, OURS = "from msprobe.pytorch import", "from probe_nb.debugger import"


def printed(python: str | Path, script: str, cwd: Path) -> str:
    """Run a script in its folder, and return what it printed."""
    found = subprocess.run(
        [str(python), script],
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert found.returncode == 0, f"{found.stdout[-3000:]}\n{found.stderr[-6000:]}"
    return found.stdout


def run_both(name: str, folder: Path, msprobe: str | Path, **config: Any) -> tuple[Path, Path]:
    """Run a script on both sides, each in a folder of its own, and return these."""
    mine, real = folder / "ours", folder / "theirs"
    for side in (mine, real):
        shutil.copytree(SCRIPTS, side)
        if config:
            (side / "config.json").write_text(json.dumps({"dump_path": "./dump_path"} | config))
    for script in mine.glob("*.py"):
        script.write_text(script.read_text(encoding="utf-8").replace(THEIRS, OURS), encoding="utf-8")
    (mine / "printed").write_text(printed(sys.executable, f"{name}.py", cwd=mine))
    (real / "printed").write_text(printed(msprobe, f"{name}.py", cwd=real))
    return mine, real


def differences(mine: Path, real: Path, *, dump: str = "dump_path") -> list[str]:
    """Return in words how our folder differs from msProbe's, file by file and key by key."""
    found = []
    ours, theirs = (_files(side / dump) for side in (mine, real))
    for path in sorted({*ours, *theirs}):
        if path not in ours or path not in theirs:
            found.append(f"{path}: only {'theirs' if path in theirs else 'ours'}")
        elif path.endswith(".json"):
            one, other = (_json(*each) for each in ((ours[path], mine), (theirs[path], real)))
            found += [f"{path}: {each}" for each in _differ(one, other, "")]
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
    read = json.loads(path.read_text(encoding="utf-8").replace(str(side), "."))
    if path.name == "stack.json":
        stacks = ((name, stack) for names, stack in read.values() for name in names)
        return {name: [line for line in stack if TORCH not in line] for name, stack in stacks}
    if "dump_data_dir" in read:
        read["dump_data_dir"] = read["dump_data_dir"] is not None
    if path.name == "dump.json":
        read["order"] = list(read["data"])
    return read


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
    import torch

    a, b = (torch.load(each, weights_only=True) for each in (one, other))
    if a.dtype != b.dtype or a.shape != b.shape or a.requires_grad != b.requires_grad:
        return [f"ours {a.dtype} {list(a.shape)} {a.requires_grad}, theirs {b.dtype} {list(b.shape)} {b.requires_grad}"]
    return [] if torch.allclose(a, b, rtol=1e-6, atol=1e-7) else ["other elements"]
