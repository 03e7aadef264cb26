"""One module alone: a range in which nothing else is recorded.

What is recorded is decided where a call begins. So a gradient that arrives after the range belongs
to it if its call was made inside, and the other way round. A parameter is used by several calls:
its gradient is theirs who used it in that forward of the model; if there were calls inside and
outside of a range, it stays under the module's own path.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from typing import Final

from torch import Tensor, nn

from probe_nb.errors import SessionStateError
from probe_nb.observe.calls import Call, Clock
from probe_nb.observe.chosen import Chosen
from probe_nb.observe.select import Watched, unwrapped
from probe_nb.observe.sink import Facts, Sink, Where
from probe_nb.observe.tasks import When
from probe_nb.terms import Status

_FORWARDS: Final = 16
"""Forwards of the model whose gradients may still be on their way."""


class Only:
    """Knows which calls are recorded, and under which name."""

    def __init__(
        self, by_id: dict[int, Watched], clock: Clock, chosen: Chosen | None = None
    ) -> None:
        """Record everything; a module that is not in `by_id` is put there while it is alone.

        `chosen` says what of each call is recorded, where not all is.
        """
        self.now: Watched | None = None
        self.reads: Callable[[Watched], None] = lambda _: None
        self._by_id = by_id
        self._clock = clock
        self._named: dict[tuple[int, str], Watched] = {}
        self._heard: dict[tuple[int, int], dict[Watched, Watched | None]] = {}
        self._read: set[Watched] = set()
        self._reading = False
        self._chosen = chosen

    @property
    def places(self) -> bool:
        """Tell whether only some places are recorded, to which nothing else belongs."""
        return self.now is not None or (self._chosen is not None and self._chosen.places)

    @property
    def named(self) -> Collection[Watched]:
        """Everything that was recorded alone, under the names it was given."""
        return self._named.values()

    # -- the range ----------------------------------------------------------------------------

    def open(self, module: nn.Module, name: str) -> Range:
        """Record nothing but this module, as `name`, until the range is closed."""
        if self.now is not None:
            raise SessionStateError(
                f"`run.only` records `{self.now.path}` alone already. Close that range first: "
                "what is inside of it is silent."
            )
        inner, compiled = unwrapped(module)
        home = self._by_id.get(id(inner))
        if home is not None and home.module() is not inner:
            home = None
        alone = self._named.get((id(inner), name))
        if alone is None or alone.module() is not inner:
            model, is_root = ("", False) if home is None else (home.model, home.is_root)
            alone = Watched(weakref.ref(inner), model, name, type(inner), is_root, selected=True)
            alone.compiled = compiled or (home is not None and home.compiled)
            self._named[id(inner), name] = alone
        alone.home = home or alone
        if not self._heard:
            self._note_earlier()
        if home is None:
            self._by_id[id(inner)] = alone
        opened = Range(self, alone)
        self.now = alone  # last: an interrupt before it leaves everything recorded
        return opened

    def close(self, alone: Watched | None = None) -> None:
        """End the open range, or this one if it is open; may be repeated."""
        now = self.now
        if now is None or alone not in (None, now):
            return
        if now.home is now:
            for key in [key for key, each in list(self._by_id.items()) if each is now]:
                self._by_id.pop(key, None)
        self.now = None

    def begin_step(self) -> None:
        """Count calls from 0 again."""
        self._read.clear()
        if self._chosen is not None:
            self._chosen.begin_step()
        for alone in self._named.values():
            alone.begin_step()

    # -- calls --------------------------------------------------------------------------------

    def hears(self, watched: Watched, silent: str = "") -> Watched | None:
        """Return as what a call that begins now is recorded; None if it is not.

        `silent` says what of it is left out, as `Choice` does.
        """
        if not self._heard and self._chosen is None:  # there was no range yet
            return watched
        now = self.now
        heard: Watched | None = watched
        if now is not None and watched is not now:
            watched.silenced = True
            heard = now if now.home is watched else None
        if silent == "all":
            heard = None
        self._note(watched, None if silent == "backward" else heard)
        late = heard is now or self._chosen is not None
        if heard is not None and late and silent != "forward" and self._clock.recording:
            self._read_parameters(heard)
        return heard

    def _read_parameters(self, watched: Watched) -> None:
        """Read them before their first use in a step."""
        if watched in self._read:
            return
        self._read.add(watched)
        self._reading = True
        try:
            self.reads(watched)
        finally:
            self._reading = False

    def _note(self, watched: Watched, heard: Watched | None) -> None:
        """Take note of who used the parameters in this forward of the model."""
        users = self._users()
        users[watched] = heard if users.get(watched, heard) is heard else watched

    def _users(self) -> dict[Watched, Watched | None]:
        when = (self._clock.step, self._clock.micro_step)
        users = self._heard.setdefault(when, {})
        while len(self._heard) > _FORWARDS:
            self._heard.pop(next(iter(self._heard)), None)
        return users

    def _note_earlier(self) -> None:
        """Take note of the calls of this step that were made before the first range."""
        self._users().update((w, w) for w in self._by_id.values() if w.calls)

    def _owner(self, watched: Watched, step: int, micro_step: int) -> Watched | None:
        """Return as what the parameters of a module are recorded that a forward used."""
        home = watched.home or watched
        users = self._heard.get((step, micro_step), {})
        if home in users or home.home is home:
            return users.get(home)
        return home if self._around(home, users) else None

    def _around(self, home: Watched, users: dict[Watched, Watched | None]) -> bool:
        """Tell whether a module of which only the weights were used was used by what is heard.

        It is taken for a part of the innermost module around it that was called.
        """
        around = [
            each
            for each in users
            if each.model == home.model
            and (not each.path or f"{home.path}.".startswith(f"{each.path}."))
        ]
        user = max(around, key=lambda each: len(each.path), default=None)
        return self._chosen is None if user is None else users[user] is user

    def of_parameter(self, call: Call, where: Where) -> Call | None:
        """Return the call that a row of a parameter is written under; None if it is not."""
        if not self._heard and self._chosen is None:
            return call
        if where[0] in ("param", "buffer") and len(where) == 2:  # noqa: PLR2004 - in the forward
            mine = self._reading if self._chosen is not None else self.now is None
            owner = call.watched if mine or self.now is call.watched else None
        else:
            owner = self._owner(call.watched, call.step, call.micro_step)
        if owner is None or owner is call.watched:
            return None if owner is None else call
        return owner.parameters_call(When(call.step, call.micro_step, recorded=True))


class Range:
    """A range that `Only.open` has opened: close it, or use it as a context manager."""

    def __init__(self, only: Only, alone: Watched) -> None:
        """Be open."""
        self._only = only
        self._alone: Watched | None = alone
        self._entered = False

    def close(self) -> None:
        """Record everything again; closing twice is harmless."""
        try:
            self._close()
        except BaseException:  # Ctrl-C, of all moments, now
            self._close()
            raise

    def _close(self) -> None:
        if self._alone is not None:
            self._only.close(self._alone)
            self._alone = None

    def __enter__(self) -> Range:  # noqa: PYI034 - `Self` came with Python 3.11
        """Be open for a block."""
        if self._entered or self._alone is None:
            raise SessionStateError("This range was used already; make another with `run.only`.")
        self._entered = True
        return self

    def __exit__(self, *_: object) -> None:
        """Record everything again; the user's exception goes on untouched."""
        self.close()


class ParameterSink:
    """Writes the rows of parameters under the name that is theirs."""

    def __init__(self, sink: Sink, only: Only) -> None:
        """Stand between the parameters and the sink."""
        self._sink = sink
        self._only = only

    def tensor(
        self,
        call: Call,
        where: Where,
        t: Tensor,
        backward: int = -1,
        scale: Tensor | None = None,
    ) -> None:
        """Take a tensor; it is only valid during this call."""
        owner = self._only.of_parameter(call, where)
        if owner is not None:
            self._sink.tensor(owner, where, t, backward, scale)

    def absent(
        self, call: Call, where: Where, facts: Facts, status: Status, backward: int = -1
    ) -> None:
        """Take note of a tensor whose numbers cannot be had, with the reason."""
        owner = self._only.of_parameter(call, where)
        if owner is not None:
            self._sink.absent(owner, where, facts, status, backward)

    def fault(self, watched: Watched | None, where: str, error: Exception) -> None:
        """Take note of an error of our own."""
        self._sink.fault(watched, where, error)
