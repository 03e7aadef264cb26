"""`PrecisionDebugger` as msProbe's scripts call it.

Its methods are called on the class as well as on an instance, in any file of a script: they act on
the debugger that was made last. That one is held here.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Hashable
from typing import Any, Final

from torch import nn

from probe_nb.debugger import config
from probe_nb.debugger.config import Settings
from probe_nb.debugger.life import Life
from probe_nb.errors import ConfigError, SessionStateError
from probe_nb.run import Run

_held: Final[list[tuple[tuple[Hashable, ...], Life]]] = []
"""What the debugger was made with, and its life; empty, or one."""


_ONE: Final = (
    "there is one PrecisionDebugger at a time: the one with the files in `{before}` is closed, and "
    "calls of its methods reach the new one. `close()` it first, or use `probe.watch` twice."
)


class PrecisionDebugger:
    """Collects what msProbe's debugger of this name collects, and writes the same folders.

    Args:
        config_path: A config.json of msProbe's; docs/from-msprobe.md lists its keys.
        task: `"statistics"`, `"tensor"` or `"structure"`; counts for more than the file, like all
            that follow.
        dump_path: The folder that the files go to; `./dump_path` if nobody says it.
        level: `"L0"` modules, `"L1"` functions of torch, `"mix"` both, `"debug"` what `save` is
            given.
        step: A list of the steps to collect, such as `[0, "4-6"]`. Empty: all.

    Made again with the same arguments, it goes on with what is there. In a later cell of a
    notebook, with other arguments or a file that was changed since, it begins anew, and what was
    there before is closed.

    Attributes:
        run: What was collected, as `probe.watch` gives it; all steps, live. Of whole tensors it
            knows those of the last step: `probe.read_dump` finds the earlier ones in the folders.
        settings: The configuration as it was understood.

    Raises:
        ConfigError: Something in the file or the arguments makes no sense here; the message says
            what, why, and what would do.

    >>> import tempfile, torch
    >>> from probe_nb.debugger import PrecisionDebugger
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> debugger = PrecisionDebugger(dump_path=tempfile.mkdtemp(), level="L0")
    >>> for _ in range(2):
    ...     debugger.start(model)
    ...     model(torch.ones(1, 2)).sum().backward()
    ...     debugger.stop()
    ...     debugger.step()
    >>> debugger.run.df["step"].unique().tolist()
    [0, 1]
    >>> debugger.close()
    """

    def __init__(
        self,
        config_path: str | None = None,
        task: str | None = None,
        dump_path: str | None = None,
        level: str | None = None,
        step: list[int | str] | None = None,
    ) -> None:
        """Read the configuration; nothing is attached before `start`."""
        given = {"task": task, "dump_path": dump_path, "level": level, "step": step}
        made_with = (config_path, repr(given), _cell())
        if not _held or _held[0][0] != made_with or _held[0][1].is_outdated():
            made = Life(lambda: config.read(config_path, **given), config_path)
            if _held and _held[0][0] != made_with and _held[0][0][-1] == made_with[-1]:
                made.say(_ONE.format(before=_held[0][1].settings.dump_path))
            self.close()
            _held[:] = [(made_with, made)]
            atexit.unregister(PrecisionDebugger.close)
            atexit.register(PrecisionDebugger.close)
        self._life = _held[0][1]

    # -- msProbe's names ------------------------------------------------------------------------

    @classmethod
    def start(
        cls,
        model: Any = None,
        token_range: Any = None,
        rank_id: int | None = None,
        scheduled_tokens: Any = None,  # noqa: ARG003 - msProbe's, which without `request_id` reads past it too
    ) -> None:
        """Collect from here on; in a step that is stopped, go on with it.

        Args:
            model: A `torch.nn.Module`, or a list or tuple of them. Needed at the levels L0 and mix
                and with `token_range`; one that was given once need not be given again. It is
                itself left out of the files; its inside is in them.
            token_range: `[first, last]`: the forwards of the model to collect, both included,
                counted from 0 since this call.
            rank_id: The number in the folder's name `rank{number}`, where torch.distributed does
                not know the right one.
            scheduled_tokens: Changes nothing, as in msProbe without `request_id`.

        Raises:
            ConfigError: An argument makes no sense.
            ModelError: `model` is no module.
            SessionStateError: There is no debugger.
        """
        _life().start(model, token_range, rank_id)

    @classmethod
    def stop(cls) -> None:
        """Collect no more, and write the files of the step so far.

        Gradients of what was collected still come, until `step()`.
        """
        _life().stop()

    @classmethod
    def step(cls) -> None:
        """End the step: write its files, and give everything back."""
        _life().step()

    @classmethod
    def save(cls, variable: Any, name: str, save_backward: bool = True) -> None:  # noqa: FBT001, FBT002 - msProbe's arguments, also by position
        """Collect a value, and the gradient of each tensor in it; at the level debug alone.

        Args:
            variable: A tensor, number or text, or dicts, lists and tuples of them.
            name: The name in the files; the nth of this name in a step is `{name}.{n}`.
            save_backward: Collect gradients too.
        """
        _life().save(variable, name, save_backward)

    @classmethod
    def set_init_step(cls, step: int) -> None:
        """Count steps from this number on.

        Raises:
            ConfigError: It is no whole number from 0 on.
        """
        if type(step) is not int or step < 0:
            raise ConfigError(f"`step` is {step!r}; give a whole number from 0 on.")
        _life().count_from(step)

    @classmethod
    def register_custom_api(cls, module: Any, api_name: Any, api_prefix: Any = None) -> None:
        """Collect calls of a function of yours, `module.api_name`, at the levels L1 and mix.

        Args:
            module: The package, module or class that has the function.
            api_name: Its name there.
            api_prefix: What its name in the files begins with; the name of `module`, if not given.

        Raises:
            ConfigError: There is no such function.
        """
        if not isinstance(api_name, str) or not hasattr(module, api_name):
            raise ConfigError(f"{module!r} has no {api_name!r} that could be collected.")
        prefix = api_prefix or getattr(module, "__name__", "Custom")
        if not isinstance(prefix, str):
            raise ConfigError(f"`api_prefix` is {api_prefix!r}; give a text.")
        _life().register(module, api_name, prefix)

    @classmethod
    def restore_custom_api(cls, module: Any, api_name: str) -> None:
        """Collect it no more."""
        _life().restore(module, api_name)

    # -- beyond msProbe -------------------------------------------------------------------------

    @classmethod
    def close(cls) -> None:
        """Be done: end the step and let go of everything. The end of a script does it too."""
        while _held:
            _held[0][1].close()
            del _held[0]

    @property
    def run(self) -> Run:
        """What was collected."""
        return self._life.run

    @property
    def settings(self) -> Settings:
        """The configuration as it was understood."""
        return self._life.settings

    def __repr__(self) -> str:
        """Say what is collected, and where the files are."""
        asked = self.settings
        return (
            f"PrecisionDebugger: task {asked.task}, level {asked.level}, at step "
            f"{self._life.number}, files in {asked.dump_path}; `.run` is what was collected"
        )


def module_dump(module: Any, module_name: Any) -> None:
    """Collect one module as a black box, under a name, until `module_dump_end`.

    Its inside and everything else are silent meanwhile.

    Raises:
        ConfigError: It is no module, or the name is no text.
        SessionStateError: There is no debugger.
    """
    if not isinstance(module, nn.Module):
        raise ConfigError(f"`module` is a {type(module).__name__}; give a `torch.nn.Module`.")
    if not isinstance(module_name, str) or not module_name.strip():
        raise ConfigError(f"`module_name` is {module_name!r}; give a text.")
    _life().only(module, module_name)


def module_dump_end() -> None:
    """Collect everything again."""
    _life().only_no_more()


def _life() -> Life:
    if not _held:
        raise SessionStateError("There is no PrecisionDebugger; make one first.")
    return _held[0][1]


def _cell() -> int | None:
    """Return the number of the cell that runs, None outside of a notebook."""
    room: Any = sys.modules.get("IPython.core.interactiveshell")
    if room is None or not room.InteractiveShell.initialized():
        return None
    return int(room.InteractiveShell.instance().execution_count)
