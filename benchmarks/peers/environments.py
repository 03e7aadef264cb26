"""A virtual environment of its own for each package, in `build/peers`, over one torch for all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tools.msprobe import TORCH
from tools.msprobe import VERSION as MSPROBE

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "build" / "peers"
WHEELS: Final = {
    "msprobe": f"mindstudio-probe=={MSPROBE}",
    "tensorboard": "tensorboard==2.21.0",
    "wandb": "wandb==0.31.0",
    "torchlens": "torchlens==2.36.1",
    "torchinstruments": "torchinstruments==0.10.2",
}
"""Distributions by the names that this benchmark calls them; ours runs where it is installed."""
_TORCH: Final = "torch"


class MissingError(Exception):
    """A package cannot be installed here; the message says which."""


def python(tool: str) -> Path:
    """Return the interpreter that has `tool`, installing it on first use.

    Raises:
        MissingError: It cannot be installed here.
    """
    if tool not in WHEELS:
        return Path(sys.executable)
    base = _environment(_TORCH, [f"torch=={TORCH}", "numpy", "ipykernel"])
    return _environment(tool, [WHEELS[tool]], base) / "bin" / "python"


def variables(interpreter: Path) -> dict[str, str]:
    """Return the environment of a process: its package's commands come first on the path."""
    path = f"{interpreter.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "WANDB_SILENT": "true"}


def _environment(name: str, wheels: list[str], base: Path | None = None) -> Path:
    """Make an environment unless it is there; it sees the packages of `base`, too."""
    folder, wanted = FOLDER / name, "\n".join(wheels)
    ready = folder / ".ready"
    if ready.is_file() and ready.read_text(encoding="utf-8") == wanted:
        return folder
    print(f"Installing {', '.join(wheels)} into build/peers/{name}, once", file=sys.stderr)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    try:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        if base is not None:
            (_packages(folder) / "base.pth").write_text(f"{_packages(base)}\n", encoding="utf-8")
        subprocess.run([*pip, "-c", "constraints.txt", *wheels], cwd=ROOT, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise MissingError(f"{wanted} could not be installed") from error
    ready.write_text(wanted, encoding="utf-8")
    return folder


def _packages(folder: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return folder / "lib" / version / "site-packages"
