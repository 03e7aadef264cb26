"""Which calls are recorded, and which of their directions: `scope=`, `names=` and `when=`.

It is decided where a call begins, before anything of it is read. Gradients belong to their call:
a range of the backward is the range of the calls whose gradients they are, read the other way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from probe_nb.dump import keys
from probe_nb.errors import ConfigError, SelectionError, closest
from probe_nb.observe.calls import WHOLE, Call, Choice
from probe_nb.observe.functions_names import LISTED, PREFIXES, Names
from probe_nb.observe.select import Watched
from probe_nb.terms import shown

_NUMBERED: Final = re.compile(r"(.+?\..+?)(?:\.(\d+))?", re.DOTALL)
_WAYS: Final[tuple[keys.Way, keys.Way]] = ("forward", "backward")
_SILENT: Final = {
    (True, True): "",
    (True, False): "backward",
    (False, True): "forward",
    (False, False): "all",
}


@dataclass(frozen=True)
class End:
    """One end of a scope: a module or a function, all its calls in a step or one."""

    said: str
    name: str
    is_module: bool
    number: int | None = None
    way: str | None = None

    def is_of(self, watched: Watched, number: int) -> bool:
        """Tell whether a call of a module is meant."""
        if not self.is_module or self.number not in (None, number):
            return False
        return _is_at(self.name, watched)

    def is_function(self, name: str, number: int) -> bool:
        """Tell whether a call of a function is meant."""
        return not self.is_module and self.name == name and self.number in (None, number)


def _is_at(name: str, watched: Watched) -> bool:
    if name == shown("") and not watched.path:
        return True
    paths = (watched.path, watched.inside, *watched.aliases)
    return name in paths or any(f"{watched.model}.{path}" == name for path in paths if path)


def as_end(said: str, watched: Sequence[Watched], *, functions: bool) -> End:
    """Return what is meant by a name that a user gives: a path, a function, a name of msProbe's.

    Raises:
        SelectionError: No module and no function has this name.
    """
    key = keys.parse(said)
    if key is not None and key.kind in ("module", "api"):
        name = key.name if key.kind == "module" else f"{key.prefix}.{key.name}"
        end = End(said, name, key.kind == "module", key.call, key.direction)
    elif any(_is_at(said, each) for each in watched):
        return End(said, said, is_module=True)
    else:
        found = _NUMBERED.fullmatch(said)
        name, number = found.groups() if found is not None else (said, None)
        end = End(said, name, found is None, None if number is None else int(number))
    if end.is_module:
        known = any(_is_at(end.name, each) for each in watched)
    else:
        known = functions and is_function(end.name)
    if not known:
        raise SelectionError(_unknown(end, watched, functions=functions))
    if key is not None and key.kind == "module":
        _check_type(said, key, [each for each in watched if _is_at(end.name, each)])
    return end


def _check_type(said: str, key: keys.Key, there: Sequence[Watched]) -> None:
    """Refuse a class that no module of this name is of; a lazy one is of what it becomes."""
    classes = {cls.__name__ for each in there for cls in each.cls.__mro__}
    if key.type and key.type not in classes | {each.type for each in there}:
        raise SelectionError(
            f"`scope` has `{said}`, and the module there is no {key.type}: it is a {there[0].type}."
        )


def is_function(name: str) -> bool:
    """Tell whether a function may have a name; of those that a user registers nobody knows."""
    prefix = name.partition(".")[0]
    if prefix in LISTED:
        return name in Names().all()
    return prefix in PREFIXES or not closest(prefix, PREFIXES, n=1)


def _unknown(end: End, watched: Sequence[Watched], *, functions: bool) -> str:
    if functions and not end.is_module:
        near = closest(end.name, [*Names().all(), *(w.path for w in watched)])
        return f"`scope` has `{end.said}`, which is no module and no function of torch.{near}"
    near = closest(end.name, [w.path for w in watched])
    function = not functions and end.name.partition(".")[0] in PREFIXES
    hint = "" if not function else ' Functions are recorded at `level="api"` or `"mix"`.'
    return f"`scope` has `{end.said}`, which is no module.{near}{hint}"


def spelled(what: Watched | str, number: int, way: keys.Way) -> tuple[str, ...]:
    """Return the name of a call of a module, or of a function, as msProbe spells it.

    Of a module inside of DDP there is also the one that it has without that.
    """
    name = what if isinstance(what, str) else what.api
    if name or isinstance(what, str):
        prefix, _, rest = name.partition(".")
        return (keys.spell(keys.Key("api", rest, prefix, direction=way, call=number)),)
    model = int(what.model) if what.model.isdecimal() else None
    return tuple(
        keys.spell(keys.Key("module", path, keys.MODULE, what.type, way, call=number, model=model))
        for path in dict.fromkeys((what.inside, what.path))
    )


class Stretch:
    """What runs from one call on until another has ended; open ends are those of the step."""

    def __init__(self, first: End | None, last: End | None) -> None:
        """Be before it."""
        self._first, self._last = first, last
        self.open = False
        self._ended_before = self._ran_on = False
        self.missing = [end for end in (first, last) if end is not None]
        """Ends of which no call was seen."""

    def begin_step(self) -> None:
        """Be before it again."""
        self._ran_on = self.runs_on
        self.open = self._ended_before = False

    def close(self) -> None:
        """Be behind it."""
        self.open = False

    @property
    def runs_on(self) -> bool:
        """Whether its last call came before its first one, and so never ended it in some step."""
        return self._ran_on or (self.open and self._ended_before)

    @property
    def said(self) -> tuple[str, str] | None:
        """Its ends as they were given; None if one is open."""
        first, last = self._first, self._last
        return None if first is None or last is None else (first.said, last.said)

    def begins(self, is_it: Callable[[End], bool]) -> tuple[bool, bool]:
        """Tell whether a call that begins now belongs to it, and whether it ends with it."""
        if self._is(self._first, is_it):
            self.open = True
        ends = self._is(self._last, is_it)
        self._ended_before |= ends and not self.open
        return self.open, ends

    def _is(self, end: End | None, is_it: Callable[[End], bool]) -> bool:
        if end is None or not is_it(end):
            return False
        self.missing = [each for each in self.missing if each is not end]
        return True


def stretches(first: End, last: End) -> tuple[Stretch | None, Stretch | None]:
    """Return what is recorded of the forward, and the calls whose backward is.

    Raises:
        ConfigError: It begins in the backward and ends in the forward.
    """
    ways = first.way or last.way, last.way or first.way
    if ways == (None, None):
        both = Stretch(first, last)
        return both, both
    if ways == ("forward", "forward"):
        return Stretch(first, last), None
    if ways == ("backward", "backward"):
        return None, Stretch(last, first)
    if ways == ("forward", "backward"):
        return Stretch(first, None), Stretch(last, None)
    raise ConfigError(
        f"`scope` begins in the backward, at `{first.said}`, and ends in the forward, at "
        f"`{last.said}`, which comes before it in every step."
    )


class Chosen:
    """Says of each call that begins what of it is recorded."""

    def __init__(
        self,
        watched: list[Watched],
        *,
        scope: tuple[str, str] | None,
        names: Sequence[str],
        when: str | None,
        level: str,
    ) -> None:
        """Read what was asked for; `watched` may grow.

        Raises:
            SelectionError: The scope has a name that nothing has.
            ConfigError: The scope runs backwards, or there is no module whose mode could tell.
        """
        self._watched = watched
        self._names = names
        self._unmet = set(names)
        self._mixed, self._of_functions = level == "mix", level == "api"
        self._training = None if when is None else when == "train"
        if when is not None and not watched:
            raise ConfigError(f"`when` is {when!r}, and there is no module whose mode could tell.")
        self._scope: tuple[Stretch | None, Stretch | None] | None = None
        if scope is not None:
            functions = level in ("api", "mix")
            first, last = (as_end(said, watched, functions=functions) for said in scope)
            self._scope = stretches(first, last)
        self.places = scope is not None or bool(names)
        """It is places that are chosen, not modes of modules."""

    def begin_step(self) -> None:
        """Be before the scope again."""
        for each in self._scope or ():
            if each is not None:
                each.begin_step()

    def module(
        self, watched: Watched, number: int, around: Call | None, *, training: bool
    ) -> Choice:
        """Return what is recorded of a call of a module."""
        forward, backward, closes = self._in_scope(lambda end: end.is_of(watched, number))
        inside = (False, False)
        if self._names:
            inside = self._named(watched, number, around)
            forward, backward = forward and inside[0], backward and inside[1]
        if self._training not in (None, training):
            forward = backward = False
        silent = _SILENT[forward, backward]
        watched.left_out |= silent == "all"
        return Choice(silent, closes, inside if self._mixed else (False, False))

    def function(self, name: str, number: int, around: Call | None) -> Choice:
        """Return what is recorded of a call of a function; nothing of its inside is."""
        forward, backward, closes = self._in_scope(lambda end: end.is_function(name, number))
        if closes:
            self._close()
        if self._names:
            named = self._named(name, number, around)
            forward, backward = forward and named[0], backward and named[1]
        if self._training not in (None, self._mode(around)):
            forward = backward = False
        return Choice(_SILENT[forward, backward])

    def ended(self, call: Call) -> None:
        """Hear that a call of a module has ended."""
        if call.choice.closes:
            self._close()

    def unmet(self) -> list[str]:
        """Say which names and which ends of the scope no call was of, and if it never ended."""
        found = [end for each in self._scope or () if each is not None for end in each.missing]
        scope = [
            f"`scope` has `{said}`, of which no call was seen: check the name and its number"
            for said in dict.fromkeys(end.said for end in found)
        ]
        names = [
            f"`names` has `{name}`, which is in the name of no call that was seen: a name is "
            "such as `Module.fc1.Linear.forward.0`"
            for name in self._names
            if name in self._unmet
        ]
        return [*scope, *self._ran_on(), *names]

    def _ran_on(self) -> list[str]:
        stretches = (each for each in self._scope or () if each is not None and each.runs_on)
        return [
            f"`scope` ends with `{said[1]}`, which ran before `{said[0]}` began: from there on "
            "everything was recorded, to the end of the step"
            for said in dict.fromkeys(each.said for each in stretches)
            if said is not None
        ]

    def _in_scope(self, is_it: Callable[[End], bool]) -> tuple[bool, bool, bool]:
        """Tell of each direction whether a call belongs to the scope, and whether it ends it."""
        if self._scope is None:
            return True, True, False
        first, second = self._scope
        forward, ends = (False, False) if first is None else first.begins(is_it)
        if second is first:
            return forward, forward, ends
        backward, ends_too = (False, False) if second is None else second.begins(is_it)
        return forward, backward, ends or ends_too

    def _close(self) -> None:
        for each in self._scope or ():
            if each is not None:
                each.close()

    def _named(self, what: Watched | str, number: int, around: Call | None) -> tuple[bool, bool]:
        """Tell of each direction whether a name is asked for, or that of what is around."""
        inside = WHOLE.inside if around is None else around.choice.inside
        forward, backward = (spelled(what, number, way) for way in _WAYS)
        if self._unmet and (isinstance(what, str) or not self._of_functions):
            both = forward + backward
            self._unmet -= {each for each in self._unmet if any(each in name for name in both)}
        return (
            inside[0] or any(each in name for each in self._names for name in forward),
            inside[1] or any(each in name for each in self._names for name in backward),
        )

    def _mode(self, around: Call | None) -> bool:
        """Return the mode of what is around a function: a module, or the models themselves."""
        if around is not None:
            return around.training
        roots = [module for w in self._watched if w.is_root and (module := w.module()) is not None]
        return any(module.training for module in roots)
