"""The line after `%probe_compare`: two runs, and how they are aligned."""

from __future__ import annotations

import argparse
import ast
from pathlib import Path
from typing import Any, Final

from IPython.core.error import UsageError

from probe_nb.comparison import Comparison, compare, opened
from probe_nb.errors import ProbeError
from probe_nb.magics.line import Takes, asked, evaluate, takes, unquoted
from probe_nb.run import Run


def _numbers(word: str) -> tuple[int, int]:
    try:
        first, second = (int(each) for each in unquoted(word).split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"`{word}` is no pair of ranks such as 0,1") from None
    return first, second


COMPARED: Final[dict[str, dict[str, Any]]] = {
    "--mapping": {
        "metavar": "EXPR",
        "help": "Which module is which where names differ: a dict {baseline: candidate}, or the "
        "path of a yaml file of msProbe in quotes.",
    },
    "--fuzzy": {
        "action": "store_true",
        "help": "Take calls in the order in which they came, whatever their numbers are.",
    },
    "--tolerance": {
        "type": unquoted,
        "metavar": "TOLERANCE",
        "help": "How many times what rounding explains is allowed, or a format such as tf32.",
    },
    "--ranks": {
        "type": _numbers,
        "metavar": "A,B",
        "help": "The rank of the baseline and that of the candidate.",
    },
}
_RUNS: Final[dict[str, Any]] = {
    "nargs": "*",
    "metavar": "RUN",
    "help": "The run to trust and the run in question: variables, or paths of saved runs and "
    "dumps. One run with --ranks.",
}


def takes_runs(name: str) -> Takes:
    """Give a magic the arguments of the table, and with them its help."""
    return takes(name, ("runs", _RUNS), COMPARED)


def compared(magic: Any, line: str, scope: dict[str, Any]) -> Comparison:
    """Read the line of a magic that `takes_runs`, and compare.

    Raises:
        UsageError: An unknown option, not two runs, or runs that cannot be read.
    """
    __tracebackhide__ = True
    found = asked(magic, line, COMPARED)
    name = magic.parser.prog
    if len(found.runs) not in ((1, 2) if found.ranks else (2,)):
        raise UsageError(
            f"`{name}` takes the run to trust and the run in question, as in "
            f"`{name} gpu_run npu_run`; or one run and `--ranks 0,1`."
        )
    runs = [_source(each.rstrip(","), scope) for each in found.runs]
    mapping = None if found.mapping is None else evaluate(found.mapping, scope)
    try:
        return compare(
            *runs,
            mapping=mapping,
            fuzzy=found.fuzzy,
            tolerance=_tolerance(found.tolerance),
            ranks=found.ranks,
        )
    except (ProbeError, FileNotFoundError) as error:
        raise UsageError(" ".join(str(error).split())) from None


def baseline(word: str | None, scope: dict[str, Any]) -> Run | None:
    """Return the run that `--baseline` names, read if it is a file.

    Raises:
        UsageError: It is none.
    """
    __tracebackhide__ = True
    if word is None:
        return None
    try:
        return opened(_source(word, scope))
    except (ProbeError, FileNotFoundError) as error:
        raise UsageError(" ".join(str(error).split())) from None


def _source(word: str, scope: dict[str, Any]) -> Any:
    """Return the run that a word names: a variable, an expression, or a path."""
    __tracebackhide__ = True
    if word[:1] in ("'", '"'):
        return unquoted(word)
    try:
        ast.parse(word, mode="eval")
    except SyntaxError:
        return word
    if Path(word).expanduser().exists() and word.split(".", 1)[0] not in scope:
        return word
    value = evaluate(word, scope)
    if isinstance(value, (Run, str, Path)):
        return value
    raise UsageError(f"`{word}` is a {type(value).__name__} and no run.")


def _tolerance(word: str | None) -> float | str:
    if word is None:
        return 1.0
    try:
        return float(word)
    except ValueError:
        return word
