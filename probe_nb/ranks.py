"""The ranks of one run compared with each other: `compare_ranks`."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from typing import Final

import pandas as pd

from probe_nb.analysis.ranks import all as every
from probe_nb.analysis.ranks.statement import Statement, as_frame
from probe_nb.comparison import Comparison, Source, compare, opened
from probe_nb.errors import ConfigError, SelectionError
from probe_nb.run import Run
from probe_nb.store.about_many import of_ranks
from probe_nb.terms import printable

_SIGNS: Final = {"error": "✕", "warning": "▲", "note": "·"}
_WIDTH: Final = 100


class RankComparison:
    """What ranks of one job have in common and should, and what not.

    Attributes:
        run: The run.
        ranks: The ranks that were compared.
    """

    def __init__(self, run: Run, ranks: Sequence[int], said: Sequence[Statement]) -> None:
        """Hold what was found; `compare_ranks` makes them, users need not."""
        self.run, self.ranks = run, list(ranks)
        self._said = list(said)

    @property
    def df(self) -> pd.DataFrame:
        """One row per statement, the gravest first.

        Columns: `severity`, `kind`, `ranks` (those that it is about), `model`, `module`, `role`,
        `leaf`, `step` (from which on it holds), `sentence`, `detail`, `advice`, `rows` (labels of
        `run.df` that say so), `value`, `threshold`.

        Kinds: `non_finite`, where NaN or Inf was born; `drift`, parameters that differ;
        `same_input`, ranks that were fed the same; `outlier`, a rank whose gradient or loss sticks
        out; `stopped`, a rank that ends earlier; and notes of what was compared and is as it should
        be: `parameters`, `inputs`.
        """
        return as_frame(self._said)

    @property
    def fine(self) -> bool:
        """Tell whether there is nothing but notes."""
        return all(each.severity == "note" for each in self._said)

    def __len__(self) -> int:
        """Return the number of statements."""
        return len(self._said)

    def __bool__(self) -> bool:
        """Be true also without a statement."""
        return True

    def pair(self, baseline: int, candidate: int) -> Comparison:
        """Return the comparison of two ranks, row by row, as `compare(run, ranks=...)` has it."""
        return compare(self.run, ranks=(baseline, candidate))

    def __repr__(self) -> str:
        """Say all in sentences, the gravest first."""
        lines = [f"{of_ranks(self.ranks, begin=True)}, compared with each other"]
        for each in self._said:
            lines += _wrapped(f"{_SIGNS[each.severity]} {each.sentence}", "")
            for text in (each.detail, each.advice):
                lines += _wrapped(text, "  ")
        return printable("\n".join(lines))

    def _repr_html_(self) -> str:
        """Show the same as a static list."""
        rows = []
        for each in self._said:
            more = "".join(
                f"<div style='opacity:.75'>{html.escape(printable(text))}</div>"
                for text in (each.detail, each.advice)
                if text
            )
            sentence = html.escape(printable(each.sentence))
            rows.append(f"<div>{_SIGNS[each.severity]} <b>{sentence}</b>{more}</div>")
        return f"<div><div>{of_ranks(self.ranks, begin=True)}</div>{''.join(rows)}</div>"


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent or "  ")


def compare_ranks(
    run: Source, *, ignore: str | Sequence[str] = (), outlier: float = every.OUTLIER
) -> RankComparison:
    """Compare the ranks of one run with each other: same parameters, different data.

    In data-parallel training all ranks have the same parameters at every step, to the bit: no
    rounding is allowed for, since all apply the same gradient. Inputs are different. What each has
    a part of (FSDP, DTensor) is left out, and so are buffers, which BatchNorm has its own of.

    Args:
        run: A run of several processes: what `load` read from a folder, `gather` brought, or
            `read_dump` read; or the path of one.
        ignore: Patterns of modules whose parameters differ on purpose, such as `"experts.*"`.
        outlier: How many times larger than the others makes a rank's gradient or loss stick out.

    Returns:
        What was found, in sentences; `df` has it as rows. Two equal tensors have equal statistics;
        that two of equal statistics are equal is all but certain, and with `checksum=` certain.

    Raises:
        SelectionError: The rows are not of two ranks at least.
        ConfigError: `outlier` is not above 1, or `run` is no run.

    >>> import torch, probe_nb as probe
    >>> from probe_nb.run import merge
    >>> runs = []
    >>> for rank in range(2):
    ...     model = torch.nn.Linear(2, 1)
    ...     _ = torch.nn.init.constant_(model.weight, float(rank))
    ...     with probe.watch(model) as run:
    ...         _ = model(torch.randn(5, 2))
    ...     runs.append(run)
    >>> probe.compare_ranks(merge(runs)).df["kind"].tolist()[0]
    'drift'
    """
    if not outlier > 1:
        raise ConfigError(f"`outlier` is {outlier!r}; give a number above 1.")
    of = opened(run)
    of.flush()
    columns, _ = of.columns.there()
    ranks = [*every.last_steps(columns)]
    if len(ranks) < 2:  # noqa: PLR2004 - two to compare
        there = f"all of rank {ranks[0]}" if ranks else "of no rank"
        if missing := sorted(set(range(of.info.world or 0)) - set(ranks)):
            there += f", and {of_ranks(missing)} of {of.info.world} missing"
        raise SelectionError(
            f"The rows of this run are {there}. Save each process into one folder and read it with "
            "`probe.load(folder)`, or use `probe.gather`."
        )
    patterns = [ignore] if isinstance(ignore, str) else [*ignore]
    said = every.compared(columns, of.info, ignore=patterns, outlier=float(outlier))
    return RankComparison(of, ranks, said)
