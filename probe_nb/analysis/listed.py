"""Tables of sentences, which pandas would cut short where they are shown."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from html import escape
from typing import Any, Final

import pandas as pd

from probe_nb.terms import printable

NOTHING: Final = "Nothing found."

_MARKS: Final = {"error": "✕", "warning": "!", "note": "\N{MIDDLE DOT}"}
_SHOWN: Final = ("severity", "step", "sentence", "detail", "advice")
_WIDTH: Final = 100


class Whole(pd.DataFrame):
    """A DataFrame whose texts a notebook shows whole; what is cut out of it is an ordinary one."""

    @property
    def _constructor(self) -> Callable[..., pd.DataFrame]:
        return pd.DataFrame

    def __repr__(self) -> str:
        """Write it as pandas does; an empty one says the name of its class."""
        return repr(pd.DataFrame(self))

    def _repr_html_(self) -> str | None:
        """Write the table as pandas does, no text cut short."""
        with pd.option_context("display.max_colwidth", None):
            found: str | None = super()._repr_html_()  # type: ignore[misc]
        return found


class Listed(Whole):
    """The DataFrame of `run.findings()`; in a terminal it is its sentences."""

    def __repr__(self) -> str:
        """Write each finding in a few lines, worst first."""
        lines = [line for _, each in self.iterrows() for line in _lines(each)]
        return printable("\n".join(lines)) or self._nothing()

    def _repr_html_(self) -> str:
        """Write what a person reads as a table, no text cut short; the rest is in the columns."""
        if self.empty:
            return f"<div>{escape(self._nothing())}</div>"
        shown = pd.DataFrame(self)[list(_SHOWN)].map(lambda cell: printable(str(cell)))
        with pd.option_context("display.max_colwidth", None):
            return str(shown.to_html(index=False, justify="left", border=0))

    def _nothing(self) -> str:
        return printable(self.attrs.get("nothing", NOTHING))


def _lines(finding: Any) -> list[str]:
    """Return the sentence, and under it the numbers and what to try."""
    lines = _wrapped(f"{_MARKS[finding['severity']]} {finding['sentence']}", "", "  ")
    for name in ("detail", "advice"):
        lines += _wrapped(finding[name], "  ", "  ")
    return lines


def _wrapped(text: str, first: str, then: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=then)
