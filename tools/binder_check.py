"""Build the environment of `binder/`, start it as Binder does, and run the first notebook there.

`make binder-check` follows what repo2docker does with these files, in `build/binder` and without
Docker: a copy of the project, the Python of `runtime.txt`, `requirements.txt`, `postBuild`, then
JupyterLab under `start`. One thing differs: torch comes from the index that pip has anyway, not
from the one that `requirements.txt` names, which is often out of reach. The notebooks are opened
in Chromium; the first runs to its end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import nbformat
from playwright.sync_api import expect

from tests.browser.harness import Notebook, open_page, serve

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "build" / "binder"
HOME: Final = FOLDER / "home"
BIN: Final = FOLDER / "env" / "bin"
FIRST: Final = "01_first_look"
SECONDS: Final = 300
INDICATOR: Final = ".jp-Notebook-ExecutionIndicator"
LEFT_OUT: Final = (
    ".git",
    ".venv",
    "build",
    "dist",
    "node_modules",
    "static",
    "__pycache__",
    ".*_cache",
)


def copy() -> None:
    """Copy the project without what was built, as a fresh clone has it."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    shutil.copytree(ROOT, HOME, ignore=shutil.ignore_patterns(*LEFT_OUT))


def requirements() -> Path:
    """Write `requirements.txt` anew, with torch from the index that is at hand."""
    given = HOME / "binder" / "requirements.txt"
    lines = given.read_text(encoding="utf-8").splitlines()
    here = [line.replace("+cpu", "") for line in lines if not line.startswith("--extra-index-url")]
    if len(here) != len(lines) - 1:
        raise SystemExit(f"{given} names no index for torch's CPU wheels")
    written = given.with_name("requirements-here.txt")
    written.write_text("\n".join(here) + "\n", encoding="utf-8")
    return written


def interpreter() -> str:
    """Return the Python that `runtime.txt` names."""
    named = (HOME / "binder" / "runtime.txt").read_text(encoding="utf-8").strip()
    name = named.replace("-", "")  # python-3.11
    own = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    found = sys.executable if own == name else shutil.which(name)
    if not found:
        raise SystemExit(f"binder/runtime.txt asks for {named}, which is not here")
    return found


def run(*command: object) -> None:
    """Run a command in the copy, with the environment's programs first on PATH."""
    print("+", *command, flush=True)
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    subprocess.run(
        [str(part) for part in command], cwd=HOME, check=True, env={**os.environ, "PATH": path}
    )


def build() -> None:
    """Do what the image is built by."""
    run(interpreter(), "-m", "venv", FOLDER / "env")
    run(BIN / "python", "-m", "pip", "install", "--quiet", "-r", requirements())
    run(HOME / "binder" / "postBuild")


def visit() -> None:
    """Open every notebook, and run the first one to its end."""
    start = (str(HOME / "binder" / "start"), str(BIN / "python"))
    with serve("lab", HOME, start) as server, open_page() as page:
        for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
            started = time.monotonic()
            written = cleared(path) if path.stem == FIRST else path
            notebook = Notebook(page, server, written, name=f"notebooks/{path.name}")
            print(f"{path.name}: opened in {time.monotonic() - started:.0f} s", flush=True)
            if path.stem == FIRST:
                ran(notebook)
                print(f"{path.name}: ran in {time.monotonic() - started:.0f} s", flush=True)


def cleared(path: Path) -> Path:
    """Write a notebook without outputs, so that a cell that has one has been run."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    nbformat.write(notebook, FOLDER / path.name)
    return FOLDER / path.name


def ran(notebook: Notebook) -> None:
    """Run a notebook by the menu; end if a cell fails or no inspector is seen."""
    page = notebook.page
    page.locator(".lm-MenuBar-itemLabel", has_text="Run").first.click()
    page.locator(".lm-Menu-itemLabel", has_text="Run All Cells").first.click()
    page.wait_for_selector(f"{INDICATOR}[data-status='busy']", timeout=SECONDS * 1000)
    page.wait_for_selector(f"{INDICATOR}[data-status='idle']", timeout=SECONDS * 1000)
    page.screenshot(path=FOLDER / f"{notebook.path.stem}.png")
    cells = [cell for cell in notebook.save().cells if cell.cell_type == "code" and cell.source]
    outputs = [output for cell in cells for output in cell.outputs]
    for failed in (each for each in outputs if each.output_type == "error"):
        raise SystemExit(f"{notebook.path.name}: {failed.ename}: {failed.evalue}")
    if not all(cell.execution_count for cell in cells):
        raise SystemExit(f"{notebook.path.name}: not every cell has run")
    expect(page.locator(".probe-nb-inspector").first).to_be_attached()


def main() -> None:
    """Build, visit, and say how long it took and how large it is."""
    started = time.monotonic()
    copy()
    build()
    size = sum(path.lstat().st_size for path in FOLDER.rglob("*") if path.is_file())
    print(f"built in {time.monotonic() - started:.0f} s, {size / 1e9:.1f} GB", flush=True)
    visit()


if __name__ == "__main__":
    main()
