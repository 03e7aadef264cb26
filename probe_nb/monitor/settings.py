"""The configuration of msProbe's training monitor -> `Settings`: every key is checked.

Nothing is passed over in silence: a key that makes no sense here is refused with the reason.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from probe_nb.errors import ConfigError, closest
from probe_nb.exports.layout import FEATURES, Layout
from probe_nb.exports.lines import OPS
from probe_nb.monitor.alerts import Rule, rules_in

LARGEST: Final = 10**8
"""Steps that are collected unless fewer are asked for, as there."""

_FLAGS: Final = (
    *("all_xy", "xy_distribution", "forward_only", "backward_only", "wg_distribution"),
    *("mv_distribution", "param_distribution", "ur_distribution", "mg_direction"),
    *("mg_distribution", "monitor_mbs_grad", "print_struct", "stack_info", "squash_name"),
    *("recording_l2_features", "dynamic_on"),
)
_NUMBERS: Final = {
    "start_step": (0, 0),
    "collect_times": (0, LARGEST),
    "step_interval": (1, 1),
    "step_count_per_record": (1, 1),
    "micro_batches": (1, 1),
    "ndigits": (1, 6),
}
"""The least that each may be, and what it is where it is not given."""

_OTHER: Final = (
    *("targets", "l2_targets", "sa_order", "ops", "eps", "module_ranks", "append_output"),
    *("alert", "format", "cc_distribution"),
)
KEYS: Final = (*_FLAGS, *_NUMBERS, *_OTHER)
_ORDERS: Final = {"s,b,h,d": "sbhd", "b,s,h,d": "bshd"}
_DIGITS: Final = 20
_EPS: Final = 1e-8
_ENDS: Final = 2

_FORMATS: Final = ("csv", "tensorboard")


@dataclass(frozen=True)
class Settings:
    """What a configuration asks for."""

    flags: frozenset[str]
    numbers: dict[str, int]
    ops: tuple[str, ...]
    eps: float
    targets: tuple[str, ...]
    features: dict[str, tuple[str, ...]]
    order: str
    ranks: tuple[int, ...]
    append: tuple[str, str] | None
    rules: tuple[Rule, ...]
    dumps_alerts: bool
    format: str
    source: Path | None = field(default=None, compare=False)

    def asks(self, flag: str) -> bool:
        """Tell whether a switch is on."""
        return flag in self.flags

    def wants(self, step: int) -> bool:
        """Tell whether a step is collected."""
        since = step - self.numbers["start_step"]
        interval = self.numbers["step_interval"]
        inside = since < interval * self.numbers["collect_times"]
        return since >= 0 and since % interval == 0 and inside

    def is_done_after(self, step: int) -> bool:
        """Tell whether nothing is collected any more behind a step."""
        last = self.numbers["start_step"]
        last += self.numbers["step_interval"] * (self.numbers["collect_times"] - 1)
        return step >= last

    @property
    def watches_parameters(self) -> bool:
        """Tell whether anything of parameters is asked for."""
        names = ("wg", "mv", "param", "ur")
        return any(f"{name}_distribution" in self.flags for name in names) or self.asks(
            "mg_direction"
        )

    @property
    def all_modules(self) -> bool:
        """Tell whether the activations of every module are asked for."""
        return not self.targets or self.asks("all_xy")

    def layout(self, *, before_reduction: bool = False) -> Layout:
        """Return what is written; `before_reduction`: see `Layout`."""
        asked = {
            "actv": self.asks("xy_distribution") and not self.asks("backward_only"),
            "actv_grad": self.asks("xy_distribution") and not self.asks("forward_only"),
            **dict.fromkeys(("grad_unreduced", "grad_reduced"), self.asks("wg_distribution")),
            **dict.fromkeys(("exp_avg", "exp_avg_sq"), self.asks("mv_distribution")),
            **dict.fromkeys(("param_origin", "param_updated"), self.asks("param_distribution")),
            "update": self.asks("ur_distribution"),
            "other": self.asks("mg_direction"),
            **{name: name in self.features for name in FEATURES},
        }
        return Layout(
            ops=self.ops,
            eps=self.eps,
            tables=tuple(name for name, wanted in asked.items() if wanted),
            targets=self.targets,
            all_modules=self.all_modules,
            squash_name=self.asks("squash_name"),
            every_gradient=self.asks("monitor_mbs_grad"),
            before_reduction=before_reduction,
        )


def micro_batches(value: object, option: str) -> int:
    """Return how many backwards make a step.

    Raises:
        ConfigError: It is no number, or less than one.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"`{option}` is {value!r}; give how many backwards make a step.")
    return value


def read(config: Any) -> Settings:
    """Check a configuration, given as a dict or as the path of its file.

    Raises:
        ConfigError: A key is unknown, has a value that makes no sense, or is not for here.
        OSError: The file cannot be read.
    """
    source = None if isinstance(config, Mapping) else Path(config)
    config = loaded(config)
    for key in config:
        if key not in KEYS:
            near = closest(str(key), KEYS)
            raise ConfigError(f"`{key}` is no key of the monitor's configuration.{near}")
    return _settings(dict(config), source)


def loaded(config: Any) -> Mapping[str, Any]:
    """Return a configuration, read from its file where it is given as a path.

    Raises:
        ConfigError: It is no JSON object.
        OSError: The file cannot be read.
    """
    if not isinstance(config, Mapping):
        path = Path(config)
        try:
            config = json.loads(path.read_text(encoding="utf-8-sig"))
        except (RecursionError, ValueError) as error:
            raise ConfigError(f"`{path}` is not JSON: {error}") from None
    if not isinstance(config, Mapping):
        raise ConfigError("The configuration of a monitor is a JSON object of keys and values.")
    return config


def _settings(config: dict[str, Any], source: Path | None) -> Settings:
    flags = frozenset(key for key in _FLAGS if _flag(config, key))
    if "mg_distribution" in flags:
        flags |= {"mg_direction"}
    if {"forward_only", "backward_only"} <= flags:
        raise ConfigError("`forward_only` and `backward_only` leave nothing; give one of them.")
    _refuse_communication(config.get("cc_distribution", {}))
    alert = config.get("alert", {})
    rules, dumps = rules_in(alert)
    return Settings(
        flags=flags,
        numbers={key: _number(config, key, *about) for key, about in _NUMBERS.items()},
        ops=_ops(config.get("ops", [])),
        eps=_eps(config.get("eps", _EPS)),
        targets=_targets(config.get("targets", {})),
        features=_features(config, flags),
        order=_order(config.get("sa_order", "s,b,h,d")),
        ranks=_ranks(config.get("module_ranks", [])),
        append=_append(config.get("append_output", [])),
        rules=rules,
        dumps_alerts=dumps,
        format=_format(config.get("format", "csv")),
        source=source,
    )


def _flag(config: Mapping[str, Any], key: str) -> bool:
    value = config.get(key, False)
    if not isinstance(value, bool):
        raise ConfigError(f"`{key}` is {value!r}; give true or false.")
    return value


def _number(config: Mapping[str, Any], key: str, least: int, default: int) -> int:
    value = config.get(key)
    if value is None:
        return default
    if type(value) is not int or value < least:
        raise ConfigError(f"`{key}` is {value!r}; give a whole number from {least} on.")
    if key == "ndigits" and value > _DIGITS:
        raise ConfigError(f"`ndigits` is {value!r}; a double has no more than {_DIGITS} digits.")
    return value


def _ops(value: Any) -> tuple[str, ...]:
    """Return the quantities in their order; shape and dtype are always written, as there."""
    _listed("ops", value, str)
    for op in value:
        if op not in OPS:
            near = closest(op, OPS)
            raise ConfigError(f"`{op}` is no quantity.{near} Known: {', '.join(OPS)}.")
    ops = tuple(dict.fromkeys(value)) or (OPS[0],)
    return (*ops, *(op for op in ("shape", "dtype") if op not in ops))


def _eps(value: Any) -> float:
    if not isinstance(value, float) or not 0 < value < math.inf:
        raise ConfigError(f"`eps` is {value!r}; give a number above 0, such as 1e-8.")
    return value


def _targets(value: Any) -> tuple[str, ...]:
    if not isinstance(value, Mapping) or not all(isinstance(v, Mapping) for v in value.values()):
        raise ConfigError(
            f"`targets` is {value!r}; give an object with the modules as keys, such as "
            '`{"fc1": {}, "layers.0": {}}`; `{}` takes all.'
        )
    return tuple(key for key in value if key)


def _features(config: Mapping[str, Any], flags: frozenset[str]) -> dict[str, tuple[str, ...]]:
    targets = config.get("l2_targets", {})
    if not isinstance(targets, Mapping):
        raise ConfigError(f"`l2_targets` is {targets!r}; give an object with hooks as keys.")
    for hook, modules in targets.items():
        if hook not in FEATURES:
            raise ConfigError(
                f"`{hook}` is no hook of `l2_targets`.{closest(hook, FEATURES)} "
                f"Known: {', '.join(FEATURES)}."
            )
        _listed(f"l2_targets[{hook!r}]", modules, str)
        if not modules and hook != "linear_hook":
            raise ConfigError(f"`{hook}` is of the modules that it names, and names none.")
    on = "recording_l2_features" in flags
    return {hook: tuple(modules) for hook, modules in targets.items()} if on else {}


def _order(value: Any) -> str:
    order = _ORDERS.get(value.replace(" ", "")) if isinstance(value, str) else None
    if order is None:
        raise ConfigError(f"`sa_order` is {value!r}; give one of {', '.join(_ORDERS)}.")
    return order


def _ranks(value: Any) -> tuple[int, ...]:
    _listed("module_ranks", value, int)
    return tuple(value)


def _append(value: Any) -> tuple[str, str] | None:
    _listed("append_output", value, str)
    if value and len(value) != _ENDS:
        raise ConfigError(
            f"`append_output` is {value!r}; give the first and the last moment of the folders "
            'that are appended to, such as `["Dec03_21-34-40", "Dec03_21-34-41"]`.'
        )
    return (value[0], value[1]) if value else None


def _format(value: Any) -> str:
    if value == "api":
        raise ConfigError("`format` `api` is gone from msProbe too; the numbers are in `run.df`.")
    if value not in _FORMATS:
        raise ConfigError(f"`format` is {value!r}; give `csv` or `tensorboard`.")
    return str(value)


def _refuse_communication(value: Any) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError(f"`cc_distribution` is {value!r}; give an object.")
    if value.get("enable"):
        raise ConfigError(
            "`cc_distribution` replaces functions of `torch.distributed`, which is not done here. "
            'Communication is recorded by `probe.watch(level="mix")`, as calls of functions.'
        )


def _listed(name: str, value: Any, kind: type) -> None:
    if not isinstance(value, list) or not all(type(each) is kind for each in value):
        word = "names" if kind is str else "whole numbers"
        raise ConfigError(f"`{name}` is {value!r}; give a list of {word}.")
