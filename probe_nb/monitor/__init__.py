"""msProbe's training monitors over a session: `TrainerMon` and `TrainerMonitorV2`.

From `from msprobe.pytorch import TrainerMon` to this is one line:

>>> from probe_nb.monitor import TrainerMon

docs/training-monitor.md has the keys of the configuration and what is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["TrainerMon", "TrainerMonitorV2"]

if TYPE_CHECKING:
    from probe_nb.monitor.second import TrainerMonitorV2
    from probe_nb.monitor.trainer import TrainerMon

_ROOMS = {"TrainerMon": "trainer", "TrainerMonitorV2": "second"}


def __getattr__(name: str) -> Any:
    """Load a monitor when it is first used."""
    if name not in _ROOMS:
        raise AttributeError(f"module `probe_nb.monitor` has no attribute `{name}`")
    from importlib import import_module

    return getattr(import_module(f"probe_nb.monitor.{_ROOMS[name]}"), name)
