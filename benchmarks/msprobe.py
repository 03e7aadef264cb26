"""The other end of `msprobe_step`: a process that measures one round of msProbe when asked."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from typing import IO

from tools import msprobe
from tools.msprobe import MissingError


class MsProbe:
    """msProbe at one level on one model; it waits, idle, between rounds."""

    def __init__(self, size_name: str, level: str, *, cpu: bool) -> None:
        """Start the process for `size_name` of `models.SIZES` and wait until it is warm.

        Args:
            size_name: Which model.
            level: L0, L1 or mix.
            cpu: Which clock it measures with, see `timing.Stopwatch`.

        Raises:
            MissingError: msProbe cannot be installed or does not run.
        """
        self._level = level
        python = msprobe.python()
        self._folder = tempfile.TemporaryDirectory(prefix="msprobe_", ignore_cleanup_errors=True)
        options = [size_name, level, self._folder.name, "cpu" if cpu else "wall"]
        self._process = subprocess.Popen(
            [str(python), "-m", "benchmarks.msprobe_step", *options],
            cwd=msprobe.ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            self._answer()
        except MissingError:
            self.close()
            raise

    def round(self) -> float:
        """Measure one round: msProbe's step against the bare step of its process.

        Raises:
            MissingError: The process has ended.
        """
        try:
            print("round", file=_open(self._process.stdin), flush=True)
        except OSError as error:
            raise MissingError(f"msProbe {self._level} ended early") from error
        return float(json.loads(self._answer()))

    def _answer(self) -> str:
        line = _open(self._process.stdout).readline()
        if not line:
            raise MissingError(f"msProbe {self._level} ended early")
        return line

    def close(self) -> None:
        """End the process and drop its files."""
        self._process.terminate()
        self._process.communicate()
        self._folder.cleanup()


def _open(pipe: IO[str] | None) -> IO[str]:
    if pipe is None:
        raise MissingError("msProbe's process has no pipe")
    return pipe
