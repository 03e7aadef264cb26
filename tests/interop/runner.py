"""Runs scripts, each in a folder and a forked child of its own; what they import comes first, once.

`python -m tests.interop.runner MODULE JOBS`: the jobs are a JSON list of `[script, folder]`. What
a script prints goes into the file `printed` of its folder.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import sys
import traceback
from pathlib import Path

import torch


def run(script, folder):
    """Run a script in a child, to its end and past it; return how it ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        os.chdir(folder)
        with Path("printed").open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            try:
                sys.path.insert(0, folder)
                path = str(Path(folder) / script)
                source = Path(path).read_text(encoding="utf-8")
                exec(compile(source, path, "exec"), {"__name__": "__main__", "__file__": path})
                code = 0
            except BaseException:
                traceback.print_exc()
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    torch.set_num_threads(1)
    importlib.import_module(sys.argv[1])
    ended = [run(*job) for job in json.loads(sys.argv[2])]
    sys.exit(max(ended))
