"""The line after `%probe_save`: an expression, and the name of its rows."""

from __future__ import annotations

import argparse
from typing import Any, Final

from IPython.core.error import UsageError

from probe_nb.magics.line import Takes, asked, takes, unquoted
from probe_nb.terms import printable

SAVED: Final[dict[str, dict[str, Any]]] = {
    "--name": {
        "type": unquoted,
        "metavar": "NAME",
        "help": "The name of its rows; without it the expression as it is written.",
    },
    "--no-backward": {"action": "store_true", "help": "Record no gradients."},
}
_VALUE: Final[dict[str, Any]] = {
    "nargs": "*",
    "metavar": "EXPR",
    "help": "Any Python expression that gives a tensor, a number, a text, or lists, tuples and "
    "dicts of them.",
}


def takes_value(name: str) -> Takes:
    """Give a magic the arguments of the table, and with them its help."""
    return takes(name, ("value", _VALUE), SAVED)


def parse(magic: Any, line: str) -> argparse.Namespace:
    """Read the line of a magic that `takes_value`; `value` is the expression as it was typed.

    Raises:
        UsageError: An unknown option, or no value.
    """
    found = asked(magic, line, SAVED)
    found.value = " ".join(found.value)
    if not found.value:
        raise UsageError(
            f"`{magic.parser.prog}` was given no value. Write the variable that holds it, as in "
            f"`{magic.parser.prog} loss`."
        )
    found.name = printable((found.name or "").strip() or found.value)
    return found
