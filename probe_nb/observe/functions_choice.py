"""`apis=`: which functions are recorded, as the user says it."""

from __future__ import annotations

import fnmatch
import importlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from probe_nb.errors import ConfigError, closest
from probe_nb.observe.functions_lists import LEVELS, is_question, level_of
from probe_nb.observe.functions_names import LISTED, PREFIXES, Names

_SECTIONS: Final = {
    "functional": "Functional",
    "tensor": "Tensor",
    "torch": "Torch",
    "_VF": "VF",
    "aten": "Aten",
    "distributed": "Distributed",
    "torch_npu": "NPU",
    "npu_distributed": "Distributed",
    "mindspeed": "MindSpeed",
}
"""The sections of msProbe's `support_wrap_ops.yaml`, and the prefix of the names there."""

_DEFAULT: Final = "focus"


class Choice:
    """What was chosen: a level, names that are added, names that are taken out.

    Words are looked at in order. `focus` takes in a level, `Tensor.view` or `Torch.*` a name or
    names, `!Functional.dropout` takes out again. What begins with `!` begins with `focus`.
    """

    def __init__(
        self, words: Sequence[str], *, option: str = "apis", default: str | None = _DEFAULT
    ) -> None:
        """Read the words; without any, all is chosen that `default` is.

        Raises:
            ConfigError: A file cannot be read, or a word is no level and no function has its name.
        """
        self._parts: list[tuple[bool, str | frozenset[str]]] = []
        self._names = Names()
        if default is not None and (not words or words[0].startswith("!")):
            words = (default, *words)
        for word in words:
            added, name = not word.startswith("!"), word.removeprefix("!").strip()
            self._parts.append((added, self._read(word, name, option)))

    def _read(self, word: str, name: str, option: str) -> str | frozenset[str]:
        """Return what a word stands for: a level, a pattern, or names."""
        if name in LEVELS:
            return name
        if _is_file(name):
            found = (self._names.own(*each) for each in _in_file(name, option))
            return frozenset(map(".".join, found))
        prefix, dot, rest = name.partition(".")
        if not dot and "*" not in name:
            raise ConfigError(
                f"`{option}` has `{word}`, which is no level ({', '.join(LEVELS)}) and no name; a "
                "name has a prefix, such as `Functional.relu` or `Tensor.*`, and a file ends "
                f"with `.yaml`.{closest(name, LEVELS, n=1)}"
            )
        if set(name) & set("*?["):
            known = prefix not in LISTED or bool(fnmatch.filter(self._names.all(), name))
            own = name
        else:
            own = ".".join(self._names.own(prefix, rest))
            known = prefix not in LISTED or own in self._names.all()
        near = closest(prefix, PREFIXES, n=1) if dot and prefix not in PREFIXES else ""
        if not known or (near and "*" not in prefix):
            raise ConfigError(_unknown(word, name, option, self._nearest(name) or near))
        return own

    def _nearest(self, name: str) -> str:
        return closest(name, self._names.all())

    def wants(self, prefix: str, name: str) -> bool:
        """Tell whether a function is recorded."""
        wanted = False
        for added, part in self._parts:
            if wanted is not added and _covers(part, prefix, name):
                wanted = added
        return wanted


def _covers(part: str | frozenset[str], prefix: str, name: str) -> bool:
    full = f"{prefix}.{name}"
    if isinstance(part, frozenset):
        return full in part
    if part in LEVELS:
        return LEVELS.index(level_of(prefix, name)) <= LEVELS.index(part)
    return fnmatch.fnmatchcase(full, part)


def _is_file(word: str) -> bool:
    return word.endswith((".yaml", ".yml"))


def _unknown(word: str, name: str, option: str, near: str) -> str:
    """Say that no function is recorded under a name."""
    if is_question(name.partition(".")[2]):
        return f"`{option}` has `{word}`, which only asks or keeps books: it is never recorded."
    return f"`{option}` has `{word}`, and no function of torch has that name.{near}"


def _in_file(file: str, option: str) -> list[tuple[str, str]]:
    """Read a file of msProbe's: sections with lists of names.

    Raises:
        ConfigError: There is no PyYAML, no such file, or it is another file.
    """
    try:
        yaml: Any = importlib.import_module("yaml")  # of the user's: only such a file needs it
    except ImportError:
        raise ConfigError(
            f"`{option}` names the file `{file}`, and PyYAML is not there to read it: "
            "`pip install pyyaml`, or give the names as a list."
        ) from None
    try:
        read: Any = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, RecursionError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(
            f"`{option}` names the file `{file}`, which cannot be read: {error}"
        ) from None
    if not isinstance(read, dict) or not all(_is_list(each) for each in read.values()):
        raise ConfigError(
            f"`{option}` names the file `{file}`; it should have sections such as `functional` and "
            "`tensor`, each with a list of names."
        )
    return [
        (_SECTIONS.get(str(section), str(section)), str(name))
        for section, names in read.items()
        for name in names or ()
    ]


def _is_list(value: Any) -> bool:
    return value is None or (
        isinstance(value, Iterable)
        and not isinstance(value, str | dict)
        and all(isinstance(each, str) for each in value)
    )
