"""The entries of one step and rank: what belongs to which call, and in which order they stand.

An entry stands where msProbe has it: that of a module, and of any backward, where it was complete,
that of a function where it began.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from probe_nb.dump.keys import MODULE, Key, Kind, Way
from probe_nb.dump.writer_rows import Row
from probe_nb.store.calls import Callee
from probe_nb.store.values import Value
from probe_nb.terms import Role, Site, inside

_OF_CALLS: Final[frozenset[Role]] = frozenset(
    {"input", "output", "grad_output", "grad_input", "value"}
)
"""Roles of what a call was given or gave; all of them may be values that are no tensors."""
_ACCUMULATED: Final = ".grad"

Where = tuple[str, str, str, int]
"""Of a call: the model and the module, or else the function; and its number."""

Owner = tuple[str, str]
"""Of a parameter: the model and the module."""

Place = tuple[int, int]
"""Where an entry stands: the order of a row, and which of two entries of that row comes first."""


@dataclass
class Seen:
    """One tensor of a call, or one value that is none."""

    leaf: str
    row: Row | None = None
    value: Value | None = None

    @property
    def requires_grad(self) -> bool:
        """Tell whether it is a tensor that requires a gradient."""
        return self.row is not None and self.row.numbers.requires_grad


@dataclass(eq=False)
class Entry:
    """What is known of one call in one direction."""

    key: Key
    where: Where
    place: Place
    backward: int = -1
    roles: dict[str, dict[str, Seen]] = field(default_factory=lambda: defaultdict(dict))


class Gradients:
    """The gradients that arrived at the parameters of one module."""

    def __init__(self) -> None:
        """Start without any."""
        self.rows: dict[str, dict[tuple[int, int, int], tuple[int, Row]]] = {}

    def add(self, row: Row) -> None:
        """Take in what was added, or what `.grad` was then, which is what msProbe writes."""
        name = name_of(row.site.leaf)
        mine = self.rows.setdefault(name, {})
        when = (row.micro_step, row.call, row.backward)
        place = mine[when][0] if when in mine else row.order
        if when not in mine or _ACCUMULATED in row.site.leaf[len(name) :]:
            mine[when] = (place, row)

    def named(self, base: Key) -> Iterable[tuple[Place, Key, dict[str, Row]]]:
        """Yield each entry: its place, its key, and the gradient of each parameter."""
        times = max((len(each) for each in self.rows.values()), default=0)
        for number in range(times):
            there = {
                n: [*mine.values()][number] for n, mine in self.rows.items() if number < len(mine)
            }
            ordered = sorted(there.items(), key=lambda pair: pair[1][0])
            place = ordered[-1][1][0]
            yield (place, 0), replace(base, call=number), {name: row for name, (_, row) in ordered}


class Entries:
    """Takes the rows of one step and rank in their order."""

    def __init__(
        self,
        models: Mapping[str, int | None],
        shared: Mapping[str, str],
        wrapped: Mapping[str, str] | None = None,
        within: Mapping[str, str] | None = None,
    ) -> None:
        """Start empty.

        Args:
            models: The index of each model, None where there is one alone.
            shared: Names of parameters that are another one, and the name of that.
            wrapped: Paths of modules, and what a dump that was read called them.
            within: Models inside of DDP, and their own name there.
        """
        self._models, self._shared, self._wrapped = models, shared, wrapped or {}
        self._within = within or {}
        self._entries: dict[tuple[Where, Kind, Way], Entry] = {}
        self._gradients: dict[Owner, Gradients] = {}
        self._parameters: dict[Owner, dict[str, Row]] = defaultdict(dict)
        self._types: dict[Owner, str] = {}
        self._leaving: list[Entry] = []
        self.failed: list[Row] = []

    # -- taking in ------------------------------------------------------------------------------

    def add(self, row: Row) -> None:
        """Take in a record; what has no place in a dump is passed over."""
        site = row.site
        if row.numbers.status == "failed":
            self.failed.append(row)
        if row.recompute or site.direction == "optimizer" or not self._has_name(site):
            return
        owner = (site.model, site.module)
        if not site.api:
            self._types[owner] = site.type
        if site.role == "param":
            self._parameters[owner][name_of(site.leaf)] = row
        elif site.role == "param_grad":
            self._gradients.setdefault(owner, Gradients()).add(row)
            self._wait_for(row, owner)
        elif site.role in _OF_CALLS:
            entry = self._add_to_call(row)
            if site.role != "grad_input":
                self._leaving.clear()
            elif not site.api and entry not in self._leaving:
                self._leaving.append(entry)

    def _wait_for(self, row: Row, owner: Owner) -> None:
        """Let a backward stand behind the gradients of parameters that follow at once.

        msProbe hears of gradients of inputs a node later than we do: of those of the module, and
        of the modules around it that were fed the same.
        """
        for number, entry in enumerate(self._leaving, 1):
            model, module, *_ = entry.where
            if model == owner[0] and f"{owner[1]}.".startswith(f"{module}."):
                entry.place = (row.order, number)

    def _add_to_call(self, row: Row) -> Entry:
        site = row.site
        entry = self._entry(site, row.call, (row.order, 1))
        if row.backward > entry.backward:  # of several backwards msProbe leaves the last
            entry.roles.clear()
            entry.backward = row.backward
        if site.role != "input" and (not site.api or site.direction == "backward"):
            entry.place = (row.order, 1)
        entry.roles[site.role][site.leaf] = Seen(site.leaf, row)
        return entry

    def add_value(self, value: Value) -> None:
        """Take in what is no tensor."""
        site = value.site
        if site.role in _OF_CALLS and self._has_name(site):
            entry = self._entry(site, value.call, (value.order, 0))  # before the row of this number
            entry.roles[site.role].setdefault(site.leaf, Seen(site.leaf, value=value))

    def _entry(self, site: Site, call: int, place: Place) -> Entry:
        key = self._key(site, call)  # functions are counted over all modules and models
        where = ("", "", site.api, call) if site.api else (site.model, site.module, "", call)
        at = (where, key.kind, key.direction)
        return self._entries.get(at) or self._entries.setdefault(at, Entry(key, where, place))

    def _key(self, site: Site, call: int) -> Key:
        if site.role == "value":
            way: Way = "backward" if site.direction == "backward" else "forward"
            return Key("debug", site.api, direction=way, call=call)
        key = self.named(Callee(site.model, site.module, site.type, site.api), call)
        return replace(key, direction="backward") if site.direction == "backward" else key

    def named(self, callee: Callee, call: int) -> Key:
        """Return how msProbe names a call in the forward."""
        if callee.api:
            prefix, _, name = callee.api.partition(".")
            return Key("api", name or prefix, prefix, call=call)
        return self._of_module("module", callee.model, callee.module, callee.type, call)

    def _of_module(self, kind: Kind, model: str, module: str, cls: str, call: int) -> Key:
        name = self._path(model, module)
        return Key(kind, name, MODULE, cls, call=call, model=self.index(model))

    def _path(self, model: str, module: str) -> str:
        """Return what a dump calls a module; a model that is in nothing has no name."""
        return self._wrapped.get(module) or inside(self._within.get(model, ""), module)

    def _has_name(self, site: Site) -> bool:
        return bool(site.api or self._path(site.model, site.module))

    def index(self, model: str) -> int | None:
        """Return what stands for a model in names, None where there is one alone."""
        return self._models.get(model)

    # -- handing out ----------------------------------------------------------------------------

    def calls(self) -> list[Entry]:
        """Return the entries of calls of modules and functions."""
        return [entry for entry in self._entries.values() if entry.key.kind != "debug"]

    def saved(self) -> list[Entry]:
        """Return the entries of saved values, each followed by that of its gradient."""
        mine = [entry for entry in self._entries.values() if entry.key.kind == "debug"]
        ordered = sorted(mine, key=lambda entry: (entry.key.direction == "backward", entry.place))
        at: dict[Where, int] = {}
        for place, entry in enumerate(ordered):
            at.setdefault(entry.where, place)
        return sorted(ordered, key=lambda entry: at[entry.where])

    def forward_of(self, entry: Entry) -> Entry | None:
        """Return the entry of the forward that a backward belongs to."""
        return self._entries.get((entry.where, entry.key.kind, "forward"))

    def parameters(self, entry: Entry) -> dict[str, Row]:
        """Return the parameters of a module as its step began with them."""
        return self._parameters.get(entry.where[:2], {})

    def gradients(self) -> Iterable[tuple[Place, Key, dict[str, Row]]]:
        """Yield the gradients of parameters: the place of an entry, its key, and each gradient."""
        for owner, found in self._gradients.items():
            base = self._of_module("parameters_grad", *owner, self._types.get(owner, ""), 0)
            yield from found.named(replace(base, direction="backward"))

    def share(self) -> None:
        """Give parameters that are another one both their names, as msProbe does."""
        for name, known in self._shared.items():
            path, _, leaf = name.rpartition(".")
            first, _, of = known.rpartition(".")
            for model in {model for model, module in self._types if module == path}:
                mine, owner = (model, path), (model, first)
                row = self._parameters.get(owner, {}).get(of)
                if row is not None:
                    self._parameters[mine].setdefault(leaf, row)
                there = self._gradients.get(owner)
                if there is not None and of in there.rows:
                    self._gradients.setdefault(mine, Gradients()).rows[leaf] = there.rows[of]


def name_of(leaf: str) -> str:
    """Return the name of the parameter that a leaf is of: it has no dot inside."""
    return leaf.partition(".")[0]
