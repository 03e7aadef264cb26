"""The files of one step: `step{N}/rank{R}`, or `step{N}/proc{pid}` where there is no rank."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

from probe_nb.debugger.config import Settings
from probe_nb.dump import writer
from probe_nb.dump.folders import folder_of
from probe_nb.errors import ConfigError, notify
from probe_nb.run import Run

_NO_RANK = -1
_LOST = "could not be written"


class Folder:
    """Writes what a step has left so far; what was written before is overwritten."""

    def __init__(self, settings: Settings, step: int, run: Run) -> None:
        """Write nothing yet."""
        self._settings = settings
        self._step = step
        self._run = run
        self._root = Path(settings.dump_path).expanduser().absolute()
        self._places: list[Path] = []
        self._written: tuple[Any, ...] = ()

    def make(self, rank: int | None) -> None:
        """Make the folder: one that cannot be made is told before anything is collected.

        In the middle of a training it is told as what cannot be written: that goes on.

        Raises:
            ConfigError: It cannot be made.
        """
        try:
            self._place(rank).mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:  # a name with a zero in it is no name
            if len(self._run):  # in the middle of a training
                return
            raise ConfigError(
                f"`dump_path` is `{self._settings.dump_path}`, in which no folder can be made: "
                f"{error}"
            ) from None

    def _place(self, rank: int | None) -> Path:
        place = self._root / folder_of(self._step, _number(rank))
        if place not in self._places:
            self._places.append(place)
        return place

    def write(self, rank: int | None) -> None:
        """Write the files; what keeps them from it is told, and nobody's training ends for it."""
        try:
            self._write(self._place(rank))
        except Exception as error:
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        """Warn of the first step whose files are missing; the notices of the run list all."""
        notices = self._run.info.notices
        told = any(_LOST in each for each in notices)
        text = f"the files of step {self._step} {_LOST}: {error!r}"
        notices += [text] if text not in notices else []
        if not told:
            notify(
                f"probe_nb: {text}. The run in memory is whole: `debugger.run`, whose "
                "`info.notices` list every such step."
            )

    def _write(self, place: Path) -> None:
        run = self._run
        state = (place, len(run), len(run.value_table), len(run.call_table))
        if state == self._written:  # by `stop`, and nothing came since
            return
        for earlier in self._places:
            if earlier != place and earlier.is_dir():
                _moved(earlier, place)
        place.mkdir(parents=True, exist_ok=True)
        settings = self._settings
        how = writer.wanted(
            run,
            task=settings.task,
            extra_info=settings.extra_info,
            files=settings.keeps_tensors,
        )
        writer.write_into(run, place, how, step=self._step, rank=_number(run.info.rank))
        self._written = state


def _number(rank: int | None) -> int:
    return _NO_RANK if rank is None else rank


def _moved(earlier: Path, place: Path) -> None:
    """Move what was written before the rank was known."""
    for path in [each for each in earlier.rglob("*") if each.is_file()]:
        target = place / path.relative_to(earlier)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
    with contextlib.suppress(OSError):
        shutil.rmtree(earlier)
