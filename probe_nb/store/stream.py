"""Kept tensors written into a folder as they come, by a thread of its own.

A folder holds `run.json`, which says of which run it is, and numbered files of tensors. Each file
is there whole or not at all. A process that is killed loses what the thread had not written yet:
most often what came within the last tenth of a second.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import queue
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from probe_nb.errors import ConfigError, RunFormatError, notify
from probe_nb.store import tensors
from probe_nb.store.about_one import as_info
from probe_nb.store.blocks import whole
from probe_nb.store.kept import Kept
from probe_nb.store.newer import UnknownError, why
from probe_nb.terms import RunInfo

ABOUT: Final = "run.json"
ALONE: Final = (
    "a folder of kept tensors holds tensors alone: `run.kept()` lists them. The records of the run "
    "are where `run.save` has put them."
)
_CHUNK: Final = 2**26
"""Bytes that are enough for one file."""


class Stream:
    """Writes what is put into it; `written` hears what became of it.

    Attributes:
        mark: What tells the files of this run from those of others.
        folder: Where the files go.
        lists: Whether each file says what is in it, so that nobody else need remember it.
        pause: Seconds between two files: they would be many otherwise.
    """

    lists = True
    pause = 0.1

    def __init__(self, folder: str, info: RunInfo) -> None:
        """Know of the folder; nothing is made before `open`."""
        self.mark = secrets.token_hex(8)
        self._info = info
        self.folder = Path(folder).expanduser().absolute()
        self.written: Callable[[Path, list[Kept], list[Any], Exception | None], None]
        self._numbers = itertools.count()
        self._queue: queue.SimpleQueue[Kept | None] = queue.SimpleQueue()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._owner = os.getpid()

    def open(self) -> None:
        """Make the folder, or, where another run's tensors are in it, one beside it.

        Raises:
            ConfigError: It cannot be made.
        """
        asked = self.folder
        self.folder = _claimed(asked, self._about())
        if self.folder != asked:
            self._info.notices.append(
                f"`{asked}` holds the tensors of another run; those of this one are in "
                f"`{self.folder}`"
            )

    def withdraw(self) -> None:
        """Leave the folder to the next run: nothing was written into it."""
        with contextlib.suppress(RunFormatError, OSError):
            if load(self.folder)[1] == self.mark:
                (self.folder / ABOUT).unlink()

    def _about(self) -> str:
        about = {"format": tensors.FORMAT, "version": tensors.VERSION, "id": self.mark}
        return json.dumps(about | {"info": self._info.as_dict()})

    def put(self, kept: Kept) -> None:
        """Have a tensor written, or why it is not kept; waits for nothing."""
        self._queue.put(kept)
        if self._thread is None or not self._thread.is_alive():
            self._begin()

    def _begin(self) -> None:
        atexit.register(self.finish)
        self._ending.clear()
        self._thread = threading.Thread(target=self._run, name="probe_nb tensors", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until all is written; may be repeated."""
        thread = self._thread
        if thread is None or os.getpid() != self._owner:
            return
        self._ending.set()
        self._queue.put(None)
        if thread.ident is not None:  # else an interrupt came before it was started
            thread.join()
        self._thread = None
        self._ended()
        atexit.unregister(self.finish)

    def _ended(self) -> None:
        """Say in the folder how the run ended."""
        with contextlib.suppress(OSError), whole(self.folder / ABOUT) as file:
            file.write(self._about().encode())

    # -- in the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        with contextlib.suppress(Exception):  # what it leaves unwritten is told at the end
            while not self._ends():
                self._ending.wait(self.pause)

    def _ends(self) -> bool:
        """Write one file; tell whether it was the last."""
        batch, last = self._batch()
        if batch:
            self._write(batch)
        return last

    def _batch(self) -> tuple[list[Kept], bool]:
        """Wait for a tensor; return what is there by then, and whether that was all."""
        batch: list[Kept] = []
        size = 0
        try:
            while size < _CHUNK:
                kept = self._queue.get(block=not batch)
                if kept is None:
                    return batch, True
                batch.append(kept)
                size += kept.bytes
        except queue.Empty:
            pass
        return batch, False

    def _write(self, batch: list[Kept]) -> None:
        path = self.folder / f"{next(self._numbers):08d}.safetensors"
        try:
            stored, error = tensors.write(path, batch, self.mark, lasting=False), None
        except Exception as caught:
            stored, error = [None] * len(batch), caught
        self.written(path, batch, stored, error)


def _claimed(folder: Path, text: str) -> Path:
    """Return a folder that is this run's alone: this one, or one beside it."""
    others = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([folder], others) if _claims(each, text))


def _claims(folder: Path, text: str) -> bool:
    """Write the first file into a folder; tell whether it was the first.

    Raises:
        ConfigError: It cannot be written.
    """
    if (folder / ABOUT).exists():
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with whole(folder / ABOUT, lasting=False, first=True) as file:
            file.write(text.encode())
    except OSError as error:
        if isinstance(error, FileExistsError) and folder.is_dir():
            return False
        raise ConfigError(f"`folder` is `{folder}`, which cannot be made: {error}") from error
    return True


def load(folder: Path) -> tuple[RunInfo, str]:
    """Return what a folder says of its run, and the mark of its files.

    Raises:
        RunFormatError: No tensors were streamed into it, or what it says is damaged.
    """
    try:
        about = json.loads((folder / ABOUT).read_text("utf-8"))
        if about["format"] != tensors.FORMAT:
            raise ValueError("it is of another format")  # noqa: TRY301
        if about["version"] > tensors.VERSION:
            raise UnknownError(f"it is of format {about['version']}")  # noqa: TRY301
        info = as_info(about["info"])
        mark = str(about["id"])
    except UnknownError as error:
        raise RunFormatError(f"Cannot read `{folder}`: {why(error, about)}") from error
    except (OSError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise RunFormatError(
            f"`{folder}` is no folder into which a run streamed tensors ({error})."
        ) from error
    info.notices.append(ALONE)
    if info.ended == "open":
        info.ended = "unknown: it was killed, or is still open"
    return info, mark


def files_in(folder: Path, mark: str, last: Path | None = None) -> list[Kept]:
    """Return what the files of a run hold, in the order in which they were written.

    With `last` those up to that file.

    Raises:
        FileNotFoundError: The folder is gone.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder `{folder}`, in which kept tensors should be.")
    paths = sorted(folder.glob("*.safetensors"))
    found = (_in_file(path, mark) for path in paths if last is None or path <= last)
    return [kept for each in found for kept in each]


def _in_file(path: Path, mark: str) -> list[Kept]:
    """Return what a file holds; one that is damaged does not hide the others."""
    try:
        its, known = tensors.read(path)
    except RunFormatError as error:
        notify(f"probe_nb: {error} The other files of the folder are read.")
        return []
    return known if its == mark else []
