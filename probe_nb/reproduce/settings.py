"""What `seed_all` sets besides seeds: each setting is read, changed, and put back."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from probe_nb.reproduce.standing import FIXED, NO_DROPOUT

_DETERMINISTIC: Final = (True, False)
"""Deterministic algorithms, and an error where there is none; `(…, True)` only warns."""


@dataclass
class Change:
    """One setting that was changed."""

    read: Callable[[], Any]
    write: Callable[[Any], None]
    wanted: Any
    before: Any = field(init=False, default=None)
    is_open: bool = field(init=False, default=False)

    def make(self) -> None:
        """Set what is wanted."""
        self.before = self.read()
        self.is_open = True
        self.write(self.wanted)

    def undo(self) -> None:
        """Put back what was there; what somebody else has set meanwhile is theirs."""
        if self.is_open:
            self.is_open = False
            if self.read() == self.wanted:
                self.write(self.before)


def changes(seed: int, *, mode: bool, rm_dropout: bool, is_enhanced: bool) -> list[Change]:
    """Return the settings that these arguments of `seed_all` ask for."""
    from torch.backends import cudnn

    from probe_nb.devices import generators

    environment = {"PYTHONHASHSEED": str(seed), **generators.environment()}
    switches = {"enabled": False, "benchmark": False, "deterministic": True}
    return [
        *(_variable(name, value) for name, value in environment.items()),
        *(_switch(cudnn, name, value) for name, value in switches.items()),
        Change(ALGORITHMS.is_on, ALGORITHMS.turn, mode),
        Change(NO_DROPOUT.read, NO_DROPOUT.write, rm_dropout or None),
        Change(FIXED.read, FIXED.write, seed if is_enhanced else None),
    ]


def _variable(name: str, value: str) -> Change:
    def write(value: str | None) -> None:
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

    return Change(lambda: os.environ.get(name), write, value)


def _switch(cudnn: Any, name: str, value: bool) -> Change:  # noqa: FBT001 - a switch is a bool
    # setting the attribute is refused once torch.backends.disable_global_flags() was called
    return Change(
        lambda: getattr(cudnn, name),
        lambda value: cudnn.set_flags(**{f"_{name}": value}),
        value,
    )


class Algorithms:
    """Whether it is us who turned deterministic algorithms on, and what was there before."""

    def __init__(self) -> None:
        self._before: tuple[tuple[bool, bool], Any] | None = None

    def is_on(self) -> bool:
        """Tell whether what we turned on is on."""
        return self._before is not None and _algorithms() == _DETERMINISTIC

    def turn(self, on: bool) -> None:  # noqa: FBT001 - a switch is a bool
        """Turn them on, or put back what was there before we did; what is the user's stays."""
        import torch

        if on:
            if self._before is None or not self.is_on():
                self._before = (_algorithms(), _compilers().deterministic)
            torch.use_deterministic_algorithms(True)
        elif self._before is not None:
            ((mode, warn_only), compiler), is_ours = self._before, self.is_on()
            self._before = None
            if is_ours:
                torch.use_deterministic_algorithms(mode, warn_only=warn_only)
                _compilers().deterministic = compiler


ALGORITHMS: Final = Algorithms()


def _algorithms() -> tuple[bool, bool]:
    import torch

    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


class _Nothing:
    deterministic = False


def _compilers() -> Any:
    """Return the compiler's own options, which torch sets along where they have this one."""
    from torch._inductor import config

    return config if hasattr(config, "deterministic") else _Nothing()
