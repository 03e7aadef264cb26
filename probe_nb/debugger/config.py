"""msProbe's config.json -> `Settings`: every key is checked; none is passed over in silence."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from probe_nb import grammar
from probe_nb.debugger import refused
from probe_nb.errors import ConfigError, closest
from probe_nb.terms import Role

TASKS: Final = ("statistics", "tensor", "structure")
LEVELS: Final = ("L0", "L1", "mix", "debug")
RISKS: Final = ("CORE", "FOCUS", "ALL")
SUMMARIES: Final = ("statistics", "md5", "xor")
_LARGEST: Final = 1_000_000
_RANGE: Final = re.compile(r" *[0-9]{1,7} *(- *[0-9]{1,7} *)?")

_DEFAULTS: Final[dict[str, Any]] = {
    "task": "statistics",
    "dump_path": None,
    "rank": [],
    "step": [],
    "level": "L1",
    "async_dump": False,
    "dump_enable": None,
    "extra_info": True,
    "precision": "low",
    "risk_level": "FOCUS",
    "custom_op_namespaces": ["_C_ascend"],
}
_OF_TASK: Final[dict[str, Any]] = {
    "scope": [],
    "list": [],
    "tensor_list": [],
    "data_mode": ["all"],
    "summary_mode": "statistics",
    "slice": [],
}
_SECTIONS: Final = frozenset({*TASKS, *refused.TASKS, "grad_probe"})
PATH: Final = "./dump_path"
"""Where files go if nobody says it: what msProbe's own config.json has."""


@dataclass(frozen=True)
class Settings:
    """What a config.json and the arguments beside it ask for, checked."""

    task: str
    dump_path: str
    level: str
    steps: str | None
    ranks: str | None
    async_dump: bool
    dump_enable: bool | None
    extra_info: bool
    precision: str
    risk_level: str
    custom_op_namespaces: tuple[str, ...]
    scope: tuple[str, ...]
    names: tuple[str, ...]
    tensor_list: tuple[str, ...]
    data_mode: tuple[str, ...]
    summary_mode: str
    slices: tuple[dict[str, int], ...]
    notices: tuple[str, ...] = ()
    wants: Callable[[int], bool] = field(default=lambda _: True, compare=False, repr=False)
    wants_rank: Callable[[int], bool] = field(default=lambda _: True, compare=False, repr=False)

    @property
    def is_enabled(self) -> bool:
        """Tell whether anything is to be dumped now."""
        return self.dump_enable is not False

    def switched(self, *, on: bool) -> Settings:
        """Return the same, switched on or off."""
        return replace(self, dump_enable=on)

    @property
    def keeps_tensors(self) -> bool:
        """Tell whether whole tensors are written."""
        return self.task == "tensor" or bool(self.tensor_list)

    @property
    def roles(self) -> tuple[Role, ...]:
        """What `data_mode` leaves to be recorded."""
        modes = set(self.data_mode)
        every = "all" in modes
        forward = every or "forward" in modes or "backward" not in modes
        backward = every or "backward" in modes or "forward" not in modes
        first = every or "input" in modes or "output" not in modes
        second = every or "output" in modes or "input" not in modes
        wanted: dict[Role, bool] = {
            "input": forward and first,
            "output": forward and second,
            "param": forward and second,
            "grad_output": backward and first,
            "grad_input": backward and second,
            "param_grad": True,
        }
        return tuple(role for role, there in wanted.items() if there)


def read(
    path: object = None,
    *,
    task: object = None,
    dump_path: object = None,
    level: object = None,
    step: object = None,
) -> Settings:
    """Read a config.json; what is given beside it counts for more.

    Raises:
        ConfigError: The file cannot be read, or something in it makes no sense here.
    """
    found = {} if path is None else _content(path)
    given = {"task": task, "dump_path": dump_path, "level": level, "step": step}
    values = _known(found, _DEFAULTS, "config.json", others=_SECTIONS)
    values |= {key: value for key, value in given.items() if value is not None}
    if values["dump_path"] is None and path is None:
        values["dump_path"] = PATH
    section = _section(found, values)
    return _checked(values, section, tuple(_noticed(found, values["task"])))


def _content(path: object) -> dict[str, Any]:
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError(f"`config_path` is {path!r}; give the path of a config.json.")
    try:
        found = json.loads(Path(path).expanduser().read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ConfigError(f"`config_path` names `{path}`, which cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"`{path}` holds {type(found).__name__}; a config.json holds an object.")
    return found


def _known(
    found: Mapping[str, Any],
    defaults: Mapping[str, Any],
    where: str,
    others: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """Return the values of known keys; null says as much as leaving out."""
    for key, value in found.items():
        if key in refused.KEYS and value not in (None, [], {}, ""):
            raise ConfigError(f"`{key}` in {where} is not done here: {refused.KEYS[key]}")
        if key not in defaults and key not in {*others, *refused.SILENT, *refused.KEYS}:
            near = closest(key, [*defaults, *others], n=1) or f" Known: {', '.join(defaults)}."
            raise ConfigError(f"`{key}` in {where} is not known.{near}")
    there = {key: value for key, value in found.items() if key in defaults and value is not None}
    return {**defaults, **there}


def _section(found: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    task = values["task"]
    section = found.get(task) if isinstance(task, str) else None
    if section is None:
        section = {}
    if not isinstance(section, dict):
        raise ConfigError(f"`{task}` in config.json is {section!r}; give an object.")
    return _known(section, _OF_TASK, f"`{task}` of config.json")


def _noticed(found: Mapping[str, Any], task: object) -> list[str]:
    section = found.get(task) if isinstance(task, str) else None
    keys = [*found, *(section if isinstance(section, dict) else ())]
    return [
        f"`{key}` in config.json changes nothing: {refused.SILENT[key]}."
        for key in keys
        if key in refused.SILENT
    ]


def _checked(values: dict[str, Any], section: dict[str, Any], notices: tuple[str, ...]) -> Settings:
    task, level = _task(values["task"]), _level(values["level"])
    if task == "structure" and level not in ("L0", "mix"):
        notices += (f"The task `structure` has no level `{level}`: it was taken as `mix`.",)
        level = "mix"
    if task == "structure" and section["slice"]:
        notices += ("The task `structure` reads no tensor: `slice` cuts none.",)
    _path(values["dump_path"])
    steps, wants = _numbers(values["step"], "step")
    ranks, wants_rank = _numbers(values["rank"], "rank")
    for key in ("async_dump", "extra_info"):
        _truth(values[key], key)
    if values["dump_enable"] is not None:
        _truth(values["dump_enable"], "dump_enable")
    _one_of(values["precision"], ("high", "low"), "precision")
    _one_of(values["risk_level"], RISKS, "risk_level")
    _one_of(section["summary_mode"], SUMMARIES, "summary_mode")
    settings = Settings(
        task=task,
        dump_path=values["dump_path"],
        level=level,
        steps=steps,
        ranks=ranks,
        async_dump=values["async_dump"],
        dump_enable=values["dump_enable"],
        extra_info=values["extra_info"],
        precision=values["precision"],
        risk_level=values["risk_level"],
        custom_op_namespaces=_texts(values["custom_op_namespaces"], "custom_op_namespaces"),
        scope=_scope(section["scope"], level),
        names=_texts(section["list"], "list"),
        tensor_list=_texts(section["tensor_list"], "tensor_list") if task == "statistics" else (),
        data_mode=_data_mode(section["data_mode"]),
        summary_mode=section["summary_mode"],
        slices=_slices(section["slice"]),
        notices=notices,
        wants=wants,
        wants_rank=wants_rank,
    )
    _together(settings)
    return settings


def _together(settings: Settings) -> None:
    """Refuse what msProbe refuses of values that do not go together."""
    if not settings.async_dump:
        return
    if settings.task == "tensor" and settings.level != "debug" and not settings.names:
        raise ConfigError(
            "`async_dump` with the task `tensor` needs names in `list`: every tensor of a step "
            "would have to be held until its end."
        )
    if settings.summary_mode == "md5":
        raise ConfigError("`async_dump` cannot be used with `summary_mode` md5; give one of them.")


def _task(value: object) -> str:
    if isinstance(value, str) and value in refused.TASKS:
        raise ConfigError(f"The task `{value}` is not done here: {refused.TASKS[value]}")
    return _one_of(value, TASKS, "task")


def _level(value: object) -> str:
    if isinstance(value, str) and value in refused.LEVELS:
        raise ConfigError(f"The level `{value}` is not done here: {refused.LEVELS[value]}")
    return _one_of(value, LEVELS, "level")


def _one_of(value: Any, words: tuple[str, ...], key: str) -> str:
    if not isinstance(value, str) or value not in words:
        raise ConfigError(f"`{key}` is {value!r}; give {', '.join(words[:-1])} or {words[-1]}.")
    return value


def _truth(value: object, key: str) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"`{key}` is {value!r}; give true or false.")


def _path(value: object) -> None:
    if value is None:
        raise ConfigError("`dump_path` is missing: name the folder that the files go to.")
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"`dump_path` is {value!r}; give the name of a folder.")


def _texts(value: Any, key: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ConfigError(f"`{key}` is {value!r}; give a list of texts.")
    return tuple(value)


def _numbers(value: Any, key: str) -> tuple[str | None, Callable[[int], bool]]:
    """Read a list such as `[0, "3", "4-6"]`; an empty one means all."""
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f'`{key}` is {value!r}; give a list such as `[0, "4-6"]`.')
    if not value:
        return None, lambda _: True
    for each in value:
        text = str(each) if type(each) in (int, str) else ""
        numbers = text.replace(" ", "").split("-") if _RANGE.fullmatch(text) else []
        if not numbers or any(int(number) > _LARGEST for number in numbers):
            raise ConfigError(
                f"`{key}` has {each!r}; give numbers from 0 to {_LARGEST:,} and ranges such as "
                '"4-6".'
            )
    text = ",".join(str(each).replace(" ", "") for each in value)
    return text, grammar.numbers_in(text, key)


def _data_mode(value: Any) -> tuple[str, ...]:
    words = ("all", "input", "output", "forward", "backward")
    modes = _texts(value, "data_mode")
    for mode in modes:
        _one_of(mode, words, "data_mode")
    if "all" in modes and len(modes) > 1:
        raise ConfigError(f"`data_mode` is {value!r}; `all` stands alone.")
    return modes or ("all",)


_OF_API: Final = re.compile(r"[^.]+\..*\.\d+\.(forward|backward)")
_OF_MODULE: Final = re.compile(r"(Cell|Module)\..*\.(forward|backward)\.\d+")
_EXAMPLES: Final = {
    "L0": "`Module.fc1.Linear.forward.0`",
    "L1": "`Functional.relu.0.forward`",
    "mix": "`Module.fc1.Linear.forward.0` or `Functional.relu.0.forward`",
}


def _scope(value: Any, level: str) -> tuple[str, ...]:
    names = _texts(value, "scope")
    if not names or level == "debug":
        return ()
    if len(names) != 2:  # noqa: PLR2004 - from and to
        raise ConfigError(f"`scope` is {value!r}; give two names, the first and the last call.")
    for name in names:
        is_module = _OF_MODULE.fullmatch(name) is not None
        fits = (level != "L1" and is_module) or (
            level != "L0" and not is_module and _OF_API.fullmatch(name) is not None
        )
        if not fits:
            raise ConfigError(
                f"`scope` has {name!r}; at level {level} give the whole name of a call, such as "
                f"{_EXAMPLES[level]}."
            )
    return names


def _slices(value: Any) -> tuple[dict[str, int], ...]:
    """Read a list of `{"dim": 0, "size": 8, "begin": 0, "end": 4}`; all but `dim` may be absent."""
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise ConfigError(
            f'`slice` is {value!r}; give a list of `{{"dim": 0, "begin": 0, "end": 4}}`.'
        )
    for each in value:
        for key, number in each.items():
            if key not in ("dim", "size", "begin", "end"):
                raise ConfigError(
                    f"`{key}` in `slice` is not known; it takes dim, size, begin, end."
                )
            if type(number) is not int or (key in ("dim", "size") and number < 0):
                raise ConfigError(f"`{key}` in `slice` is {number!r}; give a whole number.")
    return tuple(value)
