"""What was skipped and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

LISTED: Final = 20
"""So many are written out; of more the number is given."""

Report = Callable[[str], None]


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
