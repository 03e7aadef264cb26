"""An entry -> what msProbe has under its key."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from probe_nb.dump import writer_values as values
from probe_nb.dump.keys import Key, Part, tensor_name
from probe_nb.dump.writer_entries import Entries, Entry, Place, Seen
from probe_nb.dump.writer_rows import Row
from probe_nb.dump.writer_tree import Item, as_list, grown, planted
from probe_nb.terms import MODULE_ROLES, Site

_PARTS: Final = (".shard", ".partial")
"""What a leaf says of a tensor of which a process holds a part."""
_KWARGS: Final = "kwargs."
_FLOATS: Final = ("float", "bfloat", "complex")
_NORMS: Final = ("Functional.batch_norm", "Functional.instance_norm")
_RUNNING: Final = ("1", "2", "kwargs.running_mean", "kwargs.running_var")
"""Arguments of these that are never differentiated."""

Saver = Callable[[Row, str], str | None]
"""Puts the tensor of a row into a file of this name; gives the name it has then, if any."""


class Bodies:
    """Writes entries down."""

    def __init__(
        self,
        entries: Entries,
        *,
        task: str,
        ours: bool,
        save: Saver,
        roles: Collection[str] = MODULE_ROLES,
        placed: bool = False,
    ) -> None:
        """Take entries that are complete.

        Args:
            entries: Knows what belongs together.
            task: What the header says.
            ours: Write also what msProbe has no word for.
            save: Has tensors in files.
            roles: What was recorded: of the rest an entry says nothing, not that there was none.
            placed: Gradients have the places that they had in a dump of msProbe's own, and not
                those of the tensors that they are of.
        """
        self._entries, self._task, self._ours, self._save = entries, task, ours, save
        self._roles, self._has_places = roles, placed

    def data(self) -> list[tuple[Key, Any]]:
        """Return what `dump.json` holds, in its order."""
        self._entries.share()
        found: list[tuple[Place, Key, Any]] = [
            (entry.place, entry.key, self._body(entry)) for entry in self._entries.calls()
        ]
        for place, key, rows in self._entries.gradients():
            found.append((place, key, self._gradients(key, rows)))
        found.sort(key=lambda each: each[0])
        return [(key, body) for _, key, body in found]

    def debug(self) -> list[tuple[Key, Any]]:
        """Return what `debug.json` holds."""
        return [(entry.key, self._saved(entry)) for entry in self._entries.saved()]

    # -- calls ----------------------------------------------------------------------------------

    def _body(self, entry: Entry) -> dict[str, Any]:
        if entry.key.direction == "backward":
            return self._backward(entry)
        made = self._given(entry) if "input" in self._roles else {}
        if "output" not in self._roles:
            return made
        if (results := entry.roles.get("output")) is not None:
            made["output"] = as_list(planted(self._placed(entry.key, "output", results.values())))
        if entry.key.kind == "module":
            made["parameters"] = {
                name: self._item(row, tensor_name(entry.key, "parameters", name), name)
                for name, row in self._entries.parameters(entry).items()
            }
        return made

    def _given(self, entry: Entry) -> dict[str, Any]:
        given = entry.roles.get("input", {}).values()
        args = [each for each in given if not each.leaf.startswith(_KWARGS)]
        kwargs = [each for each in given if each.leaf.startswith(_KWARGS)]
        named = planted(self._placed(entry.key, "kwargs", kwargs))
        return {
            "input_args": as_list(planted(self._placed(entry.key, "input", args))),
            "input_kwargs": {name: grown(each) for name, each in named.items()},
        }

    def _placed(
        self, key: Key, part: Part, seen: Iterable[Seen]
    ) -> Iterable[tuple[list[str], Any]]:
        """Yield what was given or came, each with its path."""
        seen = [*seen]
        in_a_dict = part == "output" and not all(_first(each.leaf).isdigit() for each in seen)
        for each in seen:
            path = _whole(each.leaf)[0].removeprefix(_KWARGS if part == "kwargs" else "").split(".")
            inside = ["0", *path] if in_a_dict else path
            leaf = ".".join(inside)
            natural = f"{_KWARGS}{leaf}" if part == "kwargs" else leaf
            yield path, self._written(each, tensor_name(key, part, leaf), natural, path)

    def _written(self, seen: Seen, name: str, natural: str, path: list[str]) -> Any:
        if seen.value is not None:
            return values.value(seen.value.kind, seen.value.value, path)
        return None if seen.row is None else self._item(seen.row, name, natural)

    def _backward(self, entry: Entry) -> dict[str, Any]:
        """Return gradients as torch hands them over: one per tensor that requires one, in a row."""
        forward = self._entries.forward_of(entry)
        made: dict[str, Any] = {}
        parts: tuple[tuple[Part, str, str], ...] = (
            ("input", "grad_output", "output"),
            ("output", "grad_input", "input"),
        )
        for part, gradient, role in parts:
            if gradient not in self._roles:
                continue
            found = entry.roles.get(gradient, {})
            if self._has_places:
                made[part] = as_list(planted(self._placed(entry.key, part, found.values())))
                continue
            seen = {} if forward is None else forward.roles.get(role, {})
            wanted = _needs if entry.key.kind == "module" else _differs
            placed = _flat(filter(wanted, seen.values()), found)
            made[part] = [
                None if each is None else self._gradient(entry.key, part, place, each)
                for place, each in enumerate(placed)
            ]
        return made

    def _gradient(self, key: Key, part: Part, place: int, seen: Seen) -> Any:
        at = str(place)
        return self._written(seen, tensor_name(key, part, at), at, [at])

    def _gradients(self, key: Key, rows: Mapping[str, Row]) -> dict[str, list[Item]]:
        return {
            name: [self._item(row, tensor_name(key, "", name), name, key.call or 0)]
            for name, row in rows.items()
        }

    # -- saved values ---------------------------------------------------------------------------

    def _saved(self, entry: Entry) -> Any:
        """Return a saved value, or what is known of its gradient, as it was nested."""
        there = entry.roles.get("value", {})
        forward = self._entries.forward_of(entry)
        shape = {} if forward is None else forward.roles.get("value", {})
        items = {
            leaf: self._written(
                each, tensor_name(entry.key, "", _whole(leaf)[0]), leaf, leaf.split(".")
            )
            for leaf, each in there.items()
        }
        leaves = dict.fromkeys([*shape, *there])
        if [*leaves] == [""]:
            return items.get("")
        return grown(planted((_whole(leaf)[0].split("."), items.get(leaf)) for leaf in leaves))

    # -- tensors --------------------------------------------------------------------------------

    def _item(self, row: Row, name: str, natural: str, backward: int = 0) -> Item:
        made = values.tensor(row.numbers, kind=_whole(row.site.leaf)[1], task=self._task)
        file = self._save(row, name)
        if file is not None:
            made = _with_file(made, file)
        if self._ours:
            about = self._around(row.site) | _counted(row, backward)
            about |= {} if row.site.leaf == natural else {"leaf": row.site.leaf}
            made[values.OURS] = values.ours(row.numbers, made) | about | row.bins
        return made

    def _around(self, site: Site) -> dict[str, Any]:
        """Return what was around a function, which its name does not say."""
        if not site.api or site.role == "value" or not (site.module or site.type):
            return {}
        index = self._entries.index(site.model)
        model = {} if index is None else {"model": str(index)}
        return {**model, "module": site.module, "type": site.type}


def _needs(seen: Seen) -> bool:
    """Tell whether a gradient of a module's tensor has a place in a dump."""
    return seen.requires_grad


def _differs(seen: Seen) -> bool:
    """Tell the same of a function's: its node has an edge for what could require a gradient."""
    if seen.row is None or not seen.row.numbers.dtype.startswith(_FLOATS):
        return False
    return seen.row.site.api not in _NORMS or seen.leaf not in _RUNNING


def _flat(wanted: Iterable[Seen], gradients: Mapping[str, Seen]) -> list[Seen | None]:
    """Put each gradient at the place of its tensor among those that may have one.

    Those of keyword arguments, of which msProbe knows nothing, come last. A tensor that was passed
    several times has one gradient: it stands at the first of them.
    """
    known = [each.leaf for each in wanted]
    places: dict[str, Seen | None] = dict.fromkeys(n for n in known if not n.startswith(_KWARGS))
    for leaf, gradient in gradients.items():
        if gradient.row is None:  # a dump that was read has a place there, and nothing in it
            continue
        names = [leaf] if leaf in known else leaf.split("+")
        places[next((name for name in names if name in places), leaf)] = gradient
    return [*places.values()]


def _first(leaf: str) -> str:
    return leaf.partition(".")[0]


def _whole(leaf: str) -> tuple[str, str]:
    """Return a leaf without what it says of shards, and the kind of tensor it is of."""
    for part in _PARTS:
        if leaf.endswith(part):
            return leaf.removesuffix(part), values.SHARD
    return leaf, values.TENSOR


def _with_file(made: Item, file: str) -> Item:
    """Put the name of a file before the checksum, where msProbe has it."""
    md5 = made.pop("md5", None)
    made["data_name"] = file
    return made if md5 is None else Item(made | {"md5": md5})


def _counted(row: Row, backward: int) -> dict[str, int]:
    """Return how we count what the name of an entry counts in another way, or not at all."""
    found = {"micro_step": row.micro_step} if row.micro_step else {}
    if row.site.direction == "backward" and row.backward != backward:
        found["backward"] = row.backward
    if row.site.role == "param_grad" and row.call:
        found["call"] = row.call
    return found
