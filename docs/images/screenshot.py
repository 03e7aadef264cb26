"""Take the pictures of the README: the first notebook's second act in JupyterLab, light and dark.

From the root of the repository: `python -m docs.images.screenshot`. It needs Chromium, which
`python tools/chromium.py` installs.
"""

# ruff: noqa: INP001 - a script, not a package

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from PIL import Image

from tests.browser.harness import Notebook, open_page, serve

ROOT = Path(__file__).parents[2]
WATCHING = "with probe.watch("
WIDTH, HEIGHT = 1200, 1100


def take(target: Path, *, dark: bool) -> None:
    """Run the notebook as far as its first `with` block and write a picture of that cell."""
    with TemporaryDirectory() as place, open_page(dark=dark) as page:
        folder = Path(place)
        _choose_theme(folder, "JupyterLab Dark" if dark else "JupyterLab Light")
        with serve("lab", folder) as server:
            page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
            notebook = Notebook(page, server, _cells())
            page.wait_for_timeout(2000)  # while a theme loads, key presses are lost
            last = len(_cells()) - 1
            for index in range(last + 1):
                notebook.run(index)
            page.keyboard.press("Escape")
            page.keyboard.press("Control+b")  # without the file browser
            page.get_by_role("status").filter(has_text="NaN first appeared").last.wait_for()
            notebook.cell(last).scroll_into_view_if_needed()
            page.wait_for_timeout(1000)
            notebook.cell(last).screenshot(path=target)
    with Image.open(target) as picture:
        small = picture.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    small.save(target, optimize=True)


def _cells() -> list[str]:
    """Return the code cells up to the watched one; all but that one in a single cell."""
    notebook = nbformat.read(ROOT / "notebooks" / "01_first_look.ipynb", as_version=4)
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    last = next(place for place, source in enumerate(sources) if WATCHING in source)
    magics = next(place for place, source in enumerate(sources) if "%load_ext" in source)
    head, _, tail = sources[last].partition(WATCHING)
    return ["\n\n".join([*sources[:magics], head]), (WATCHING + tail).split("\n\nprint(")[0]]


def _choose_theme(folder: Path, theme: str) -> None:
    settings = folder / ".jupyter" / "lab-settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "themes.jupyterlab-settings").write_text(json.dumps({"theme": theme}))


if __name__ == "__main__":
    for name in ("light", "dark"):
        take(Path(__file__).parent / f"inspector-{name}.png", dark=name == "dark")
