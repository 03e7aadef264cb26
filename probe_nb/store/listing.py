"""What is known of the tensors of one run, in the order in which they came, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from probe_nb.store.kept import Kept

LISTED: Final = 10_000
"""So many tensors that are not kept, and so many that are in files, are known without reading."""


class Listing:
    """Tensors that were to be kept: the newest in memory, older ones in the files they are in."""

    def __init__(self, known: Iterable[Kept] = ()) -> None:
        """Begin with these."""
        # what is read is asked for without a lock, so both are there in one place
        self._known: tuple[Path | None, list[Kept]] = (None, list(known))
        self._files: deque[tuple[Path, list[Kept]]] = deque()
        self._filed = 0
        self._missed = 0

    def everything(self, read: Callable[[Path], list[Kept]]) -> list[Kept]:
        """Return all; `read` gives what files hold, up to one of them."""
        last, known = self._known
        return [*([] if last is None else read(last)), *known]

    def __bool__(self) -> bool:
        """Tell whether there is any."""
        last, known = self._known
        return last is not None or bool(known)

    def add(self, kept: Kept) -> None:
        """Take in one more."""
        self._known[1].append(kept)

    def miss(self) -> None:
        """Count a tensor that is not kept; of many the oldest are not listed any more."""
        self._missed += 1
        if self._missed > 2 * LISTED:
            missed = [each for each in self._known[1] if each.data is None]
            self._drop(missed[:-LISTED], self._known[0])
            self._missed = LISTED

    def file(self, path: Path, kept: list[Kept]) -> None:
        """Take note that a file lists these; of many the oldest are read when somebody asks."""
        self._files.append((path, kept))
        self._filed += len(kept)
        if self._filed > 2 * LISTED:
            old, last = [], path
            while self._filed > LISTED:
                last, kept = self._files.popleft()
                self._filed -= len(kept)
                old += kept
            self._drop(old, last)
            self._missed = sum(each.data is None for each in self._known[1])

    def _drop(self, these: list[Kept], last: Path | None) -> None:
        old = set(these)
        self._known = last, [each for each in self._known[1] if each not in old]
