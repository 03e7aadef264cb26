"""How msProbe spells the names of calls and of the tensors in them: nowhere else is this known.

    Module.{name}.{Class}.forward|backward.{n}      a module; `Cell` in MindSpore
    Module.{name}.{Class}.parameters_grad[.{k}]     gradients of its parameters; old ones have no k
    {Prefix}.{api}.{n}.forward|backward             a function
    {name}[_grad].{n}.debug                         a value that `save` was given, and its gradient

With a list of models its index stands before a module's name. A tensor in a call is
`{key}.{input|kwargs|output|parameters}.{leaf}`, in a saved value or a gradient `{key}.{leaf}`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["module", "parameters_grad", "api", "debug"]
Way = Literal["forward", "backward"]
Part = Literal["input", "kwargs", "output", "parameters", ""]

MODULE: Final = "Module"
CELL: Final = "Cell"
PREFIXES: Final = frozenset(
    {
        *("Functional", "Tensor", "Torch", "VF", "Aten", "NPU", "Distributed", "Triton"),
        *("Primitive", "Mint", "MintFunctional", "MintDistributed", "Jit"),
    }
)
"""Prefixes of functions that msProbe knows by itself; a registered one may be any word."""

_GRAD: Final = "_grad"
_NUMBER: Final = "(0|[1-9][0-9]{0,8})"
_MODULE: Final = re.compile(
    rf"(Module|Cell)\.(?:(.*)\.)?([^.]+)\.(?:(forward|backward)\.{_NUMBER}"
    rf"|(parameters_grad)(?:\.{_NUMBER})?)",
    re.DOTALL,
)
_API: Final = re.compile(rf"([^.]+)\.(.+)\.{_NUMBER}\.(forward|backward)", re.DOTALL)
_DEBUG: Final = re.compile(rf"(.+)\.{_NUMBER}\.debug", re.DOTALL)
_INDEX: Final = re.compile(rf"{_NUMBER}(?:\.(.*))?", re.DOTALL)


@dataclass(frozen=True)
class Key:
    """The name of one entry of a dump.

    Attributes:
        kind: What it is of.
        name: Path of the module, name of the function without its prefix, or the name that `save`
            was given; any of them may have dots inside.
        prefix: `Module` or `Cell`, the prefix of a function, "" of a saved value.
        type: Class of the module, else "".
        direction: Forward or backward; gradients of parameters are backward.
        call: The number of the call. That of `parameters_grad` counts how often one was added, and
            is None in old dumps.
        model: The index of the model, where a list of models was given.
    """

    kind: Kind
    name: str
    prefix: str = ""
    type: str = ""
    direction: Way = "forward"
    call: int | None = 0
    model: int | None = None


def parse(text: str, *, listed: bool = False) -> Key | None:
    """Return what a name of msProbe's says, None if it is none.

    Args:
        text: The name.
        listed: A list of models was given, so names of modules begin with an index. The name
            itself does not tell: `Module.0.1.Linear.forward.0` may be either.

    >>> parse("Module.layers.0.fc1.Linear.forward.1")
    Key(kind='module', name='layers.0.fc1', prefix='Module', type='Linear', direction='forward', \
call=1, model=None)
    """
    if found := _DEBUG.fullmatch(text):
        name, call = found.groups()
        bare = name.removesuffix(_GRAD)
        way: Way = "backward" if bare != name and bare else "forward"
        return Key("debug", bare or name, direction=way, call=int(call))
    if text.startswith((f"{MODULE}.", f"{CELL}.")):
        return _module(text, listed=listed)
    if found := _API.fullmatch(text):
        prefix, name, call, direction = found.groups()
        return Key("api", name, prefix, direction=_way(direction), call=int(call))
    return None


def _module(text: str, *, listed: bool) -> Key | None:
    found = _MODULE.fullmatch(text)
    if found is None:
        return None
    prefix, name, kind, direction, call, grads, count = found.groups()
    model, name = None, name or ""
    if listed:
        index = _INDEX.fullmatch(name)
        if index is None:
            return None
        model, name = int(index[1]), index[2] or ""
    if grads:
        number = None if count is None else int(count)
        return Key("parameters_grad", name, prefix, kind, "backward", number, model)
    return Key("module", name, prefix, kind, _way(direction), int(call), model)


def _way(word: str) -> Way:
    return "backward" if word == "backward" else "forward"


def spell(key: Key) -> str:
    """Return the name of an entry as msProbe writes it.

    >>> spell(Key("api", "linear", "Functional", call=2, direction="backward"))
    'Functional.linear.2.backward'
    """
    if key.kind == "debug":
        return f"{key.name}{_GRAD if key.direction == 'backward' else ''}.{key.call}.debug"
    if key.kind == "api":
        return f"{key.prefix}.{key.name}.{key.call}.{key.direction}"
    where = [key.prefix, *([] if key.model is None else [str(key.model)])]
    where += [key.name] if key.name else []
    where += [key.type, "parameters_grad" if key.kind == "parameters_grad" else key.direction]
    return ".".join([*where, *([] if key.call is None else [str(key.call)])])


def tensor_name(key: Key, part: Part, leaf: str) -> str:
    """Return the name of a tensor, which is that of its file without the suffix.

    >>> tensor_name(Key("debug", "loss", call=0), "", "0.x")
    'loss.0.debug.0.x'
    """
    return ".".join(word for word in (spell(key), part, leaf) if word)
