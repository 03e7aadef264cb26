"""Run the code blocks of a Markdown page in order, in one fresh IPython shell: `run_page.py PAGE`.

`python` and `ipython` blocks are cells. `pycon` blocks are doctests, whose output is compared.
Other blocks are not run. The first block that fails ends it, with its line in the page.

Without a page it serves: each line of the input is JSON, `[page, folder]`, and is answered with
the exit status. Each page runs in a process of its own, forked from one that has imported what
takes longest to import; what it prints is in the file `printed` of the folder.
"""

from __future__ import annotations

import atexit
import contextlib
import doctest
import importlib
import json
import os
import re
import signal
import sys
import traceback
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


HEAVY = ("torch", "pandas", "pyarrow.parquet", "matplotlib.pyplot", "IPython.display", "ipywidgets")
SECONDS = 240
"""What one page may take."""


def serve() -> None:
    """Run the pages that are asked for, one after the other."""
    for each in HEAVY:
        importlib.import_module(each)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        page, folder = json.loads(line)
        child = os.fork()
        if child == 0:
            _alone(Path(page), Path(folder))
        _, status = os.waitpid(child, 0)
        answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
        answers.flush()


def _alone(page: Path, folder: Path) -> None:
    """Run a page in this process, and end the process as Python ends one."""
    signal.alarm(SECONDS)
    os.chdir(folder)
    printed = os.open("printed", os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(printed, stream)
    code = 1
    try:
        run(page)
        code = 0
    except SystemExit as end:
        sys.stderr.write(f"{end}\n")
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    if sys.argv[1:]:
        run(Path(sys.argv[1]))
    else:
        serve()
