"""Runs in msProbe's own interpreter: dumps programs, and runs commands of msProbe.

Reads jobs as JSON. msProbe is imported once, which takes seconds; each job is a forked child, since
msProbe undoes nothing.
"""

import contextlib
import json
import os
import sys
import traceback
from pathlib import Path

import torch


def dump(job):
    """Have msProbe dump a program: `{"program", "config", "folder"}`."""
    from msprobe.pytorch import PrecisionDebugger

    from tests.interop import programs

    folder = Path(job["folder"])
    folder.mkdir(parents=True)
    config = folder / "config.json"
    config.write_text(json.dumps(job["config"] | {"dump_path": str(folder / "dump")}))
    torch.manual_seed(0)
    debugger = PrecisionDebugger(config_path=str(config))
    if job["program"] == "save":
        debugger.start()
        programs.save(7, debugger.save)
        debugger.stop()
        debugger.step()
        return
    model, optimizer = programs.seeded(job["program"])
    programs.train(model, optimizer, debugger.step, debugger.start, debugger.stop)


def command(job):
    """Run one command of msProbe's: `{"argv", "log"}`."""
    from msprobe.msprobe import main

    sys.argv = ["msprobe", *job["argv"]]
    main()


def run(job):
    """Run a job in a child of its own; return how it ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        with Path(job["log"]).open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            try:
                (command if "argv" in job else dump)(job)
                code = 0
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else int(bool(error.code))
            except BaseException:
                traceback.print_exc()
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
    finally:
        os._exit(code or 0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    import msprobe.msprobe
    import msprobe.pytorch  # noqa: F401

    jobs = json.loads(Path(sys.argv[1]).read_text())
    ended = [run(job) for job in jobs]
    Path(sys.argv[1]).with_suffix(".ended").write_text(json.dumps(ended))
