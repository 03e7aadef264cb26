"""msProbe's own dumps of `programs`, and its commands, many in one process: it begins slowly."""

from __future__ import annotations

import json
import os
import subprocess

from tools import msprobe


class MsProbe:
    """The real package; what it writes of its own goes into a folder."""

    def __init__(self, python, folder):
        self.python, self.folder = python, folder
        self._runs = 0

    def run(self, jobs):
        """Run jobs of `real.py`; return the logs, and fail if one failed."""
        self._runs += 1
        path = self.folder / f"jobs{self._runs}-{os.getpid()}.json"
        logs = [path.with_name(f"{path.stem}.{number}.log") for number in range(len(jobs))]
        written = [job | {"log": str(log)} for job, log in zip(jobs, logs, strict=True)]
        path.write_text(json.dumps(written))
        done = subprocess.run(
            [str(self.python), "-m", "tests.interop.real", str(path)],
            cwd=msprobe.ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        ended = json.loads(path.with_suffix(".ended").read_text())
        texts = [log.read_text(errors="replace") for log in logs]
        failed = [
            (job, text[-3000:]) for job, code, text in zip(jobs, ended, texts, strict=True) if code
        ]
        assert not failed
        return texts


def _config(level, task="statistics", **section):
    of_task = {"scope": [], "list": [], "data_mode": ["all"], **section}
    return {
        "task": task,
        "rank": [],
        "step": [],
        "level": level,
        "risk_level": "ALL",
        task: of_task,
    }


DUMPS = {
    "L0": ("net", _config("L0", summary_mode="statistics")),
    "L1": ("net", _config("L1", summary_mode="statistics")),
    "mix": ("net", _config("mix", summary_mode="statistics")),
    "md5": ("net", _config("mix", summary_mode="md5")),
    "xor": ("net", _config("L0", summary_mode="xor")),
    "tensor": ("net", _config("L0", "tensor")),
    "shared": ("shared", _config("L0", summary_mode="statistics")),
    "inplace": ("inplace", _config("L0", summary_mode="statistics")),
    "debug": ("save", _config("debug", summary_mode="statistics")),
}
"""Name of a dump: the program of `programs`, and msProbe's configuration."""
