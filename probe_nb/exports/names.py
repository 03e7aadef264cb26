"""How a training monitor names rows, and in which order they stand."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from probe_nb.exports.lines import Line, top_level

_SQUASHED: Final = tuple(
    re.compile(rf"^.*\.({word}.*)$")
    for word in (r"layers?\.", r"embeddings?\.", "final", "output", "norm")
)


def squashed(path: str) -> str:
    """Return a path from its last `layers.`, `embedding.`, `final`, `output` or `norm` on."""
    for pattern in _SQUASHED:
        if found := pattern.match(path):
            return found[1]
    return path


def done(rows: Iterable[Line]) -> Callable[[Line], tuple[int, int]]:
    """Return where the rows of a module stand in a table.

    Forward: as modules were done, of each its micro steps. Backward: micro step by micro step, as
    their first gradients came.
    """
    places: dict[tuple[Any, ...], int] = {}

    def key(line: Line) -> tuple[Any, ...]:
        micro = line.micro_step if line.direction == "backward" else -1
        return (line.model, line.module, micro)

    for line in rows:
        if line.direction != "backward" or key(line) not in places:
            places[key(line)] = line.order

    def place(line: Line) -> tuple[int, int]:
        if line.direction == "backward":
            return (line.micro_step, places[key(line)])
        return (places[key(line)], line.micro_step)

    return place


def again(rows: Iterable[Line]) -> Callable[[Line], str]:
    """Return what a name ends with of the second and later calls in one micro step: `#1`."""
    first: dict[tuple[Any, ...], list[int]] = {}
    for line in rows:
        calls = first.setdefault((line.step, line.micro_step, line.model, line.module), [])
        if line.call not in calls:
            calls.append(line.call)

    def ending(line: Line) -> str:
        calls = first[line.step, line.micro_step, line.model, line.module]
        number = sorted(calls).index(line.call)
        return f"#{number}" if number else ""

    return ending


def leaves_of(rows: Iterable[Line]) -> dict[tuple[str, str, str], list[str]]:
    """Return of each module which inputs and outputs it has, or gradients of them, in order."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for line in rows:
        word = line.role.removeprefix("grad_")
        if word in ("input", "output"):
            known = found.setdefault((line.model, line.module, word), [])
            if line.leaf not in known:
                known.append(line.leaf)
    return defaultdict(list, found)


def number_of(line: Line, known: list[str]) -> str:
    """Return the number that a name has where a module has several inputs or outputs.

    Arguments are numbered in their order, keywords behind the others; the parts of one, which the
    monitor does not look into, have their own path.
    """
    leaf = line.leaf
    whole = [each for each in known if top_level(each)]
    if line.role.endswith("input") and leaf in whole:
        return f"_{whole.index(leaf)}" if len(whole) > 1 else ""
    return "" if known == ["0"] else f"_{leaf}"


def arrived(rows: Iterable[Line], *, every: bool, before: bool) -> list[tuple[Line, str]]:
    """Return the gradients of parameters as they arrived, with the names of the parameters.

    They are what `.grad` held when the last backward of the step was done, or each was (`every`).
    Where a run has no row of that, it held what the backward added. Where DDP reduces `.grad`
    meanwhile (`before`), what the backward added is what was there before.
    """
    found: dict[tuple[Any, ...], tuple[Line, str]] = {}
    for line in rows:
        if line.role == "param_grad" and line.direction == "backward":
            whole = line.leaf.endswith(".grad")
            name = line.leaf.removesuffix(".grad")
            key = (line.model, line.module, name, line.step, line.micro_step if every else -1)
            held = found.get(key)
            both = held is not None and _moment(held[0]) == _moment(line)
            if not both or whole is not before:
                found.pop(key, None)  # tables have what came last at their end
                found[key] = (line, name)
    return list(found.values())


def _moment(line: Line) -> tuple[Any, ...]:
    """Return which backward a row is of."""
    return (line.micro_step, line.backward)


def reduces(models: Mapping[str, str]) -> bool:
    """Tell by the classes of the models that were watched whether DDP reduces gradients."""
    return "DistributedDataParallel" in models.values()
