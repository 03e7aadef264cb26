"""When an optimizer steps: torch's process-wide hook, so that no optimizer carries ours."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Final

import torch
from torch.amp import GradScaler

from probe_nb.errors import ConfigError, notify
from probe_nb.observe.compiled import beside
from probe_nb.observe.regions import local

_WRAPPERS: Final = 16
"""Wrappers around an optimizer that are looked through; one may hold itself."""
_FRAMES: Final = 16
"""Frames between our hook and the `GradScaler` that steps the optimizer, and some more."""


def as_optimizers(value: Any) -> tuple[torch.optim.Optimizer, ...]:
    """Return the torch optimizers behind what was passed as `optimizer=`.

    Wrappers that keep theirs as `.optimizer` (accelerate, Megatron) are looked through.

    Raises:
        ConfigError: Something is neither an optimizer nor a wrapper of one.
    """
    if value is None:
        return ()
    given = value if isinstance(value, (list, tuple)) else (value,)
    found = []
    for each in given:
        inner = each
        for _ in range(_WRAPPERS):
            if isinstance(inner, torch.optim.Optimizer):
                break
            inner = getattr(inner, "optimizer", inner)
        if not isinstance(inner, torch.optim.Optimizer):
            raise ConfigError(
                f"`optimizer` must be a `torch.optim.Optimizer` or several, got "
                f"{type(each).__name__}."
            )
        found.append(inner)
    return tuple(found)


def as_scaler(value: Any) -> ScalerWatch | None:
    """Watch what was passed as `scaler=`; one that is switched off does nothing, so None.

    Raises:
        ConfigError: The object is not a gradient scaler.
    """
    if value is None:
        return None
    watch = ScalerWatch(value)
    return watch if value.is_enabled() else None


def scaler_around() -> bool:
    """Tell whether a `GradScaler` runs the optimizer's step that a hook of ours was called in."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame is None:
            return False
        if frame.f_code.co_name == "step" and isinstance(local(frame, "self"), GradScaler):
            return True
        frame = frame.f_back
    return False


class OptimizerHook:
    """Calls `stepped` after the optimizer that ends a step has stepped.

    With named optimizers that is the last named one; without, any that holds a watched parameter.
    """

    def __init__(
        self,
        named: Sequence[torch.optim.Optimizer],
        is_watched: Callable[[torch.optim.Optimizer], bool],
        stepped: Callable[[torch.optim.Optimizer], None],
    ) -> None:
        """Hold what decides whether a step has ended, and no optimizer alive."""
        self._last = weakref.ref(named[-1]) if named else None
        self._is_watched = is_watched
        self._stepped = stepped

    @beside
    def after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Run as torch's process-wide hook after any optimizer's step."""
        try:
            last = self._last
            if self._is_watched(optimizer) if last is None else last() is optimizer:
                self._stepped(optimizer)
        except Exception as error:  # a fault of ours is never the user's
            notify(f"probe_nb could not tell whether a step ended: {error!r}")


class ScalerWatch:
    """Tells whether a `GradScaler` was updated since it was last asked.

    `update()` has no hook. It replaces the table of per-optimizer states, and that can be seen
    from outside without patching anything.
    """

    def __init__(self, scaler: Any) -> None:
        """Remember the scaler's present state.

        Raises:
            ConfigError: The object is not a gradient scaler.
        """
        if not hasattr(scaler, "is_enabled") or not hasattr(scaler, "update"):
            raise ConfigError(
                f"`scaler` must be a `torch.amp.GradScaler`, got {type(scaler).__name__}."
            )
        self._scaler = scaler
        self._states = getattr(scaler, "_per_optimizer_states", None)

    def updated(self) -> bool:
        """Tell whether `update()` ran since the last call."""
        states = getattr(self._scaler, "_per_optimizer_states", None)
        changed, self._states = states is not self._states, states
        return changed

    def knows(self, optimizer: torch.optim.Optimizer) -> bool:
        """Tell whether an optimizer steps through the scaler, so that an update has to come.

        Else it is stepped directly, and no update is to be waited for: without `scaler.step` or
        `scaler.unscale_` torch refuses one.
        """
        return id(optimizer) in (getattr(self._scaler, "_per_optimizer_states", None) or ())

    def stepped(self, optimizer: torch.optim.Optimizer) -> bool:
        """Tell whether the scaler was asked to step an optimizer since it was last updated.

        The table is the one before the update, until `updated` is asked.
        """
        state = (self._states or {}).get(id(optimizer), {})
        return getattr(state.get("stage"), "name", "") == "STEPPED"

    def scale(self) -> torch.Tensor | None:
        """Return the present loss scale, on its device; None while the scaler is unused."""
        scale = self._scaler._scale
        return scale if isinstance(scale, torch.Tensor) else None
