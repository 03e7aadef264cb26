"""What a run needs of the session that records it; free of torch."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol


class Range(Protocol):
    """An open range in which one module alone is recorded; usable as a context manager."""

    def close(self) -> None:
        """Record everything again; closing twice is harmless."""

    def __enter__(self) -> Range:  # noqa: PYI034 - `Self` came with Python 3.11
        """Be open for a block."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Record everything again."""


class Recording(Protocol):
    """An open session."""

    listeners: list[Callable[[], None]]

    def flush(self) -> None:
        """Take in what was seen so far."""

    def structure(self) -> None:
        """Write into the run what the models are made of."""

    def step(self) -> None:
        """End the current step."""

    def only(self, module: Any, name: str) -> Range:
        """Record one module alone."""

    def register_custom_api(self, module: Any, name: str, prefix: str | None) -> None:
        """Record a function of the user's."""

    def restore_custom_api(self, module: Any, name: str | None) -> int:
        """Record it no more."""
