"""What a training monitor writes of a run: tables by name, with the columns of msProbe's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from probe_nb.errors import ConfigError
from probe_nb.exports import names
from probe_nb.exports.lines import Line, Shares, value
from probe_nb.exports.names import arrived, leaves_of, squashed

TABLES: Final = (
    *("actv", "actv_grad", "grad_unreduced", "grad_reduced", "exp_avg", "exp_avg_sq"),
    *("param_origin", "param_updated", "update", "other"),
    *("attention_hook", "linear_hook", "moe_router_weight_hook", "moe_router_logit_hook"),
)
MICRO: Final = ("actv", "actv_grad", "attention_hook", "moe_router_logit_hook")
"""The tables that always have a column `micro_step`."""

FEATURES: Final = {
    "attention_hook": ("entropy", "softmax_max"),
    "linear_hook": ("sr", "kernel_norm"),
    "moe_router_weight_hook": ("router_weight_similarity",),
    "moe_router_logit_hook": ("per_token_expert_entropy",),
}
"""The columns of the tables that are computed on request."""

_COLUMNS: Final = {
    "attention_entropy": "entropy",
    "softmax_max": "softmax_max",
    "stable_rank": "sr",
    "spectral_norm": "kernel_norm",
    "router_similarity": "router_weight_similarity",
    "expert_entropy": "per_token_expert_entropy",
}
"""The quantities of `extras=`, and the columns that they are in."""

_WORDS: Final = {"attention_hook": "attention", "linear_hook": "linear"}


class Row(NamedTuple):
    """One row of a table, before it is written."""

    vpp_stage: int
    name: str
    step: int
    micro_step: int | None
    values: list[Any]


@dataclass(frozen=True)
class Layout:
    """What is written, and how.

    `targets` chooses modules and parameters by name, `tables` what is written at all.
    `before_reduction` says that `.grad` is reduced over processes when a backward ends.
    """

    ops: tuple[str, ...] = ("min", "max", "mean", "norm", "nans", "shape", "dtype")
    eps: float = 1e-8
    tables: tuple[str, ...] = TABLES
    targets: tuple[str, ...] = ()
    all_modules: bool = True
    squash_name: bool = False
    every_gradient: bool = False
    before_reduction: bool = False

    def columns(self, table: str) -> list[str]:
        """Return the head of a table."""
        micro = table in MICRO or (table == "grad_unreduced" and self.every_gradient)
        head = ["vpp_stage", "name", "step", *(["micro_step"] if micro else [])]
        return [*head, *FEATURES.get(table, self.ops)]


class Sheets:
    """Makes the tables of some rows of a run."""

    def __init__(self, rows: Sequence[Line], shares: Shares, layout: Layout) -> None:
        """Read the rows; several models of a run are numbered in their order."""
        self._rows = [each for each in rows if not each.recompute and not each.api]
        self._shares = shares
        self._layout = layout
        self._models: dict[str, int] = {}
        self._owners = self._short_names() if layout.squash_name else {}
        for each in self._rows:
            self._stage(each.model)

    def tables(self) -> dict[str, list[Row]]:
        """Return each table that has rows."""
        made = {
            "actv": self._activations(("input", "output")),
            "actv_grad": self._activations(("grad_input", "grad_output")),
            "grad_unreduced": self._unreduced(),
            "grad_reduced": self._of("param_grad", "optimizer"),
            "exp_avg": self._kept("exp_avg"),
            "exp_avg_sq": self._kept("exp_avg_sq"),
            "param_origin": self._of("param", "forward"),
            "param_updated": self._of("param", "optimizer"),
            "update": self._of("update", "optimizer"),
            "other": self._directions(),
            **{name: self._features(name) for name in FEATURES},
        }
        return {name: rows for name, rows in made.items() if rows and name in self._layout.tables}

    def _short_names(self) -> dict[tuple[str, str], str]:
        """Return whose each short name is: of two that would be cut alike it is the first's.

        Gradients arrive from behind; what an optimizer does is in the order of the model.
        """
        owners: dict[tuple[str, str], str] = {}
        for line in sorted(self._rows, key=lambda each: each.direction == "backward"):
            leaf = line.leaf.removeprefix("before.").removesuffix(".grad")
            path = f"{line.module}.{leaf}" if line.module else leaf
            for each in (line.module, path):
                owners.setdefault((line.model, squashed(each)), each)
        return owners

    # -- modules ------------------------------------------------------------------------------

    def _activations(self, roles: tuple[str, str]) -> list[Row]:
        """Return the rows of inputs and outputs, or of their gradients."""
        mine = [each for each in self._rows if each.role in roles and each.training is not False]
        mine = [each for each in mine if self._wants_module(each)]
        again, known, done = names.again(mine), leaves_of(self._rows), names.done(mine)
        made: list[tuple[tuple[Any, ...], Row]] = []
        for line in mine:
            if line.measured:
                word = line.role.removeprefix("grad_")
                leaves = known[line.model, line.module, word]
                end = f"{word}{names.number_of(line, leaves)}{again(line)}"
                name = f"{self._name(line, line.module)}.{end}"
                place = leaves.index(line.leaf) if line.leaf in leaves else len(leaves)
                key = (*done(line), line.call, roles.index(line.role), place, line.order)
                made.append((key, self._row(line, name, micro=True)))
        return [row for _, row in sorted(made, key=lambda each: each[0])]

    def _wants_module(self, line: Line) -> bool:
        layout = self._layout
        if layout.all_modules or not layout.targets:
            return True
        return any(name in layout.targets for name in self._names(line, line.module))

    # -- parameters ---------------------------------------------------------------------------

    def _of(self, role: str, direction: str) -> list[Row]:
        rows = [e for e in self._rows if e.role == role and e.direction == direction]
        return self._parameters([(each, each.leaf) for each in rows])

    def _kept(self, name: str) -> list[Row]:
        """Return what an optimizer kept before it stepped."""
        end = f".{name}"
        return self._parameters(
            [
                (each, each.leaf.removeprefix("before.").removesuffix(end))
                for each in self._rows
                if each.role == "state" and each.leaf.startswith("before.")
                if each.leaf.endswith(end)
            ]
        )

    def _directions(self) -> list[Row]:
        begin = "grad_direction."
        return self._parameters(
            [
                (each, each.leaf.removeprefix(begin))
                for each in self._rows
                if each.role == "state" and each.leaf.startswith(begin)
            ]
        )

    def _unreduced(self) -> list[Row]:
        """Return the gradients as they arrived, of the last backward of the step or of each."""
        every = self._layout.every_gradient
        found = arrived(self._rows, every=every, before=self._layout.before_reduction)
        return self._parameters(found, micro=every)

    def _parameters(self, named: Iterable[tuple[Line, str]], *, micro: bool = False) -> list[Row]:
        made = []
        for line, parameter in named:
            path = f"{line.module}.{parameter}" if line.module else parameter
            if line.measured and self._wants_parameter(line, path):
                made.append(self._row(line, self._name(line, path), micro=micro))
        return made

    def _wants_parameter(self, line: Line, path: str) -> bool:
        targets = self._layout.targets
        return not targets or any(
            name.startswith(target) for name in self._names(line, path) for target in targets
        )

    # -- what is computed on request ------------------------------------------------------------

    def _features(self, table: str) -> list[Row]:
        """Return the rows of one table of features: one per module and call, or per weight."""
        found: dict[tuple[Any, ...], dict[str, float]] = {}
        lines: dict[tuple[Any, ...], Line] = {}
        for line in self._rows:
            word, _, parameter = line.leaf.partition(".")
            column = _COLUMNS.get(word) if line.role == "state" else None
            if column is None or column not in FEATURES[table] or line.mean is None:
                continue
            key = (line.place, parameter)
            lines[key] = line
            # the monitor's `sr` is the root of the stable rank
            found.setdefault(key, {})[column] = line.mean**0.5 if column == "sr" else line.mean
        return [self._feature(table, lines[key], key[1], each) for key, each in found.items()]

    def _feature(self, table: str, line: Line, parameter: str, columns: dict[str, float]) -> Row:
        word = _WORDS.get(table, "moe_router")
        more = "" if parameter in ("", "weight", "wg") else f".{parameter}"
        name = f"{self._name(line, line.module)}.{word}{more}"
        micro = line.micro_step if table in MICRO else None
        values = [columns.get(column) for column in FEATURES[table]]
        return Row(self._stage(line.model), name, line.step, micro, values)

    # -- names and values -----------------------------------------------------------------------

    def _row(self, line: Line, name: str, *, micro: bool = False) -> Row:
        values = [self._value(line, op) for op in self._layout.ops]
        micro_step = line.micro_step if micro else None
        return Row(self._stage(line.model), name, line.step, micro_step, values)

    def _value(self, line: Line, op: str) -> Any:
        if op != "zeros":
            return value(line, op)
        share = self._shares.of(line)
        if share is None:
            raise ConfigError(
                f"the share of elements below {self._layout.eps!r} was not counted when this run "
                "was recorded, and no histogram tells it. Give `eps` as a power of two, such as "
                f'`2**-27`, or record with `extras={{"below:{self._layout.eps!r}": "*"}}`.'
            )
        return share

    def _stage(self, model: str) -> int:
        number = self._models.get(model)
        if number is None:
            number = int(model) if model.isdecimal() else len(self._models)
            self._models[model] = number
        return number

    def _names(self, line: Line, path: str) -> tuple[str, ...]:
        """Return the ways in which a target may name a module or a parameter."""
        stage, short = self._stage(line.model), squashed(path)
        names = (path, f"{stage}:{path}")
        return (*names, short, f"{stage}:{short}") if self._layout.squash_name else names

    def _name(self, line: Line, path: str) -> str:
        """Return the name of a module or parameter; of two that would be cut alike one is not."""
        if not self._layout.squash_name:
            return path
        short = squashed(path)
        return short if self._owners.get((line.model, short), path) == path else path
