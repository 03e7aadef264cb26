"""The tensors that one run keeps: held within a budget, or on their way to a folder."""

from __future__ import annotations

import itertools
import os
import secrets
import threading
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from probe_nb.errors import RunFormatError
from probe_nb.progress import progress
from probe_nb.store import tensors
from probe_nb.store.kept import Kept, find
from probe_nb.store.listing import Listing
from probe_nb.store.stream import Stream, files_in, load
from probe_nb.terms import RunInfo

_SUFFIX: Final = ".safetensors"


class Place(Protocol):
    """Where the tensors of a run are that does not hold them."""

    @property
    def path(self) -> Path:
        """The file or folder."""

    @property
    def mark(self) -> str:
        """The mark that they must bear."""

    @property
    def folder(self) -> bool:
        """They stay where they are when the run is saved."""

    def read(self) -> list[Kept]:
        """Return what is known of them."""


class Source(NamedTuple):
    """Where the tensors of a run that was loaded are, and the mark that they must bear."""

    path: Path
    mark: str
    folder: bool
    """It is a folder into which they were streamed; they stay there when the run is saved."""

    @classmethod
    def of(cls, records: Path, about: Any) -> Source | None:
        """Return where the tensors are that belong to saved records, None if there are none.

        Raises:
            RunFormatError: What the records say of them makes no sense.
        """
        if about is None:
            return None
        try:
            mark, folder = str(about["id"]), about["folder"]
            path = _beside(records) if folder is None else Path(folder)
            return cls(path, mark, folder is not None)
        except (LookupError, TypeError) as error:
            raise RunFormatError(
                f"Cannot read the run `{records}`: it is damaged ({error})."
            ) from error

    def read(self) -> list[Kept]:
        """Return what is known of them.

        Raises:
            FileNotFoundError: They are gone.
            RunFormatError: They are damaged, or those of another run.
        """
        if self.folder:
            return files_in(self.path, self.mark)
        mark, found = tensors.read(self.path)
        if mark != self.mark:
            raise RunFormatError(
                f"`{self.path}` holds other tensors than belong to the records beside it: one of "
                "both was replaced."
            )
        return found


class Saving(NamedTuple):
    """Tensors that are to be saved beside records: what these say of them, and how."""

    about: dict[str, str | None]
    write: Callable[[], object]


def _beside(records: Path) -> Path:
    """Return the file of the tensors that belong to saved records."""
    name = records.name.removesuffix(".parquet")
    return records.with_name(name + _SUFFIX)


class Tensors:
    """Tensors that are kept, and why others are not.

    Those that are not in a file take at most `budget` bytes. What does not fit is not kept, unless
    it `makes_room`: then tensors of older steps go, oldest first, and none where that is not
    enough. What is read is asked for without a lock: a forked child, or a signal handler, may ask.
    """

    def __init__(
        self,
        budget: int | None = None,
        *,
        makes_room: bool = False,
        stream: Stream | None = None,
        source: Place | None = None,
    ) -> None:
        """Start empty, or with what `source` has, which is read when somebody asks."""
        self._stream = stream
        self._budget = budget
        self._makes_room = makes_room
        self._source = source
        self._stays: Place | None = source if source is not None and source.folder else None
        self._known = Listing()
        self._held: dict[int, deque[Kept]] = {}
        self._sizes: Counter[int] = Counter()
        self._bytes = 0
        self._coming: deque[Kept] = deque()
        self._lost: list[str] = []
        self._told: set[str] = set()
        self._lock = threading.RLock()
        self._owner = os.getpid()
        if stream is not None:
            stream.written = self._written

    def open(self) -> None:
        """Have the folder for what comes, where there is to be one.

        Raises:
            ConfigError: It cannot be made.
        """
        if self._stream is not None:
            self._stream.open()
            if self._stream.lists:
                self._stays = Source(self._stream.folder, self._stream.mark, folder=True)

    def withdraw(self) -> None:
        """Claim no folder for a watch that was not opened after all."""
        if self._stream is not None and not self._known:
            self._stream.withdraw()

    def __reduce__(self) -> tuple[Any, ...]:
        """Be copied and pickled as what is there: bytes that are in files stay there."""
        for each in (known := self.known()):
            if not hasattr(each.data, "path"):
                each.data = tensors.bytes_of(each)
        return type(self), (), {"_known": Listing(known), "_stays": self._stays}

    @property
    def place(self) -> Place | None:
        """Where they stay when the run is saved, None if they would be saved with it."""
        return self._stays

    @property
    def any(self) -> bool:
        """Tell whether any tensor was to be kept, without reading files."""
        return self._source is not None or bool(self._known)

    def known(self) -> list[Kept]:
        """Return every tensor that was to be kept, in the order in which they came."""
        if self._source is not None:
            self._known, self._source = Listing(self._source.read()), None
        return self._known.everything(self._older)

    def _older(self, last: Path) -> list[Kept]:
        """Return what the files of the stream hold, up to one of them."""
        return [] if self._stays is None else files_in(self._stays.path, self._stays.mark, last)

    def saving(self, records: Path) -> Saving | None:
        """Return how to save them with the records of the run, None if there are none.

        Those in a folder stay there: the records say where.

        Raises:
            FileExistsError: Somebody else's file is in the place.
        """
        if self._stays is not None:
            return Saving({"id": self._stays.mark, "folder": str(self._stays.path)}, lambda: None)
        known = self.known()
        if not known:
            return None
        target, mark = _beside(records), secrets.token_hex(8)
        if target.exists() and not tensors.is_ours(target):
            raise FileExistsError(
                f"The kept tensors belong into `{target}`, where another file is. Save the run "
                "under another name."
            )

        def write() -> None:
            size = sum(each.bytes for each in known if each.data is not None)
            with progress("Saving tensors", size, "B") as told:
                tensors.write(target, known, mark, lasting=True, told=told)

        return Saving({"id": mark, "folder": None}, write)

    def tensor(self, module: str | None, role: str, **where: Any) -> Any:
        """Return a tensor, as `Run.tensor` says."""
        kept = find(self.known(), module, role, **where)
        data = tensors.bytes_of(kept)
        if data is None:  # it made room meanwhile
            return self.tensor(module, role, **where)
        return tensors.as_tensor(kept, data)

    # -- taking in ------------------------------------------------------------------------------

    def take(self, kept: Kept, copy: Callable[[], Any]) -> None:
        """Keep a tensor if there is room: `copy` gives its bytes, or what will have them."""
        with self._lock:
            if not self._fits(kept):
                self._refuse(kept, "budget")
                return
            kept.data = copy()
            self._known.add(kept)
            self._held.setdefault(kept.step, deque()).append(kept)
            self._sizes[kept.step] += kept.bytes
            self._bytes += kept.bytes
            if self._stream is not None:
                self._stream.put(kept)
            elif not isinstance(kept.data, np.ndarray):
                self._coming.append(kept)

    def refuse(self, kept: Kept, why: str) -> None:
        """Take note of a tensor that cannot be kept."""
        with self._lock:
            self._refuse(kept, why)

    def _refuse(self, kept: Kept, why: str) -> None:
        kept.drop(why)
        self._known.add(kept)
        self._known.miss()
        if self._stream is not None:
            self._stream.put(kept)

    def _fits(self, kept: Kept) -> bool:
        if self._budget is None:
            return True
        over = self._bytes + kept.bytes - self._budget
        if over > 0 and self._makes_room:
            steps = reversed(self._sizes)
            newer = itertools.takewhile(lambda step: step >= kept.step, steps)
            if self._bytes - sum(self._sizes[step] for step in newer) >= over:
                self._make_room(over, kept.step)
        return self._bytes + kept.bytes <= self._budget

    def _make_room(self, over: int, step: int) -> None:
        """Drop tensors of older steps, those first that came first."""
        while over > 0 and (oldest := next(iter(self._held), step)) < step:
            each = self._held[oldest][0]
            each.drop("made room")
            self._let_go(each)
            self._known.miss()
            over -= each.bytes

    def _let_go(self, kept: Kept) -> None:
        """Hold a tensor no more."""
        held = self._held[kept.step]
        held.remove(kept)  # the first of them, most often
        self._sizes[kept.step] -= kept.bytes
        self._bytes -= kept.bytes
        if not held:
            del self._held[kept.step]
            self._sizes.pop(kept.step, None)  # an interrupt may have come between both

    # -- what comes of them ---------------------------------------------------------------------

    def settle(self) -> list[str]:
        """Take in copies that have come; return, in words, what was lost since."""
        with self._lock:
            while self._coming and self._landed(self._coming[0], wait=False):
                self._coming.popleft()
            lost, self._lost = self._lost, []
        return lost

    def finish(self) -> list[str]:
        """Wait until every copy has come, and every tensor is written; may be repeated."""
        if os.getpid() != self._owner:  # forked off: who held the lock is not there to open it
            return []
        if self._stream is not None:
            self._stream.finish()
            self._tell_of_unwritten()
        with self._lock:
            while self._coming and self._landed(self._coming[0], wait=True):
                self._coming.popleft()
        return self.settle()

    def _tell_of_unwritten(self) -> None:
        """Say that tensors are in memory alone, where the thread that writes came to grief."""
        left = sum(map(len, self._held.values()))
        if left:
            self._tell("unwritten", f"{left} tensors were not written, and are in memory alone")

    def _landed(self, kept: Kept, *, wait: bool) -> bool:
        copy = kept.data
        if copy is None or isinstance(copy, np.ndarray):
            return True
        try:
            if not (wait or copy.is_done()):
                return False
            kept.data = copy.result()
        except RuntimeError as error:
            self._fail(kept, "failed", f"a device lost tensors that were to be kept: {error}")
        return True

    def _fail(self, kept: Kept, why: str, told: str) -> None:
        kept.drop(why)
        self._let_go(kept)
        self._known.miss()
        self._tell(why, f"{told}. `run.kept()` lists which are missing.")

    def _tell(self, why: str, told: str) -> None:
        """Have the user told, of each kind of trouble once."""
        if why not in self._told:
            self._told.add(why)
            self._lost.append(told)

    def _written(
        self, path: Path, kept: list[Kept], stored: list[Any], error: Exception | None
    ) -> None:
        """Hear from the stream that tensors are in a file, or why they are not."""
        with self._lock:
            for each, place in zip(kept, stored, strict=True):
                if each.data is not None and error is None:
                    each.data = place
                    self._let_go(each)
                elif each.data is not None:
                    self._fail(
                        each, "disk", f"the folder of kept tensors cannot be written: {error}"
                    )
            if error is None and self._stream is not None and self._stream.lists:
                self._known.file(path, kept)


def streamed(folder: Path) -> tuple[RunInfo, None, Tensors]:
    """Return what a run that streamed its tensors into a folder is made of; it has no records.

    Raises:
        RunFormatError: No tensors were streamed into it, or what it says is damaged.
    """
    info, mark = load(folder)
    return info, None, Tensors(source=Source(folder, mark, folder=True))
