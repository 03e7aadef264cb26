"""The life of one `PrecisionDebugger`: its steps, its settings, what is asked of it in between."""

from __future__ import annotations

import operator
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from torch import distributed, nn

from probe_nb.debugger.collecting import Collection, Registered, Tokens, empty_run
from probe_nb.debugger.config import Settings
from probe_nb.errors import ConfigError, notify
from probe_nb.observe.select import as_models

_NEEDS_MODEL: Final = ("L0", "mix")


class Life:
    """What the methods of a debugger do."""

    def __init__(self, reads: Callable[[], Settings], path: object) -> None:
        """Take the settings that `reads` reads; `path` is their file, where there is one."""
        self._reads, self._path = reads, path
        self.settings = reads()
        self._signature = _signature(path)
        self.run = empty_run(self.settings)
        self._first_step, self._steps, self._collected = 0, 0, 0
        self._rank_id: int | None = None
        self._models: dict[str, weakref.ref[nn.Module]] = {}
        self._collection: Collection | None = None
        self._registered: list[Registered] = []
        self._alone: tuple[weakref.ref[nn.Module], str] | None = None
        for each in self.settings.notices:
            notify(f"probe_nb: {each}")

    @property
    def number(self) -> int:
        """The number of the step that is, or will be, collected."""
        return self._first_step + self._steps

    def is_outdated(self) -> bool:
        """Tell whether the file is another one now, and not one that may change while it runs."""
        return self.settings.dump_enable is None and _signature(self._path) != self._signature

    def count_from(self, step: int) -> None:
        """Give the step after this the number `step`."""
        self._first_step, self._steps = step, 0

    # -- start, stop, step ----------------------------------------------------------------------

    def start(self, model: Any, token_range: Any, rank_id: Any) -> None:
        """Collect from here on."""
        self._read_again()
        if not self.settings.is_enabled:
            self._pause()
            return
        tokens = _tokens(token_range)
        self._take_rank(rank_id)
        self._take_model(model, tokens)
        if self.settings.level != "debug" and self._is_wanted():
            collection = self._collecting()
            collection.resume(tokens, self._registered)
            if self._alone is not None and (module := self._alone[0]()) is not None:
                collection.only(module, self._alone[1])

    def stop(self) -> None:
        """Collect no more calls."""
        self._pause()
        self._read_again()

    def _pause(self) -> None:
        if self._collection is not None and self._collection.settings.level != "debug":
            self._collection.pause()

    def step(self) -> None:
        """End the step."""
        self.close()
        self._steps += 1
        self._read_again()

    def close(self) -> None:
        """Give back what is there of this step, and write its files."""
        collection, self._collection = self._collection, None
        if collection is not None:
            collection.end()
            self._collected += 1
            self.run.info.steps = self._collected

    # -- what is collected ----------------------------------------------------------------------

    def _take_rank(self, rank_id: Any) -> None:
        if rank_id is not None and (type(rank_id) is not int or rank_id < 0):
            raise ConfigError(f"`rank_id` is {rank_id!r}; give a whole number from 0 on.")
        self._rank_id = self._rank_id if rank_id is None else rank_id

    def rank(self) -> int | None:
        """Return the number of this process among those that train together."""
        if self._rank_id is None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank())
        return self._rank_id

    def _take_model(self, model: Any, tokens: Tokens) -> None:
        models = self._alive() if model is None else as_models(model, {})
        if not models and (self.settings.level in _NEEDS_MODEL or tokens is not None):
            why = "`token_range`" if tokens is not None else f"The level {self.settings.level}"
            raise ConfigError(f"{why} needs a model: `start(model)`.")
        self._models = {name: weakref.ref(each) for name, each in models.items()}
        now = self._collection
        if now is not None and now.settings.level in _NEEDS_MODEL and not now.is_of(models):
            self.say(
                "`start` was given another model in the middle of a step, of which nothing is "
                "collected before the next. Give it a list of both when the step begins."
            )

    def _alive(self) -> dict[str, nn.Module]:
        return {name: each for name, ref in self._models.items() if (each := ref()) is not None}

    def _is_wanted(self) -> bool:
        settings, rank = self.settings, self.rank()
        if settings.ranks is not None and rank is None:
            self.say(
                "`rank` in config.json chooses ranks, and this process has none: nothing is "
                "collected. Leave `rank` empty, or give `start(rank_id=...)`."
            )
            return False
        return settings.wants(self.number) and (rank is None or settings.wants_rank(rank))

    def _collecting(self) -> Collection:
        found = self._collection
        if found is None or not found.is_of_this_process:
            found = Collection(self.settings, self._alive(), self.number, self.run, self.rank)
            self._collection = found
        return found

    def save(self, variable: Any, name: Any, backward: Any) -> None:
        """Collect a value."""
        if self.settings.level != "debug":
            self.say(
                f"`save` collects at the level debug alone, and this is {self.settings.level}: "
                "nothing is saved. `probe.save(value, name)` saves at any level."
            )
        elif self.settings.is_enabled and self._is_wanted():
            collection = self._collecting()
            collection.resume(None, [])
            collection.save(variable, name, backward=bool(backward))

    # -- functions of the user's, one module alone ------------------------------------------------

    def register(self, owner: Any, name: str, prefix: str) -> None:
        """Collect a function of the user's, in this step and the next ones."""
        self._registered.append((owner, name, prefix))
        if self._collection is not None:
            self._collection.register(owner, name, prefix)

    def restore(self, owner: Any, name: str) -> None:
        """Collect it no more."""
        self._registered = [each for each in self._registered if each[:2] != (owner, name)]
        if self._collection is not None:
            self._collection.restore(owner, name)

    def only(self, module: nn.Module, name: str) -> None:
        """Collect one module alone."""
        self._alone = weakref.ref(module), name
        if self._collection is not None:
            self._collection.only(module, name)

    def only_no_more(self) -> None:
        """Collect everything again."""
        self._alone = None
        if self._collection is not None:
            self._collection.silence_no_more()

    # -- the file, again --------------------------------------------------------------------------

    def _read_again(self) -> None:
        """Take in a config.json that was changed, where it says that it may: by `dump_enable`.

        It is switched on and off at once; the rest counts from the next step on.
        """
        now = _signature(self._path)
        if self.settings.dump_enable is None or now in (None, self._signature):
            return
        before, self._signature = self.settings, now
        try:
            read = self._reads()
        except ConfigError as error:
            self.say(
                f"config.json was changed, and nothing is collected until it is right: {error}"
            )
            read = before.switched(on=False)
        self.settings = (
            read if read.dump_enable is not None else read.switched(on=before.is_enabled)
        )
        if not self.settings.is_enabled:
            self._pause()

    def say(self, text: str) -> None:
        """Say something once."""
        if text not in self.run.info.notices:
            self.run.info.notices.append(text)
            notify(f"probe_nb: {text}")


def _tokens(value: Any) -> Tokens:
    """Return `[first, last]` as two numbers.

    Raises:
        ConfigError: It is something else.
    """
    if value is None:
        return None
    try:
        first, last = (operator.index(each) for each in value)
    except (TypeError, ValueError):
        first, last = -1, -1
    if not 0 <= first <= last:
        raise ConfigError(f"`token_range` is {value!r}; give the first and the last, as `[1, 3]`.")
    return first, last


def _signature(path: object) -> tuple[int, int] | None:
    """Return what changes when a file does; None where there is none."""
    try:
        found = Path(path).expanduser().stat() if isinstance(path, (str, os.PathLike)) else None
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size)
