"""Rows that a run should have and has not, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from probe_nb.grammar import spelled

if TYPE_CHECKING:
    from probe_nb.store.blocks import Block, Part


class Refused:
    """Rows that were not taken in, one after the other, since a file could not be written."""

    def __init__(self, notices: list[str], budget: int, error: Exception) -> None:
        """Count nothing yet."""
        self._notices = notices
        self._place: int | None = None
        self._why = f"memory={spelled(budget)} is full and no file can be written ({error})"
        self._rows = 0
        self._steps: tuple[int, int] | None = None
        self._bytes = 0

    def add(self, block: Block) -> None:
        """Count the rows of a block as missing."""
        step = block.columns["step"]
        low, high = self._steps or (int(step[0]), int(step[0]))
        self._steps = min(low, int(step.min())), max(high, int(step.max()))
        self._rows += len(step)
        self._bytes += block.bytes
        if self._place is None:
            self._place = len(self._notices)
            self._notices.append(self.text)
        self._notices[self._place] = self.text

    def worth_a_try(self, enough: int) -> bool:
        """Tell, once for so many bytes of refused rows, to try again: each try takes time."""
        tried = self._bytes >= enough
        if tried:
            self._bytes = 0
        return tried

    @property
    def text(self) -> str:
        """What is missing, and why."""
        return f"{_counted(self._rows, *(self._steps or (-1, -1)))} are missing: {self._why}."


def gone(parts: Sequence[Part]) -> str:
    """Say what is missing now that these files are not there any more."""
    rows = sum(part.end - part.first for part in parts)
    low, high = min(part.steps[0] for part in parts), max(part.steps[1] for part in parts)
    return (
        f"{_counted(rows, low, high)} are gone: somebody removed `{parts[0].path}`. Some systems "
        "clean up temporary folders; `run.save(path)` keeps a run, and `TMPDIR` says where its "
        "files are while it is recorded."
    )


def _counted(rows: int, low: int, high: int) -> str:
    steps = f"step {low}" if low == high else f"steps {low} to {high}"
    return f"{rows:,} records of {steps}"
