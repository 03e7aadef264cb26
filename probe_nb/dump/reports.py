"""What was skipped and why, and how far the reading is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

LISTED: Final = 20
"""So many are written out; of more the number is given."""

_LONG: Final = 2**26
"""Bytes from which on there is something to wait for."""

Report = Callable[[str], None]
Progress = Callable[[int], object]


class Reports:
    """Takes what there is to say about one folder, and says it in bounded space."""

    def __init__(self, notices: list[str]) -> None:
        """Write into `notices`."""
        self._notices = notices
        self.count = 0

    def __call__(self, text: str) -> None:
        """Take one."""
        self.count += 1
        if self.count <= LISTED:
            self._notices.append(text)

    def end(self) -> None:
        """Say how many more there were."""
        if self.count > LISTED:
            self._notices.append(f"… and {self.count - LISTED:,} more that were skipped")


@contextlib.contextmanager
def bar(total: int) -> Iterator[Progress]:
    """Show how many of so many bytes were read, where that takes a while."""
    if total < _LONG:
        yield lambda _: None
        return
    from tqdm.auto import tqdm

    with tqdm(total=total, unit="B", unit_scale=True, desc="Reading", leave=False) as shown:
        yield shown.update
