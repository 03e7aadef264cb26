"""Run the code blocks of one Markdown page in order, in one fresh IPython shell: `run_page.py PAGE`.

`python` and `ipython` blocks are cells. `pycon` blocks are doctests, whose output is compared.
Other blocks are not run. The first block that fails ends it, with its line in the page.
"""

from __future__ import annotations

import doctest
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

BLOCK = re.compile(
    r"^```(?P<kind>python|ipython|pycon)\n(?P<source>.*?)^```$", re.DOTALL | re.MULTILINE
)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """A fenced block, and the line of its page on which its code begins."""

    kind: str
    source: str
    line: int


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page that are run."""
    return [
        Block(found["kind"], found["source"], page.count("\n", 0, found.start("source")) + 1)
        for found in BLOCK.finditer(page)
    ]


def run(page: Path) -> None:
    """Run a page; leave with a message if a block fails."""
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    for block in blocks(page.read_text(encoding="utf-8")):
        place = f"{page.name}:{block.line}"
        if block.kind == "pycon":
            _compare(block, shell.user_ns, place)
        elif not shell.run_cell(block.source).success:
            sys.exit(f"the block at {place} failed")


def _compare(block: Block, names: dict[str, object], place: str) -> None:
    test = doctest.DocTestParser().get_doctest(block.source, names, place, place, block.line - 1)
    test.globs = names
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    runner.run(test, clear_globs=False)
    if runner.failures:
        sys.exit(f"the block at {place} shows something else")


if __name__ == "__main__":
    run(Path(sys.argv[1]))
