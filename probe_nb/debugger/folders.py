"""The files of one step: `step{N}/rank{R}`, or `step{N}/proc{pid}` where there is no rank."""

from __future__ import annotations

import shutil
from pathlib import Path

from probe_nb.debugger.config import Settings
from probe_nb.dump import writer
from probe_nb.run import Run

_NO_RANK = -1


class Folder:
    """Writes what a step has left so far; what was written before is overwritten."""

    def __init__(self, settings: Settings, step: int, run: Run) -> None:
        """Write nothing yet."""
        self._settings = settings
        self._step = step
        self._run = run
        self._root = Path(settings.dump_path).expanduser().absolute()
        self._place: Path | None = None

    def write(self, rank: int | None) -> None:
        """Write the files."""
        number = _NO_RANK if rank is None else rank
        place = self._root / writer.folder_of(self._step, number)
        if self._place not in (None, place):
            self._moved(place)
        place.mkdir(parents=True, exist_ok=True)
        self._place = place
        how = writer.wanted(
            self._run,
            task=self._settings.task,
            extra_info=self._settings.extra_info,
            files=self._settings.keeps_tensors,
        )
        recorded = _NO_RANK if self._run.info.rank is None else self._run.info.rank
        self._run.flush()
        writer.write_into(self._run, place, how, step=self._step, rank=recorded)

    def _moved(self, place: Path) -> None:
        """Move what was written before the rank was known."""
        if self._place is not None and self._place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
            self._place.rename(place)
