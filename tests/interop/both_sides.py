"""A script written for msProbe, run by msProbe and, with its import changed, by us; and compared."""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.interop.conftest import Runs, printed

SCRIPTS = Path(__file__).parent / "scripts"
THEIRS, OURS = "from msprobe.pytorch import", "from probe_nb.debugger import"


def run_both(name: str, folder: Path, run_msprobe: Runs, **config: Any) -> tuple[Path, Path]:
    """Run a script on both sides, each in a folder of its own, and return these."""
    mine, real = folder / "ours", folder / "theirs"
    for side in (mine, real):
        shutil.copytree(SCRIPTS, side)
        if config:
            (side / "config.json").write_text(json.dumps({"dump_path": "./dump_path"} | config))
    for script in mine.glob("*.py"):
        script.write_text(script.read_text(encoding="utf-8").replace(THEIRS, OURS), encoding="utf-8")
    (mine / "printed").write_text(printed(sys.executable, f"{name}.py", cwd=mine))
    (real / "printed").write_text(run_msprobe(f"{name}.py", cwd=real))
    return mine, real


def differences(mine: Path, real: Path, *, dump: str = "dump_path") -> list[str]:
    """Return in words how our folder differs from msProbe's."""
    found = []
    ours, theirs = (_files(side / dump) for side in (mine, real))
    for path in sorted({*ours, *theirs}):
        if path not in ours or path not in theirs:
            found.append(f"{path}: only {'theirs' if path in theirs else 'ours'}")
        elif path.endswith(".json"):
            one, other = (_json(side[path]) for side in (ours, theirs))
            found += [f"{path}: {each}" for each in _differ(one, other, "")]
        elif path.endswith(".pt"):
            found += [f"{path}: {each}" for each in _tensors(ours[path], theirs[path])]
    return found


def _files(root: Path) -> dict[str, Path]:
    """Return the files by their names, in which the numbers of processes are the same."""
    found = {}
    for path in root.rglob("*.*"):
        parts = ["proc" if p.startswith("proc") else p for p in path.relative_to(root).parts]
        found["/".join(parts)] = path
    return found


def _json(path: Path) -> Any:
    read = json.loads(path.read_text(encoding="utf-8"))
    if path.name == "stack.json":
        return {name: stack for names, stack in read.values() for name in names}
    if "dump_data_dir" in read:
        read["dump_data_dir"] = read["dump_data_dir"] is not None
    return read


def _differ(one: Any, other: Any, where: str) -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        found = []
        for key in [*other, *(key for key in one if key not in other and key != "probe_nb")]:
            at = f"{where}/{key}"
            if key not in one or key not in other:
                found.append(f"{at} only {'theirs' if key in other else 'ours'}")
            else:
                found += _differ(one[key], other[key], at)
        return found
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [e for n, pair in enumerate(zip(one, other, strict=True)) for e in _differ(*pair, f"{where}/{n}")]
    return [] if _same(one, other) else [f"{where} ours {one!r}, theirs {other!r}"]


def _same(one: Any, other: Any) -> bool:
    """Tell whether two values are equal; sums differ by the order in which they were taken."""
    numbers = all(isinstance(each, float | int) and not isinstance(each, bool) for each in (one, other))
    if numbers:
        return math.isclose(one, other, rel_tol=2e-6, abs_tol=1e-8) or (one != one and other != other)
    return type(one) is type(other) and one == other


def _tensors(one: Path, other: Path) -> list[str]:
    import torch

    a, b = (torch.load(each, weights_only=True) for each in (one, other))
    if a.dtype != b.dtype or a.shape != b.shape or a.requires_grad != b.requires_grad:
        return [f"ours {a.dtype} {list(a.shape)} {a.requires_grad}, theirs {b.dtype} {list(b.shape)} {b.requires_grad}"]
    return [] if torch.allclose(a, b, rtol=1e-6, atol=1e-7) else ["other elements"]
