"""Install what is built into empty environments, and read saved runs there: `make packages`.

The sdist and the wheel are built. Then, for each Python from 3.10 on that is found here, probe_nb
and all that it needs but torch go into an empty environment, in their newest versions and, on the
Pythons that these have wheels for, in the oldest that are declared. `tests/packaging/reads.py`
reads there what `saved.py` wrote here. With torch, in the version of constraints.txt, the same
runs are recorded by what was installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path
from typing import Final, NamedTuple
from zipfile import ZipFile

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "build" / "packages"
CHECKS: Final = ROOT / "tests" / "packaging"
SAVED: Final = FOLDER / "saved"
VERSIONS: Final = ("3.10", "3.11", "3.12", "3.13", "3.14")
OLDEST: Final = ("3.10", "3.11")
"""Pythons that the oldest of all dependencies have wheels for."""


class Place(NamedTuple):
    """One environment: its interpreter, and which versions go in."""

    python: str
    version: str
    kind: str

    def packages(self, wheel: Path) -> list[str]:
        """Return what pip installs beside the wheel."""
        if self.kind == "torch":
            return [str(wheel), "-c", str(ROOT / "constraints.txt")]
        needed = [each for each in needs(wheel) if not each.startswith("torch")]
        if self.kind == "oldest":
            needed = [each.replace(">=", "==") for each in needed]
        return ["--only-binary", ":all:", *needed]


def needs(wheel: Path) -> list[str]:
    """Return what a wheel asks for, without its extras."""
    with ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    return [each for each in metadata.get_all("Requires-Dist", []) if ";" not in each]


def pythons() -> Iterator[tuple[str, str]]:
    """Yield each version that is here, and an interpreter of it: on PATH, or of pyenv's."""
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in VERSIONS:
        found = [shutil.which(f"python{version}"), *home.glob(f"{version}.*/bin/python")]
        good = (str(each) for each in found if each and answers(str(each), version))
        python = next(good, None)
        if python:
            yield version, python
        else:
            print(f"Python {version} is not here")


def answers(python: str, version: str) -> bool:
    """Tell whether an interpreter starts, and is of a version; pyenv leaves stubs on PATH."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() == version


def places() -> Iterator[Place]:
    """Yield the environments."""
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for version, python in pythons():
        yield Place(python, version, "newest")
        if version in OLDEST:
            yield Place(python, version, "oldest")
    yield Place(sys.executable, own, "torch")


def build() -> Path:
    """Build the sdist, and from it the wheel; return the wheel."""
    dist = FOLDER / "dist"
    run(sys.executable, "-m", "build", "--outdir", dist, ROOT)
    (wheel,) = dist.glob("*.whl")
    return wheel


def install(place: Place, wheel: Path) -> Path:
    """Make an environment; return its interpreter."""
    folder = FOLDER / f"{place.version}-{place.kind}"
    run(place.python, "-m", "venv", folder)
    python = folder / "bin" / "python"
    pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile")
    run(*pip, *place.packages(wheel))
    run(*pip, "--no-deps", wheel)
    return python


def check(place: Place, python: Path) -> None:
    """Read what was saved; where torch is, record it first, and then hide torch."""
    saved, hidden = SAVED, []
    if place.kind == "torch":
        saved = FOLDER / "saved-again"
        saved.mkdir()
        run(python, "-I", CHECKS / "saved.py", saved)
        hidden = [str(next(python.parents[1].glob("lib/python*/site-packages")))]
    read = run(python, "-I", CHECKS / "reads.py", saved, *hidden)
    if not Path(read).is_relative_to(python.parents[1]):
        raise SystemExit(f"{read} was read, and not what was installed")


def run(*command: object) -> str:
    """Run a program; end with what it says if it fails."""
    done = subprocess.run(
        [str(part) for part in command], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def versions(python: Path) -> str:
    """Return what was installed of what probe_nb needs."""
    listed = run(python, "-m", "pip", "--disable-pip-version-check", "freeze")
    names = "torch|numpy|pandas|pyarrow|ipython|ipywidgets|anywidget|matplotlib|safetensors|tqdm"
    return ", ".join(re.findall(rf"^(?:{names})==\S+", listed, re.MULTILINE))


def main() -> None:
    """Build, and check every environment."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    SAVED.mkdir(parents=True)
    wheel = build()
    os.environ["MPLCONFIGDIR"] = str(FOLDER)
    os.environ["PYTHONPATH"] = str(ROOT)
    run(sys.executable, CHECKS / "saved.py", SAVED)
    del os.environ["PYTHONPATH"]
    for place in places():
        started = time.monotonic()
        python = install(place, wheel)
        check(place, python)
        seconds = time.monotonic() - started
        print(
            f"Python {place.version}, {place.kind}: {seconds:.0f} s, {versions(python)}", flush=True
        )
        shutil.rmtree(python.parents[1])


if __name__ == "__main__":
    main()
