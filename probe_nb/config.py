"""What one watch is asked to do: every option in one place, checked once, then frozen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from probe_nb import grammar
from probe_nb.errors import ConfigError
from probe_nb.extras import Extra, as_extras
from probe_nb.grammar import Memory, Slice, Steps, Tokens
from probe_nb.keep import Keep, as_keep
from probe_nb.terms import MODULE_ROLES, Role, printable

MEMORY: Final = "1GiB"
STOPS: Final = ("nonfinite",)
LEVELS: Final = {
    "module": "module",
    "L0": "module",
    "api": "api",
    "L1": "api",
    "mix": "mix",
    "debug": "debug",
}
"""What is recorded, and the other names of it: calls of modules, of functions, of both, or only
what `probe.save` is given."""
NEEDS_MODEL: Final = ("module", "mix")
"""The levels that cannot do without a model."""
OF_FUNCTIONS: Final = ("api", "mix")
"""The levels that record functions of torch."""
OF_CALLS: Final[frozenset[Role]] = frozenset({"input", "output", "grad_output", "grad_input"})
"""The roles that functions have."""
CHECKSUMS: Final = ("crc32", "xor")
MODES: Final = ("train", "eval")
_LIVE: Final = ("wants", "wants_rank", "keep", "on_finding")
"""Options that are no plain values."""
_STEPS: Final = 2**30
"""Where a run may begin to count its steps, so that their numbers fit what records them."""


@dataclass(frozen=True)
class WatchConfig:
    """The checked options of a session."""

    level: str = "module"
    apis: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    roles: tuple[Role, ...] = MODULE_ROLES
    steps: str | None = None
    first_step: int = 0
    token_range: tuple[int, int] | None = None
    micro_batches: int | None = None
    reduce_once: bool = True
    compiled: str = "stay"
    recompute: bool = False
    memory: int | None = 2**30
    name: str = ""
    stop_on: str | None = None
    alerts: dict[str, str] = field(default_factory=dict)
    keep: Keep | None = None
    stacks: bool = False
    structure: bool = False
    values: bool = False
    checksum: str | None = None
    scope: tuple[str, str] | None = None
    names: tuple[str, ...] = ()
    when: str | None = None
    ranks: str | None = None
    one_way: str | None = None
    slices: tuple[Slice, ...] = ()
    extras: tuple[Extra, ...] = ()
    on_finding: Callable[[Any], object] | None = field(default=None, compare=False, repr=False)
    wants: Callable[[int], bool] = field(default=lambda _: True, compare=False, repr=False)
    wants_rank: Callable[[int], bool] = field(default=lambda _: True, compare=False, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the options as JSON-ready values."""
        named = (each.name for each in fields(self))
        values = {name: getattr(self, name) for name in named if name not in _LIVE}
        values["alerts"] = dict(self.alerts)
        values["keep"] = None if self.keep is None else self.keep.as_dict()
        values["slices"] = [each._asdict() for each in self.slices]
        values["extras"] = {each.text: list(each.select) for each in self.extras}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def checked(
    *,
    level: str = "module",
    apis: str | Sequence[str] | None = None,
    select: str | Sequence[str] | None = None,
    roles: str | Sequence[str] | None = None,
    steps: Steps = None,
    token_range: Tokens = None,
    first_step: int = 0,
    micro_batches: int | None = None,
    reduce_once: bool = True,
    compiled: str = "stay",
    recompute: bool = False,
    memory: Memory = MEMORY,
    name: str | None = None,
    stop_on: str | None = None,
    alerts: Mapping[str, str] | None = None,
    keep: Any = None,
    stacks: bool = False,
    structure: bool = False,
    values: bool = False,
    checksum: str | None = None,
    scope: Sequence[str] | None = None,
    names: str | Sequence[str] | None = None,
    when: str | None = None,
    ranks: Steps = None,
    forward_only: bool = False,
    backward_only: bool = False,
    slices: Any = None,
    extras: Any = None,
    on_finding: Callable[[Any], object] | None = None,
) -> WatchConfig:
    """Check every option and return them frozen.

    Raises:
        ConfigError: A value that makes no sense; the message says which and what would do.
    """
    if type(first_step) is not int or not 0 <= first_step < _STEPS:
        raise ConfigError(
            f"`first_step` is {first_step!r}; give a whole number from 0 on, below {_STEPS}."
        )
    if not isinstance(name, str | None):
        raise ConfigError(f"`name` is {name!r}; give a text that names the run.")
    if micro_batches is not None and (type(micro_batches) is not int or micro_batches < 1):
        raise ConfigError(f"`micro_batches` is {micro_batches!r}; give a whole number from 1 on.")
    if level not in tuple(LEVELS):
        raise ConfigError(f"`level` is {level!r}; give one of {', '.join(LEVELS)}.")
    if apis is not None and LEVELS[level] not in OF_FUNCTIONS:
        raise ConfigError('`apis` chooses functions of torch; give `level="api"` or `"mix"` too.')
    if compiled not in ("stay", "eager"):
        raise ConfigError(
            f"`compiled` is {compiled!r}; give `stay`, or `eager` to run it uncompiled meanwhile."
        )
    if stop_on not in (None, *STOPS):
        raise ConfigError(f"`stop_on` is {stop_on!r}; give `nonfinite`, or None to go on.")
    _alone(
        "`structure` computes nothing of a tensor" if structure else "",
        stop_on=stop_on,
        extras=extras,
        alerts=alerts,
        on_finding=on_finding,
        keep=keep,
        checksum=checksum,
        slices=slices,
    )
    _alone(
        '`level="debug"` records what `probe.save` is given and no call'
        if level == "debug"
        else "",
        select=select,
        scope=scope,
        names=names,
        when=when,
        roles=roles,
        values=values,
    )
    if on_finding is not None and not callable(on_finding):
        raise ConfigError(f"`on_finding` is {on_finding!r}; give a function of one finding.")
    written, wants = grammar.steps_in(steps)
    written_ranks, wants_rank = grammar.steps_in(ranks, "ranks")
    truth = grammar.truth
    one_way = {
        "forward": truth(forward_only, "forward_only"),
        "backward": truth(backward_only, "backward_only"),
    }
    recorded = _recorded(roles, LEVELS[level], one_way)
    kept = as_keep(keep, recorded)
    if level == "debug" and kept is not None and "value" not in kept.roles:
        raise ConfigError(
            '`level="debug"` records what `probe.save` is given, of which `keep` asks for nothing: '
            'give `probe.Keep(names, roles="value")`.'
        )
    return WatchConfig(
        level=LEVELS[level],
        apis=grammar.words("apis", apis),
        select=grammar.words("select", select),
        roles=recorded,
        steps=written,
        token_range=grammar.token_range(token_range),
        first_step=first_step,
        micro_batches=micro_batches,
        reduce_once=truth(reduce_once, "reduce_once"),
        compiled=compiled,
        recompute=truth(recompute, "recompute"),
        memory=grammar.as_bytes(memory),
        name=printable(name or ""),
        stop_on=stop_on,
        alerts=_alerts(alerts),
        keep=kept,
        stacks=truth(stacks, "stacks"),
        structure=truth(structure, "structure"),
        values=truth(values, "values"),
        checksum=grammar.one_of(checksum, CHECKSUMS, "checksum"),
        scope=grammar.scope(scope),
        names=grammar.words("names", names),
        when=grammar.one_of(when, MODES, "when"),
        ranks=written_ranks,
        one_way="forward" if forward_only else "backward" if backward_only else None,
        slices=grammar.slices(slices),
        extras=as_extras(extras, recorded),
        on_finding=on_finding,
        wants=wants,
        wants_rank=wants_rank,
    )


def _recorded(value: Any, level: str, one_way: dict[str, bool]) -> tuple[Role, ...]:
    """Return the roles that are left.

    Raises:
        ConfigError: None is.
    """
    found = grammar.one_way(grammar.roles_in(value, MODULE_ROLES), **one_way)
    if level == "api" and not OF_CALLS.intersection(found):
        raise ConfigError(
            f"`roles` is {value!r}; functions have {', '.join(sorted(OF_CALLS))}: give one of "
            'them, or `level="mix"` for modules and their parameters too.'
        )
    return found


def _alone(why: str, **given: Any) -> None:
    """Refuse options that would do nothing, for a reason, if there is one.

    Raises:
        ConfigError: One was given.
    """
    if not why:
        return
    found = [f"`{name}`" for name, value in given.items() if value not in (None, False, (), [], {})]
    if found:
        raise ConfigError(f"{why}; give it without {' and '.join(found)}.")


def _alerts(value: Mapping[str, str] | None) -> dict[str, str]:
    rules: Any = {} if value is None else value
    if not isinstance(rules, Mapping) or not all(
        isinstance(each, str) and each.strip() for pair in rules.items() for each in pair
    ):
        raise ConfigError(
            f"`alerts` is {value!r}; give a dict of names and queries, such as "
            "`{'large output': \"role == 'output' and absmax > 1e4\"}`."
        )
    return dict(rules)


def as_name(value: object) -> str:
    """Return a name that rows are written under.

    Raises:
        ConfigError: It is no text, or empty.
    """
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"`name` is {value!r}; give a text to record it under.")
    return printable(value)
