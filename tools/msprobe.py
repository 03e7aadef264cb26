"""A virtual environment of msProbe's own, in `build/msprobe`: importing it patches torch.

Run as a script it installs msProbe there, unless it is there, or exits with a sentence that says
what failed. The tests of `tests/interop` and the benchmarks have its interpreter from `python`.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "build" / "msprobe"
VERSION: Final = "26.2.0"
TORCH: Final = "2.13.0"
_PACKAGES: Final = (f"torch=={TORCH}", f"mindstudio-probe=={VERSION}")
_READY: Final = FOLDER / ".ready"


class MissingError(Exception):
    """msProbe cannot be had here; the message says why."""


def python() -> Path:
    """Return the interpreter that has msProbe, installing it on first use.

    Raises:
        MissingError: It cannot be installed here.
    """
    failed = _install()
    if failed:
        raise MissingError(failed)
    return _interpreter()


def _interpreter() -> Path:
    windows = sys.platform == "win32"
    return FOLDER / ("Scripts/python.exe" if windows else "bin/python")


@functools.cache
def _install() -> str:
    """Make the environment unless it is there; return what failed, once per run of ours."""
    wanted = "\n".join(_PACKAGES)
    if _READY.is_file() and _READY.read_text(encoding="utf-8") == wanted:
        return ""
    print(f"Installing msProbe {VERSION} into build/msprobe, once", file=sys.stderr)
    install = [str(_interpreter()), "-m", "pip", "install", "--quiet", "--no-compile"]
    install += ["-c", "constraints.txt"]
    try:
        for command in ([sys.executable, "-m", "venv", str(FOLDER)], [*install, *_PACKAGES]):
            subprocess.run(command, cwd=ROOT, check=True)
    except (OSError, subprocess.CalledProcessError):
        return f"msProbe {VERSION} could not be installed into build/msprobe; see above"
    _READY.write_text(wanted, encoding="utf-8")
    return ""


def main() -> None:
    """Make sure that msProbe is there."""
    try:
        python()
    except MissingError as error:
        raise SystemExit(f"The tests against msProbe itself need it: {error}") from error


if __name__ == "__main__":
    main()
