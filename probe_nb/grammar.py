"""How the values of options are written: patterns, steps, tokens, amounts of memory."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from probe_nb.errors import ConfigError, closest
from probe_nb.terms import Role

Steps = str | int | Iterable[int] | None
Tokens = str | Sequence[int] | None
Memory = str | int | None

_OF_BACKWARD: Final = ("grad_output", "grad_input", "param_grad")
_OF_FORWARD: Final = ("input", "output", "param", "buffer")


class Slice(NamedTuple):
    """The part of a tensor along one dimension that is measured."""

    dim: int
    begin: int = 0
    end: int | None = None
    size: int | None = None
    """Only tensors of this size along the dimension are cut."""


_UNITS: Final = {
    "": 1,
    "b": 1,
    **{f"{unit}b": 1000**power for power, unit in enumerate("kmgt", 1)},
    **{f"{unit}ib": 1024**power for power, unit in enumerate("kmgt", 1)},
}
_AMOUNT: Final = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[a-z]*)", re.IGNORECASE)

_PART: Final = re.compile(
    r"(?P<one>\d+)|(?P<from>\d+)-(?P<to>\d+)|(?P<a>\d*):(?P<b>\d*)(:(?P<c>\d*))?"
)


def words(option: str, value: str | Iterable[str] | None) -> tuple[str, ...]:
    """Split `"a, b"` or take a sequence of strings as it is; None is no word.

    Raises:
        ConfigError: It is neither, or empty: a list that came out empty means nothing, not all.
    """
    if value is None:
        return ()
    parts: Any = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, Iterable) or not all(isinstance(part, str) for part in parts):
        raise ConfigError(f"`{option}` is {value!r}; give a string or a list of strings.")
    found = tuple(part.strip() for part in parts if part.strip())
    if not found:
        raise ConfigError(f"`{option}` is {value!r}, which chooses nothing; None chooses all.")
    return found


def roles_in(value: str | Sequence[str] | None, known: Sequence[Role]) -> tuple[Role, ...]:
    """Return the roles that are named, in the order of `known`; None names all.

    Raises:
        ConfigError: One is not known.
    """
    named = words("roles", value)
    for word in named:
        if word not in known:
            near, listed = closest(word, known), ", ".join(known)
            raise ConfigError(f"`{word}` is not a role that can be watched.{near} Known: {listed}.")
    return tuple(role for role in known if role in named) if named else tuple(known)


def one_way(roles: Sequence[Role], *, forward: bool, backward: bool) -> tuple[Role, ...]:
    """Return the roles that are left of `roles` with `forward_only` or `backward_only`.

    Raises:
        ConfigError: Both are asked for, or nothing is left.
    """
    if forward and backward:
        raise ConfigError("`forward_only` and `backward_only` leave nothing; give one of them.")
    allowed = _OF_FORWARD if forward else _OF_BACKWARD if backward else roles
    left = tuple(role for role in roles if role in allowed)
    if not left:
        word = "forward_only" if forward else "backward_only"
        raise ConfigError(f"`{word}` leaves nothing of the roles {', '.join(roles)}.")
    return left


def one_of(value: str | None, choices: Sequence[str], option: str) -> str | None:
    """Return one of a few words, or None where nothing is asked for.

    Raises:
        ConfigError: It is another one.
    """
    if value is None or value in tuple(choices):
        return value
    raise ConfigError(f"`{option}` is {value!r}; give {' or '.join(choices)}, or None.")


def scope(value: Any) -> tuple[str, str] | None:
    """Return the names of the first and the last call of a range.

    Raises:
        ConfigError: It is no pair of names.
    """
    if value is None:
        return None
    parts = value.split(",") if isinstance(value, str) else value
    if isinstance(parts, Sequence) and len(parts) == 2:  # noqa: PLR2004 - from and to
        first, last = (part.strip() if isinstance(part, str) else "" for part in parts)
        if first and last:
            return first, last
    raise ConfigError(
        f"`scope` is {value!r}; give the names of the first and the last call, such as "
        '`("layers.0", "layers.3")`.'
    )


def slices(value: Any) -> tuple[Slice, ...]:
    """Return which part of each tensor is measured, as `{dim, begin, end, size}` or a text says.

    >>> slices("1:0:16"), slices([{"dim": 0, "end": -1}])
    ((Slice(dim=1, begin=0, end=16, size=None),), (Slice(dim=0, begin=0, end=-1, size=None),))

    Raises:
        ConfigError: It is no such list.
    """
    if value is None:
        return ()
    try:
        parts = _cuts(value) if isinstance(value, str) else value
        made = tuple(Slice(**{"dim": 0, **each}) for each in parts)
    except (TypeError, ValueError):
        made = ()
    fits = all(type(n) is int for each in made for n in each if n is not None)
    fits = fits and all(None not in each[:2] and each.dim >= 0 for each in made)
    if not made or not fits or len({(each.dim, each.size) for each in made}) < len(made):
        raise ConfigError(
            f"`slices` is {value!r}; give a list with one "
            "`{'dim': 1, 'begin': 0, 'end': 16}` for each dimension that is cut, or the text "
            "`1:0:16`."
        )
    for each in made:
        _check_cut(each, value)
    return made


def _check_cut(cut: Slice, value: Any) -> None:
    """Refuse what cuts nothing off, and what leaves nothing.

    Raises:
        ConfigError: It does.
    """
    begin, end = cut.begin, cut.end
    if begin == 0 and end is None:
        raise ConfigError(f"`slices` is {value!r}, which cuts nothing: give `begin` or `end`.")
    if end is None:
        empty = cut.size is not None and begin >= cut.size
    elif cut.size is not None:
        empty = not range(*slice(begin, end).indices(cut.size))
    else:
        empty = end == 0 or ((begin < 0) is (end < 0) and end <= begin)
    if empty:
        raise ConfigError(
            f"`slices` is {value!r}, which leaves nothing of a tensor: `end` is the first place "
            "that is left out, and lies behind `begin`."
        )


def truth(value: object, option: str) -> bool:
    """Return what is True or False.

    Raises:
        ConfigError: It is something else.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"`{option}` is {value!r}; give True or False.")
    return value


def _cuts(text: str) -> list[dict[str, int]]:
    """Read `dim:begin:end`, several with commas."""
    found = [part.split(":") for part in text.split(",")]
    return [
        {name: int(n) for name, n in zip(("dim", "begin", "end"), each, strict=True) if n.strip()}
        for each in found
    ]


def steps_in(value: Steps, option: str = "steps") -> tuple[str | None, Callable[[int], bool]]:
    """Turn `"0,10-20,::100"`, a number or numbers into a text and a test.

    >>> text, wants = steps_in("0,10-12,::100")
    >>> [n for n in range(250) if wants(n)]
    [0, 10, 11, 12, 100, 200]
    """
    if value is None:
        return None, lambda _: True
    if isinstance(value, range):
        return _range_text(value, option), value.__contains__
    if type(value) is int:
        value = str(value)
    elif isinstance(value, int):
        raise ConfigError(_steps_message(value, option))
    if not isinstance(value, str):
        try:
            chosen = frozenset(operator.index(step) for step in value)
        except TypeError:
            raise ConfigError(_steps_message(value, option)) from None
        if not chosen or min(chosen) < 0:
            raise ConfigError(_steps_message(value, option))
        return ",".join(str(step) for step in sorted(chosen)), chosen.__contains__
    return value, numbers_in(value, option)


def numbers_in(text: str, option: str) -> Callable[[int], bool]:
    """Return a test for the numbers that a text names, as `steps` takes it.

    Raises:
        ConfigError: It names none; the message begins with the name of the option.
    """
    tests = [_part_test(part.strip(), text, option) for part in text.split(",") if part.strip()]
    if not tests:
        raise ConfigError(_steps_message(text, option))
    return lambda number: any(test(number) for test in tests)


def _range_text(steps: range, option: str) -> str:
    """Write a range as `steps` takes it."""
    if not steps or steps.step < 0 or steps.start < 0:
        raise ConfigError(_steps_message(steps, option))
    return f"{steps.start}:{steps.stop}:{steps.step}"


def _part_test(part: str, whole: str, option: str) -> Callable[[int], bool]:
    match = _PART.fullmatch(part)
    if match is None:
        raise ConfigError(_steps_message(whole, option))
    if match["one"]:
        wanted = int(match["one"])
        return lambda step: step == wanted
    if match["from"]:
        first, last = int(match["from"]), int(match["to"])
        if last < first:
            raise ConfigError(f"`{option}` has `{part}`, which ends before it begins.")
        return lambda step: first <= step <= last
    first, stride = int(match["a"] or 0), int(match["c"] or 1)
    end = int(match["b"]) if match["b"] else None
    if stride < 1:
        raise ConfigError(f"`{option}` has `{part}`, whose stride is 0; give a stride from 1 on.")
    chosen = range(first, end if end is not None else 2**62, stride)
    return lambda step: step in chosen


def _steps_message(value: object, option: str = "steps") -> str:
    return (
        f"`{option}` is {value!r}; give a number, numbers, a range `10-20` (both ends included), "
        "a slice `start:stop:stride` such as `::100`, or several of these with commas."
    )


def token_range(value: Tokens) -> tuple[int, int] | None:
    """Turn `(2, 5)` or `"2,5"` into the first and the last token, both included."""
    if value is None:
        return None
    parts: Any = value.split(",") if isinstance(value, str) else value
    try:
        first, last = (int(n) if isinstance(value, str) else operator.index(n) for n in parts)
    except (TypeError, ValueError):
        raise ConfigError(_tokens_message(value)) from None
    if any(isinstance(n, bool) for n in parts) or first < 0:
        raise ConfigError(_tokens_message(value))
    if last < first:
        raise ConfigError(f"`token_range` is {value!r}, which ends before it begins.")
    return first, last


def _tokens_message(value: object) -> str:
    return (
        f"`token_range` is {value!r}; give the first and the last forward of the model that are "
        "recorded, counted from 0 and both included, such as `(2, 5)`."
    )


def as_bytes(value: object) -> int | None:
    """Return an amount of memory in bytes; None, or `"none"` on a magic's line, stays None.

    >>> as_bytes("1.5 GiB"), as_bytes("200MB"), as_bytes(4096)
    (1610612736, 200000000, 4096)

    Raises:
        ConfigError: It is no amount, or none at all.
    """
    if value is None or value == "none":
        return None
    found = _AMOUNT.fullmatch(value.strip()) if isinstance(value, str) else None
    if found and found["unit"].lower() in _UNITS:
        amount = int(float(found["number"]) * _UNITS[found["unit"].lower()])
    else:
        amount = int(value) if type(value) is int else 0
    if amount < 1:
        raise ConfigError(
            f"`memory` is {value!r}; give what the records may take, such as `512MiB`, `2GB` or a "
            "number of bytes, or None for no limit."
        )
    return amount


def spelled(amount: int) -> str:
    """Write a number of bytes with the unit that suits it.

    >>> spelled(2**30), spelled(1_500_000), spelled(20_000)
    ('1 GiB', '1.431 MiB', '19.53 KiB')
    """
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if amount >= 1024**power:
            return f"{amount / 1024**power:.4g} {unit}"
    return f"{amount} bytes"
