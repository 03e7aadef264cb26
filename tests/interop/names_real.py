"""In msProbe's own interpreter: the names of an L1 dump of `functions.program`, in a file."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from msprobe.pytorch import PrecisionDebugger


def main(folder):
    config = {
        "task": "statistics",
        "dump_path": str(folder / "dump"),
        "level": "L1",
        "risk_level": "ALL",
    }
    config |= {
        "rank": [],
        "step": [],
        "statistics": {"scope": [], "list": [], "data_mode": ["all"]},
    }
    (folder / "config.json").write_text(json.dumps(config))
    debugger = PrecisionDebugger(config_path=str(folder / "config.json"))
    program = importlib.import_module(
        "tests.interop.functions"
    ).program  # what is imported sooner stays unseen
    debugger.start()
    program()
    debugger.stop()
    debugger.step()
    (dump,) = (folder / "dump" / "step0").glob("*/dump.json")
    data = json.loads(dump.read_text())["data"]
    (folder / "names.json").write_text(json.dumps(list(data)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
