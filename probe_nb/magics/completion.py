"""Tab completion on the line of a magic: options, roles, and the variables that hold a model."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from IPython.core.completer import (
    CompletionContext,
    SimpleCompletion,
    SimpleMatcherResult,
    context_matcher,
)
from IPython.core.interactiveshell import InteractiveShell

from probe_nb.magics.comparing import COMPARED
from probe_nb.magics.line import OPTIONS
from probe_nb.magics.saving import SAVED
from probe_nb.terms import MODULE_ROLES

_LINE: Final = re.compile(
    r"\s*(?P<magic>%probe_start|%%probe|%probe_save|%probe_compare)\s(?P<typed>.*)", re.DOTALL
)
_FLAGS: Final = ("--no-live",)
_VARIABLES: Final = {
    "--optimizer": ("torch.optim", "Optimizer"),
    "--scaler": ("torch.amp", "GradScaler"),
}


def matcher(shell: InteractiveShell) -> Callable[[CompletionContext], SimpleMatcherResult]:
    """Return the matcher to append to `shell.Completer.custom_matchers`."""

    @context_matcher(identifier="probe_nb.completion")  # type: ignore[untyped-decorator]
    def complete(context: CompletionContext) -> SimpleMatcherResult:
        found = _LINE.fullmatch(context.text_until_cursor)
        look = _LOOKS.get(found["magic"], candidates) if found else candidates
        names = look(found["typed"], shell.user_ns) if found else []
        fits = [SimpleCompletion(text=name) for name in names if name.startswith(context.token)]
        return SimpleMatcherResult(completions=fits, suppress=bool(fits))

    return complete  # type: ignore[no-any-return]


def candidates(typed: str, variables: Mapping[str, Any]) -> list[str]:
    """Return all words that can stand where the cursor is, after the text typed so far."""
    before = typed.split()
    word = "" if not before or typed[-1].isspace() else before.pop()
    option = before[-1] if before else ""
    if word.startswith("--") and "=" in word:
        option, word = word.split("=", 1)
    elif word.startswith("-"):
        return list(OPTIONS)
    if option in OPTIONS and option not in _FLAGS:
        return _values(option, variables)
    if not _model_comes(before):
        return list(OPTIONS)
    *parents, name = word.lstrip("([{").split(".")
    if name and not name.isidentifier():
        return []  # inside an expression, which IPython completes
    return _submodules(variables, parents)


def _saved(typed: str, variables: Mapping[str, Any]) -> list[str]:
    """Return the same for `%probe_save`: the variables that hold a tensor, then the options."""
    before = typed.split()
    word = "" if not before or typed[-1].isspace() else before.pop()
    if before[-1:] == ["--name"] or word.startswith("--name="):
        return []
    names = " ".join(before).partition("--name ")[2].split()[:1]
    if word.startswith("-") or any(e not in names for e in before if not e.startswith("--")):
        return list(SAVED)
    return _holding(variables, "torch", "Tensor")


def _compared(typed: str, variables: Mapping[str, Any]) -> list[str]:
    """Return the same for `%probe_compare`: the variables that hold a run, then the options."""
    before = typed.split()
    word = "" if not before or typed[-1].isspace() else before.pop()
    if word.startswith("-"):
        return list(COMPARED)
    if before and before[-1] in COMPARED and before[-1] != "--fuzzy":
        return []
    return _holding(variables, "probe_nb.run", "Run")


_LOOKS: Final[dict[str, Callable[[str, Mapping[str, Any]], list[str]]]] = {
    "%probe_save": _saved,
    "%probe_compare": _compared,
}


def _values(option: str, variables: Mapping[str, Any]) -> list[str]:
    if option == "--roles":
        return list(MODULE_ROLES)
    return _holding(variables, *_VARIABLES[option]) if option in _VARIABLES else []


def _model_comes(before: list[str]) -> bool:
    """Tell whether the model has still to be typed: there is none, or a comma after it."""
    last, is_value = "", False
    for word in before:
        if is_value:
            is_value = False
        elif word.startswith("--"):
            is_value = word not in _FLAGS and "=" not in word
        else:
            last = word
    return not last or last.endswith(",")


def _holding(variables: Mapping[str, Any], room: str, kind: str) -> list[str]:
    """Return the variables that hold such an object, or a collection with one in it."""
    wanted = getattr(sys.modules.get(room), kind, None)
    if wanted is None:  # torch is not loaded, so there is none
        return []
    return [
        name
        for name, value in list(variables.items())
        if not name.startswith("_") and any(isinstance(each, wanted) for each in _inside(value))
    ]


def _submodules(variables: Mapping[str, Any], parents: list[str]) -> list[str]:
    """Return `model.encoder` and so on; attributes are looked up without running any code."""
    held: Mapping[str, Any] = variables
    for name in parents:
        space = getattr(held.get(name), "__dict__", {})
        held = {**space, **space.get("_modules", {})}
    names = [name for name in _holding(held, "torch.nn", "Module") if name.isidentifier()]
    return [".".join([*parents, name]) for name in names]


def _inside(value: Any) -> Iterable[Any]:
    if type(value) in (list, tuple):
        return value[:100]  # type: ignore[no-any-return]
    if type(value) is dict:
        return list(value.values())[:100]
    return (value,)
