"""`apis=`: which functions are recorded, as the user says it."""

from __future__ import annotations

import fnmatch
import importlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from probe_nb.errors import ConfigError
from probe_nb.observe.functions_lists import LEVELS, level_of

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

    def __init__(self, words: Sequence[str]) -> None:
        """Read the words.

        Raises:
            ConfigError: A file cannot be read, or a word is no level and has no prefix.
        """
        self._parts: list[tuple[bool, str | frozenset[str]]] = []
        if not words or words[0].startswith("!"):
            words = (_DEFAULT, *words)
        for word in words:
            added, name = not word.startswith("!"), word.removeprefix("!").strip()
            self._parts.append((added, _names(name) if _is_file(name) else name))
            if name not in LEVELS and not _is_file(name) and "." not in name and "*" not in name:
                raise ConfigError(
                    f"`apis` has `{word}`, which is no level ({', '.join(LEVELS)}) and no name; a "
                    "name has a prefix, such as `Functional.relu` or `Tensor.*`, and a file ends "
                    "with `.yaml`."
                )

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


def _names(file: str) -> frozenset[str]:
    """Read a file of msProbe's: sections with lists of names.

    Raises:
        ConfigError: There is no PyYAML, no such file, or it is another file.
    """
    try:
        yaml: Any = importlib.import_module("yaml")  # of the user's: only such a file needs it
    except ImportError:
        raise ConfigError(
            f"`apis` names the file `{file}`, and PyYAML is not there to read it: "
            "`pip install pyyaml`, or give the names as a list."
        ) from None
    try:
        read: Any = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"`apis` names the file `{file}`, which cannot be read: {error}"
        ) from None
    if not isinstance(read, dict) or not all(_is_list(each) for each in read.values()):
        raise ConfigError(
            f"`apis` names the file `{file}`; it should have sections such as `functional` and "
            "`tensor`, each with a list of names."
        )
    return frozenset(
        f"{_SECTIONS.get(section, section)}.{name.rpartition('.')[2]}"
        for section, names in read.items()
        for name in names or ()
    )


def _is_list(value: Any) -> bool:
    return value is None or (
        isinstance(value, Iterable)
        and not isinstance(value, str | dict)
        and all(isinstance(each, str) for each in value)
    )
