"""A virtual environment of msProbe's own: importing it patches torch, so it never shares ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "build" / "msprobe"
MSPROBE: Final = "26.2.0"
TORCH: Final = "2.13.0"
_PACKAGES: Final = (f"torch=={TORCH}", f"mindstudio-probe=={MSPROBE}")
_READY: Final = FOLDER / ".ready"


class MissingError(Exception):
    """Something that a measurement needs cannot be had; the message says what."""


def python() -> Path:
    """Return the interpreter that has msProbe, installing it on first use.

    Raises:
        MissingError: It cannot be installed here.
    """
    found = FOLDER / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    wanted = "\n".join(_PACKAGES)
    if not (_READY.is_file() and _READY.read_text(encoding="utf-8") == wanted):
        print(f"Installing msProbe {MSPROBE} into build/msprobe, once", file=sys.stderr)
        _call([sys.executable, "-m", "venv", str(FOLDER)])
        install = [str(found), "-m", "pip", "install", "--quiet", "-c", "constraints.txt"]
        _call([*install, *_PACKAGES])
        _READY.write_text(wanted, encoding="utf-8")
    return found


def _call(command: list[str]) -> None:
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError as error:
        raise MissingError(
            f"msProbe {MSPROBE} could not be installed ({error.strerror})"
        ) from error
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        raise MissingError(f"msProbe {MSPROBE} could not be installed")
