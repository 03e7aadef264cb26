"""One step between its first `start` and `step()`: a session that pauses and goes on.

A session for each step, and not one for all: after `step()` nothing of ours is on torch, calls are
counted from 0 again, and what the script did in between, a new model among it, is seen. All of
them write into one run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from torch import nn

from probe_nb import about, config
from probe_nb.config import WatchConfig
from probe_nb.debugger import folders
from probe_nb.debugger.config import Settings
from probe_nb.dump.roots import tell_of_single
from probe_nb.keep import Keep
from probe_nb.observe.select import name_inside
from probe_nb.recording import Range
from probe_nb.run import Run
from probe_nb.session import Session
from probe_nb.store.calls import Calls
from probe_nb.store.columns import Columns
from probe_nb.store.values import Values

_LEVELS: Final = {"L0": "module", "L1": "api", "mix": "mix", "debug": "debug"}
_OF_FUNCTIONS: Final = ("L1", "mix")
_CHECKSUMS: Final = {"statistics": None, "md5": "crc32", "xor": "xor"}

_ROWS: Final = 50_000
"""Calls, or values, of earlier steps that stay in memory; the records have a budget of theirs."""

Tokens = tuple[int, int] | None
Registered = tuple[Any, str, str]


def options(
    settings: Settings, step: int = 0, tokens: Tokens = None, *, inside: bool = False
) -> WatchConfig:
    """Return the options of a session that does what the settings ask for.

    `inside` says that a model is inside of DDP, and so has a name.
    """
    places = settings.level != "debug"  # there msProbe reads past them
    cuts = [each for each in settings.slices if each.get("begin") or "end" in each]
    return config.checked(
        level=_LEVELS[settings.level],
        apis=_apis(settings),
        roles=settings.roles if places else None,
        first_step=step,
        token_range=tokens,
        scope=settings.scope or None if places else None,
        names=settings.names or None if places else None,
        slices=None if settings.task == "structure" else cuts or None,
        stacks=settings.extra_info,
        structure=settings.task == "structure",
        values=settings.task != "structure" and places,
        checksum=None if settings.task == "structure" else _CHECKSUMS[settings.summary_mode],
        keep=_keep(settings, inside=inside),
    )


def _apis(settings: Settings) -> list[str] | None:
    if settings.level not in _OF_FUNCTIONS:
        return None
    chosen = settings.names or settings.scope  # then msProbe leaves out no function by its risk
    risk = "all" if chosen else settings.risk_level.lower()
    return [risk, *(f"{space}.*" for space in settings.custom_op_namespaces)]


def _keep(settings: Settings, *, inside: bool) -> Keep | None:
    """Return what is kept whole, and written as it comes: a script that is killed loses little."""
    if not settings.keeps_tensors or settings.task == "structure":
        return None
    no_root = settings.level in ("L0", "mix") and not inside  # what is passed to `start`
    return Keep(
        ["*", "!(root)"] if no_root else "*",
        names=settings.tensor_list or None,
        roles=[*settings.roles, "value"],
        folder=settings.dump_path,
        files="pt",
    )


def empty_run(settings: Settings) -> Run:
    """Return the run that all steps of a debugger are written into."""
    asked = options(settings)
    info = about.begin({}, 0, asked)
    info.notices += settings.notices
    if settings.steps and settings.dump_enable is None:  # else the file may ask for others yet
        info.config["steps"] = settings.steps
    return Run(info, Columns(budget=asked.memory, notices=info.notices))


def _make_room(run: Run) -> None:
    """Let go of what earlier steps called and were given, if it is much: the folders have it."""
    if len(run.call_table) > _ROWS:
        run.call_table = Calls(notices=run.info.notices)
    if len(run.value_table) > _ROWS:
        run.value_table = Values(notices=run.info.notices)


class Collection:
    """What is collected of one step."""

    def __init__(
        self,
        settings: Settings,
        models: Mapping[str, nn.Module],
        number: int,
        run: Run,
        rank: Callable[[], int | None],
    ) -> None:
        """Be ready; nothing is seen before `resume`. `rank` is asked when files are written.

        Raises:
            ConfigError: The folder cannot be made.
        """
        self.settings = settings
        self._models = dict(models)
        self._ids = {name: id(each) for name, each in models.items()}
        self._number = number
        self._run = run
        self._rank = rank
        self._folder = folders.Folder(settings, number, run)
        self._folder.make(rank())
        self._pid = os.getpid()
        self._session: Session | None = None
        self._alone: Range | None = None

    @property
    def is_of_this_process(self) -> bool:
        """Tell whether this process began it, and was not forked off since."""
        return self._pid == os.getpid()

    def is_of(self, models: Mapping[str, nn.Module]) -> bool:
        """Tell whether it is of these models."""
        return self._ids == {name: id(each) for name, each in models.items()}

    # -- lifetime ---------------------------------------------------------------------------

    def resume(self, tokens: Tokens, registered: Sequence[Registered]) -> None:
        """Collect from here on."""
        if (session := self._recording) is not None:
            session.resume(tokens)
        else:
            self._open(tokens, registered)

    def _open(self, tokens: Tokens, registered: Sequence[Registered]) -> None:
        self._run.info.rank = self._rank()
        _make_room(self._run)
        inside = any(name_inside(model) for model in self._models.values())
        asked = options(self.settings, self._number, tokens, inside=inside)
        session = Session(self._models, asked, None, None, into=self._run)
        session.open()
        session.count_by_hand()
        self._models, self._session = {}, session
        for each in registered:
            self.register(*each)

    @property
    def _recording(self) -> Session | None:
        """The open session; another watch on the same modules may have ended it."""
        is_open = self._run.is_open and self.is_of_this_process
        return self._session if is_open else None

    def pause(self) -> None:
        """Collect no more calls, and write what there is; gradients still come until `end`."""
        if (session := self._recording) is not None:
            session.pause()
        self._write()

    def end(self) -> None:
        """Give everything back, and write what there is."""
        self.silence_no_more()
        session, self._session = self._session, None
        if session is not None:
            session.close("finished")
        self._write()
        tell_of_single(self._run.columns, self._run.info)

    def _write(self) -> None:
        if self.is_of_this_process:
            self._folder.write(self._rank())

    # -- what is asked in between -----------------------------------------------------------------

    def register(self, owner: Any, name: str, prefix: str) -> None:
        """Record a function of the user's, where functions are recorded."""
        session = self._recording
        if session is not None and self.settings.level in _OF_FUNCTIONS:
            session.register_custom_api(owner, name, prefix)

    def restore(self, owner: Any, name: str) -> None:
        """Record it no more."""
        session = self._recording
        if session is not None and self.settings.level in _OF_FUNCTIONS:
            session.restore_custom_api(owner, name)

    def only(self, module: nn.Module, name: str) -> None:
        """Record one module alone."""
        self.silence_no_more()
        if (session := self._recording) is not None:
            self._alone = session.only(module, name)

    def silence_no_more(self) -> None:
        """Record everything again."""
        alone, self._alone = self._alone, None
        if alone is not None:
            alone.close()

    def save(self, value: Any, name: str, *, backward: bool) -> None:
        """Record a value."""
        if (session := self._recording) is not None:
            session.save(value, name, backward=backward)
