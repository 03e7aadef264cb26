"""Every error and warning of probe_nb.

ProbeError
├── ConfigError(ValueError)          an option has a value that makes no sense
├── SelectionError(ValueError)       a pattern or a name matches nothing
├── ModelError(TypeError)            what was to be watched is not a module
├── SessionStateError(RuntimeError)  asked for something a closed or missing session cannot do
├── RunFormatError(ValueError)       a file is not a run, is damaged, or is of a newer version
├── DeviceError(RuntimeError)        a device that was asked for is not there
├── NonFiniteError(FloatingPointError)  a watch was asked to stop at the first NaN or Inf
└── TorchError(ImportError)          torch is there and cannot be imported, or is not there

ProbeWarning(UserWarning)            something of ours went wrong or was restarted; training goes on
"""

from __future__ import annotations

import contextlib
import difflib
import sys
import traceback
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import TracebackType

    from probe_nb.analysis.origins import Origin
    from probe_nb.run import Run

FAULT: Final = "probe_nb could not record"
"""So what is said of an error of our own begins, in a warning and in the notices of the run."""


class ProbeError(Exception):
    """Root of every error that probe_nb raises on purpose."""

    def _render_traceback_(self) -> list[str]:
        """Have IPython leave out our frames but the last: what is wrong is in a line of the user's.

        IPython calls it when it shows the error, says how many frames it has left out, and shows
        them all after `%xmode Verbose`. The error and its traceback stay as they are.
        """
        shell = sys.modules["IPython"].get_ipython()
        if shell is None:
            return traceback.format_exception(self)
        _hide(self.__traceback__, hidden=shell.InteractiveTB.mode != "Verbose")
        shown = shell.InteractiveTB.structured_traceback(type(self), self, self.__traceback__)
        return list(shown)


class ConfigError(ProbeError, ValueError):
    """An option was given a value that makes no sense."""


class SelectionError(ProbeError, ValueError):
    """A pattern, module or statistic name matches nothing."""


class ModelError(ProbeError, TypeError):
    """The object to watch is not a `torch.nn.Module`."""


class SessionStateError(ProbeError, RuntimeError):
    """A session was asked for something that its state does not allow."""


class RunFormatError(ProbeError, ValueError):
    """A file is not a saved run, is damaged, or was written by a newer version."""


class DeviceError(ProbeError, RuntimeError):
    """A device that was asked for is unknown, or is not there."""


class NonFiniteError(ProbeError, FloatingPointError):
    """A watch that was opened with `stop_on="nonfinite"` came upon the birth of a NaN or Inf.

    Attributes:
        origin: Where it was born, as `run.first_nonfinite()` says it.
        run: The run up to there. Its watch is closed.

    Both are None where another thread has made the error anew out of its text, as
    `nn.DataParallel` does, and no `with probe.watch(...)` block was there to put them back.

    >>> import torch, probe_nb as probe
    >>> model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Softmax(-1))
    >>> try:
    ...     with probe.watch(model, stop_on="nonfinite") as run:
    ...         _ = model(torch.tensor([float("nan")]))
    ... except probe.NonFiniteError as error:
    ...     print(error.origin.phase, error.run is run)
    input True
    """

    def __init__(self, message: str, origin: Origin | None = None, run: Run | None = None) -> None:
        """Carry what was found."""
        super().__init__(message)
        self.origin = origin
        self.run = run


class TorchError(ProbeError, ImportError):
    """Something was asked for that needs torch, and torch cannot be imported."""


class ProbeWarning(UserWarning):
    """A fault inside probe_nb, or a session that was restarted; the model is unaffected."""


def _hide(trace: TracebackType | None, *, hidden: bool) -> None:
    """Tell IPython whether to leave out our frames in which an error was raised."""
    frames = [frame for frame, _ in traceback.walk_tb(trace)]
    while frames and frames[-1].f_globals.get("__name__", "").startswith("probe_nb"):
        frames.pop().f_locals["__tracebackhide__"] = hidden


def notify(message: str) -> None:
    """Warn the user once, at the line of theirs that led here.

    A user who turns warnings into errors gets no error from it: the fault is not theirs.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("probe_nb"):
        frame, level = frame.f_back, level + 1
    with contextlib.suppress(ProbeWarning):
        warnings.warn(message, ProbeWarning, stacklevel=level)


def closest(name: str, known: Iterable[str], n: int = 3) -> str:
    """Return the words of an error message that name the nearest known names.

    >>> closest("encdoer", ["encoder", "decoder"])
    ' The closest are `encoder`, `decoder`.'
    """
    near = difflib.get_close_matches(name, list(known), n=n, cutoff=0.5)
    if not near:
        return ""
    names = ", ".join(f"`{each or '(root)'}`" for each in near)
    return f" The closest {'is' if len(near) == 1 else 'are'} {names}."
