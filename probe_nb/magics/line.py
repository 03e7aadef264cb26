"""The line after a magic: which options there are, how it is split, checked and evaluated.

`ARGUMENTS` is the one table of options; the parser, the help that `?` shows, the error messages
and the tab completion are made from it.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument, magic_arguments

from probe_nb.config import CHECKSUMS, LEVELS, MEMORY, MODES, NEEDS_MODEL, STOPS
from probe_nb.errors import closest
from probe_nb.terms import MODULE_ROLES

_Magic = TypeVar("_Magic", bound=Callable[..., Any])
Options = Mapping[str, dict[str, Any]]


class Takes(Protocol):
    """Gives a magic its arguments."""

    def __call__(self, magic: _Magic, /) -> _Magic:
        """Return the magic."""


_PIECE: Final = re.compile(
    r"""(?P<quoted>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|(?P<space>\s+)|(?P<one>.)""", re.DOTALL
)
_SHELL: Final = ("In", "Out", "exit", "get_ipython", "open", "quit")  # of nobody's making
_BRACKETS: Final = {"(": ")", "[": "]", "{": "}"}


def unquoted(word: str) -> str:
    """Return the text between quotes, or a word without quotes as it is.

    >>> unquoted('"layers.*"'), unquoted("layers.*")
    ('layers.*', 'layers.*')
    """
    if word[:1] not in ("'", '"'):
        return word
    try:
        return str(ast.literal_eval(word))
    except (SyntaxError, ValueError):
        raise argparse.ArgumentTypeError(f"{word!r} is no text in quotes") from None


def _whole(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"`{word}` is not a whole number") from None


_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "--optimizer": {
        "action": "append",
        "metavar": "EXPR",
        "help": "The optimizer that ends a step; give the option once for each of several, in the "
        "order in which they step.",
    },
    "--scaler": {
        "metavar": "EXPR",
        "help": "The GradScaler of mixed precision; a step then ends with its update.",
    },
    "--select": {
        "action": "append",
        "type": unquoted,
        "metavar": "PATTERN",
        "help": "Modules to watch: a path such as layers.*, type:Linear, or !head.* to leave "
        "some out; several with commas, or give the option again.",
    },
    "--level": {
        "type": unquoted,
        "choices": tuple(LEVELS),
        "default": "module",
        "metavar": "LEVEL",
        "help": "Calls of modules (module, L0), of functions of torch (api, L1), of both (mix), or "
        "only what is saved by name (debug).",
    },
    "--apis": {
        "action": "append",
        "type": unquoted,
        "metavar": "NAMES",
        "help": "Functions to record: core, focus or all, and names such as Tensor.add or "
        "!Functional.dropout.",
    },
    "--roles": {
        "action": "append",
        "type": unquoted,
        "metavar": "ROLES",
        "help": f"What to record, with commas between: {', '.join(MODULE_ROLES)}.",
    },
    "--keep": {
        "action": "append",
        "type": unquoted,
        "metavar": "PATTERN",
        "help": "Modules whose inputs are kept whole, chosen as by --select; run.tensor gives "
        "them.",
    },
    "--steps": {
        "type": unquoted,
        "metavar": "STEPS",
        "help": "Steps to record: 5, 10-20 (both included), ::100, or several with commas.",
    },
    "--token-range": {
        "type": unquoted,
        "metavar": "FIRST,LAST",
        "help": "Forwards of the model to record, counted from 0, both included: 2,5.",
    },
    "--first-step": {
        "type": _whole,
        "default": 0,
        "metavar": "N",
        "help": "The number of the first step.",
    },
    "--micro-batches": {
        "type": _whole,
        "metavar": "N",
        "help": "How many forwards make one step, whatever else happens.",
    },
    "--compiled": {
        "type": unquoted,
        "choices": ("stay", "eager"),
        "default": "stay",
        "metavar": "HOW",
        "help": "What torch.compile made: stay compiled, or run it eager while this watches.",
    },
    "--recompute": {
        "action": "store_true",
        "help": "Record what activation checkpointing repeats as well, in rows marked recompute.",
    },
    "--stop-on": {
        "type": unquoted,
        "choices": STOPS,
        "metavar": "WHAT",
        "help": "nonfinite: raise NonFiniteError at the module where the first NaN or Inf is born.",
    },
    "--scope": {
        "type": unquoted,
        "metavar": "FROM,TO",
        "help": "The first and the last call that are recorded in a step: layers.0,layers.3.",
    },
    "--names": {
        "action": "append",
        "type": unquoted,
        "metavar": "PARTS",
        "help": "Record calls whose name has one of these in it: layers.0,Functional.softmax.",
    },
    "--slices": {
        "type": unquoted,
        "metavar": "CUTS",
        "help": "Measure a part of each tensor, dim:begin:end: 1:0:16.",
    },
    "--when": {
        "type": unquoted,
        "choices": MODES,
        "metavar": "MODE",
        "help": "Record modules in training mode (train) or in evaluation mode (eval) alone.",
    },
    "--ranks": {
        "type": unquoted,
        "metavar": "RANKS",
        "help": "Processes of a distributed job that record, written as steps are.",
    },
    "--forward-only": {
        "action": "store_true",
        "help": "Record nothing of the backward and of the optimizer.",
    },
    "--backward-only": {"action": "store_true", "help": "Record gradients alone."},
    "--stacks": {
        "action": "store_true",
        "help": "Keep from where in your code each module was called; run.calls() shows it.",
    },
    "--structure": {
        "action": "store_true",
        "help": "Record classes, shapes and dtypes alone; run.structure() shows the tree.",
    },
    "--values": {
        "action": "store_true",
        "help": "Record arguments that are no tensors too; run.values() lists them.",
    },
    "--checksum": {
        "type": unquoted,
        "choices": CHECKSUMS,
        "metavar": "KIND",
        "help": "Take a checksum of each tensor's bytes: crc32, or xor.",
    },
    "--memory": {
        "type": unquoted,
        "default": MEMORY,
        "metavar": "AMOUNT",
        "help": "What the records may take, 1GiB unless you say 512MiB, 2GB or none for no limit; "
        "older ones are moved to disk.",
    },
    "--name": {"type": unquoted, "metavar": "NAME", "help": "A name for the run."},
    "--baseline": {
        "metavar": "RUN",
        "help": "Compare with this run, or the file of a saved one, while it runs.",
    },
    "--no-live": {"action": "store_true", "help": "Show no live view while it runs."},
}
_MODEL: Final[dict[str, Any]] = {
    "nargs": "*",
    "metavar": "EXPR",
    "help": "The model: any Python expression that gives a module, or several in a tuple, list "
    "or dict.",
}
OPTIONS: Final = tuple(_OPTIONS)
_OPTION: Final = re.compile(r"`(\w+)` (?=(is ['\d-]|has `))")
"""How a message about the value of an option begins."""
_SPELT: Final = {"`(2, 5)`": "`2,5`", "or None for": "or `none` for"}
"""What Python and the line of a magic write differently."""


def takes_model(name: str) -> Takes:
    """Give a magic the arguments of the table, and with them its help."""
    return takes(name, ("model", _MODEL), _OPTIONS)


def takes(name: str, first: tuple[str, dict[str, Any]], options: Options) -> Takes:
    """Give a magic an argument and options, and with them its help."""

    def decorate(magic: _Magic) -> _Magic:
        made: list[Any] = [magic_arguments(name), argument(first[0], **first[1])]  # type: ignore[no-untyped-call]
        made += [argument(option, **settings) for option, settings in options.items()]  # type: ignore[no-untyped-call]
        for decorator in reversed(made):
            magic = decorator(magic)
        return magic

    return decorate


def parse(magic: Any, line: str) -> argparse.Namespace:
    """Read the line of a magic that `takes_model`; `model` is the expression as it was typed.

    Raises:
        UsageError: An unknown option, a bad value, or no model.
    """
    found = asked(magic, line, _OPTIONS)
    found.model = " ".join(found.model)
    if not found.model and LEVELS.get(found.level) in NEEDS_MODEL:
        raise UsageError(
            f"`{magic.parser.prog}` was given no model. Write the variable that holds it, as in "
            f"`{magic.parser.prog} model`."
        )
    return found


def asked(magic: Any, line: str, options: Options) -> argparse.Namespace:
    """Read the line of a magic that has these options.

    Raises:
        UsageError: An unknown option, or a bad value.
    """
    split = words(line)
    for word in split:
        name = word.split("=")[0]
        if word.startswith("--") and name not in options:
            near = closest(name, options)
            raise UsageError(f"`{name}` is not an option.{near} Known: {', '.join(options)}.")
    try:
        found: argparse.Namespace = magic.parser.parse_args(split)
    except UsageError as error:
        raise UsageError(f"{error}. See `{magic.parser.prog}?` for the options.") from None
    return found


def words(line: str) -> list[str]:
    r"""Split at spaces that stand outside quotes and brackets; a `#` there begins a comment.

    >>> words('models["a b"].net --select "layers.*"  # the second one')
    ['models["a b"].net', '--select', '"layers.*"']

    Raises:
        UsageError: A quote or bracket is not closed.
    """
    found: list[str] = []
    word, closing = "", ""
    for piece in _PIECE.finditer(line):
        text = piece.group()
        if not closing and piece["space"] is not None:
            found, word = [*found, word], ""
            continue
        if not closing and not word and text == "#":
            break
        if text in ("'", '"'):
            raise UsageError(f"The quote {text} is not closed in `{line.strip()}`.")
        if text in _BRACKETS:
            closing = _BRACKETS[text] + closing
        elif text == closing[:1]:
            closing = closing[1:]
        word += text
    if closing:
        raise UsageError(f"`{closing[0]}` is missing in `{line.strip()}`.")
    return [each for each in [*found, word] if each]


def evaluate(expression: str, scope: dict[str, Any]) -> Any:
    """Return the value of an expression that the user typed after a magic.

    A mistake in the expression itself is told in one line; an exception that comes from deeper
    down, out of a function that it calls, is the user's and passes through.

    Raises:
        UsageError: It is not an expression, or names something that does not exist.
    """
    __tracebackhide__ = True
    try:
        tree = ast.parse(expression, mode="eval")
    except (SyntaxError, ValueError) as error:
        reason = getattr(error, "msg", error)
        raise UsageError(
            f"`{expression}` is not a Python expression ({reason}). Options begin with `--` and "
            "take one word each."
        ) from None
    try:
        return eval(compile(tree, "<line of the magic>", "eval"), scope)  # noqa: S307 - as typed
    except NameError as error:
        if _from_below(error, tree):
            raise
        names = [name for name in scope if not name.startswith("_") and name not in _SHELL]
        near = closest(error.name or "", names)
        raise UsageError(f"`{error.name}` is not defined.{near}") from None
    except (AttributeError, LookupError, TypeError) as error:
        if _from_below(error, tree):
            raise
        text = str(error).splitlines()[0] if str(error) else ""
        raise UsageError(f"`{expression}` gives {type(error).__name__}: {text}") from None


def evaluate_models(expression: str, scope: dict[str, Any]) -> Any:
    """Evaluate the model; several variables such as `gen, disc` name the models."""
    __tracebackhide__ = True
    value = evaluate(expression, scope)
    tree = ast.parse(expression, mode="eval").body
    if not isinstance(tree, (ast.Tuple, ast.List)) or len(tree.elts) != len(value):
        return value
    names = [each.id if isinstance(each, ast.Name) else "" for each in tree.elts]
    return dict(zip(names, value, strict=True)) if all(names) else value


def as_typed(message: str) -> str:
    """Return the message of an error as the line of a magic spells it.

    >>> as_typed("`first_step` is -1; give a whole number from 0 on.")
    '`--first-step` is -1; give a whole number from 0 on.'
    """
    found = _OPTION.match(message)
    option = "--" + found[1].replace("_", "-") if found else ""
    if found is None or option not in OPTIONS:
        return message
    rest = message[found.end() - 1 :]
    for python, typed in _SPELT.items():
        rest = rest.replace(python, typed)
    return f"`{option}`{rest}"


def _from_below(error: Exception, tree: ast.Expression) -> bool:
    """Tell whether an exception was raised in a function that the expression calls."""
    calls = any(isinstance(node, ast.Call) for node in ast.walk(tree))
    own = error.__traceback__ and error.__traceback__.tb_next
    return calls and own is not None and own.tb_next is not None
