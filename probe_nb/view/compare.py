"""A comparison in words and as a plain table: where two runs part first, then what follows.

As in `view.html`: no script, no style sheet, no colour is needed to read it, and every text is
escaped.
"""

from __future__ import annotations

import textwrap
from html import escape
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from probe_nb.analysis.compare.checksums import UNSURE
from probe_nb.analysis.words import number, plural, tensor
from probe_nb.terms import Site, printable, shown
from probe_nb.view.frame import title
from probe_nb.view.html import aligned, sideways

if TYPE_CHECKING:
    from probe_nb.analysis.compare.divergence import Divergence
    from probe_nb.comparison import Comparison

ROWS: Final = 20
_TEXT_ROWS: Final = 8
_WIDTH: Final = 100
_NAMED: Final = 3
"""Divergences that are said."""

_SIGNS: Final = {
    "diverged": "✕",
    "not_comparable": "\N{EN DASH}",
    "only_in_baseline": "!",
    "only_in_candidate": "!",
    "close": "\N{ALMOST EQUAL TO}",
    "same": "✓",
}
_ABSENT: Final = "\N{EN DASH}"

_COLUMNS: Final = (
    ("Verdict", "left"),
    ("Module", "left"),
    ("Tensor", "left"),
    ("Step", "right"),
    ("Difference", "right"),
    ("Explained", "right"),
    ("Seen in", "left"),
    ("Baseline l2", "right"),
    ("Candidate l2", "right"),
    ("Why", "left"),
)


def sentence(of: Comparison) -> str:
    """Return what is said first."""
    first = of.first_divergence()
    if first is not None:
        return f"✕ {first.sentence}"
    counts = of.counts
    if not len(of) or set(counts) <= {"not_comparable", "only_in_baseline", "only_in_candidate"}:
        return f"! nothing could be compared: {_nothing(of)}"
    if set(counts) == {"same"}:
        return f"✓ all {plural(len(of), 'row')} are the same"
    if counts.get("diverged"):
        many = plural(counts["diverged"], "row")
        return f"! no call diverges of itself, but {many} drifted apart beyond rounding"
    return _agreed(of, counts)


def _agreed(of: Comparison, counts: dict[str, int]) -> str:
    """Say of runs that nowhere diverge what they agree in."""
    alone = counts.get("only_in_baseline", 0) + counts.get("only_in_candidate", 0)
    if alone:
        return f"! no divergence in what both have; {plural(alone, 'row')} only one run has"
    unclear = counts.get("not_comparable", 0)
    if set(counts) == {"same", "not_comparable"}:
        return f"✓ all that could be compared is the same; {plural(unclear, 'row')} could not be"
    doubt = int(of._of.unsure.sum())  # noqa: SLF001 - read here, copied nowhere
    if doubt:
        return f"✓ no divergence in the statistics; of {plural(doubt, 'row')} {UNSURE}"
    return "✓ no divergence: all that differs is within rounding"


def _nothing(of: Comparison) -> str:
    """Return why nothing could be compared."""
    frame = of._frame  # noqa: SLF001 - read here, copied nowhere
    here = [frame[frame[f"row_{side}"].notna()] for side in ("baseline", "candidate")]
    empty = [not len(each) for each in here]
    if any(empty):
        who = "neither run" if all(empty) else f"the {'baseline' if empty[0] else 'candidate'}"
        return f"{who} has {'any rows' if all(empty) else 'no rows'}"
    both = frame[frame["row_baseline"].notna() & frame["row_candidate"].notna()]
    if len(both):
        return str(both["reason"].astype(str).mode().iloc[0] or "no numbers on both sides")
    of_functions = [bool((each["api"].astype(str) != "").all()) for each in here]
    if of_functions[0] != of_functions[1]:
        words = ["functions" if each else "modules" for each in of_functions]
        return (
            f"the baseline has {words[0]}, the candidate {words[1]}; record both at the same level"
        )
    names_ = [
        set(zip(*(each[n].astype(str) for n in ("module", "api")), strict=True)) for each in here
    ]
    if names_[0] & names_[1]:
        return "both have the same modules, but no call or tensor in common"
    return "no name is in both; `mapping=` says what is what (see comparison.suggested_mapping())"


def counted(of: Comparison) -> str:
    """Return how many rows have which verdict."""
    known = of.counts.items()
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in known) or "no rows"


def names(of: Comparison) -> str:
    """Return what was compared."""
    sides = []
    for run in (of.baseline, of.candidate):
        devices = ", ".join(run.info.devices)  # a dump names none
        sides.append(f"{title(run.info)} ({devices})" if devices else title(run.info))
    return f"baseline {sides[0]}, candidate {sides[1]}"


def _more(of: Comparison) -> list[Divergence]:
    return of.divergences[1:_NAMED]


def text(of: Comparison) -> str:
    """Return a comparison in at most 30 lines."""
    lines = _wrapped(sentence(of), "")
    first = of.first_divergence()
    if first is not None:
        lines += _wrapped(first.detail, "  ")
        lines += [line for each in first._then() for line in _wrapped(each.strip(), "  ")]  # noqa: SLF001
    for each in _more(of):
        lines += _wrapped(f"✕ independently {each.sentence}", "")
    left = len(of.divergences) - _NAMED
    if left > 0:
        lines.append(f"  and {plural(left, 'more divergence')}: comparison.divergences")
    lines += _wrapped(of.fed_same.sentence, "  ")
    lines += _wrapped(f"{names(of)}: {counted(of)}", "  ")
    lines += [line for each in of.notices for line in _wrapped(f"! {each}", "")]
    lines += _alone(of)
    return printable("\n".join([*lines, *_table(of)]))


def _wrapped(text_: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text_,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent or "  ",
        max_lines=3,
        placeholder=" …",
    )


def _alone(of: Comparison) -> list[str]:
    """Say which modules only one run has."""
    left = of.one_sided()
    lines = []
    for side, part in left.groupby("side", sort=False):
        found = list(
            dict.fromkeys(shown(a or m) for m, a in zip(part["module"], part["api"], strict=True))
        )
        more = f" and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
        lines += _wrapped(
            f"! rows only in the {side}: {', '.join(found[:_NAMED])}{more} "
            "(comparison.one_sided())",
            "",
        )
    lines += _left_over(of)
    named = left[(left["suggestion"] != "") & (left["api"] == "")]
    if len(named):
        lines += _wrapped("! some look alike under other names: comparison.suggested_mapping()", "")
    return lines


def _left_over(of: Comparison) -> list[str]:
    """Say in which run alone gradients were added to what was there."""
    frame = of._frame  # noqa: SLF001 - read here, copied nowhere
    alone = frame["verdict"].str.startswith("only_in_") & (frame["role"] == "param_grad")
    verdicts = frame["verdict"][alone & frame["leaf"].str.endswith(".grad")]
    return [
        line
        for side in dict.fromkeys(each.removeprefix("only_in_") for each in verdicts)
        for line in _wrapped(
            f"! in the {side} alone `.grad` held something before a backward added to it: it was "
            "left there before the watch began, or never set to zero (`zero_grad`)",
            "",
        )
    ]


def rows(of: Comparison, limit: int) -> pd.DataFrame:
    """Return the rows to show: those of the divergences, then others that diverged, in order."""
    frame = of._frame  # noqa: SLF001 - read here, copied nowhere
    first = [label for each in of.divergences for label in each.rows.index]
    diverged = frame.index[frame["verdict"] == "diverged"]
    other = frame.index[~frame["verdict"].isin(["same", "diverged"])]
    labels = [
        *dict.fromkeys([*first[:limit], *diverged[:limit], *other[:limit], *frame.index[:limit]])
    ]
    return frame.loc[labels[:limit]]


def _table(of: Comparison) -> list[str]:
    if not len(of):
        return []
    shown_rows = rows(of, _TEXT_ROWS)
    head = ("verdict", "module", "tensor", "step", "difference", "explained", "seen in")
    cells = [list(head), *(_cells(row)[:7] for row in shown_rows.itertuples())]
    widths = [min(max(len(line[n]) for line in cells), 40) for n in range(len(head))]
    lines = [
        "",
        *(
            "  ".join(c[-40:].ljust(w) for c, w in zip(line, widths, strict=True)).rstrip()
            for line in cells
        ),
    ]
    left = len(of) - len(shown_rows)
    return (
        [*lines, f"… and {plural(left, 'more row')}; all are in comparison.df"] if left else lines
    )


def _cells(row: Any) -> list[str]:
    verdict, api = str(row.verdict), str(row.api)
    place = shown(str(row.module))
    return [
        f"{_SIGNS[verdict]} {verdict.replace('_', ' ')}",
        f"{place}, {api}" if api and row.module else (api or place),
        _tensor(row),
        str(row.step),
        _number(row.difference),
        _number(row.tolerance),
        _word(row.measure),
        _number(row.l2_baseline),
        _number(row.l2_candidate),
        _word(row.reason),
    ]


def _tensor(row: Any) -> str:
    """Write which tensor a row is of; what an optimizer saw has the names of other rows."""
    role, leaf = str(row.role), str(row.leaf)
    if str(row.direction) == "optimizer" and role in {"param", "param_grad"}:
        site = Site(str(row.model), str(row.module), "", "", "optimizer", row.role, leaf)
        return tensor(site)
    return f"{role} {leaf}".strip()


def _word(value: Any) -> str:
    return "" if pd.isna(value) else str(value)


def _number(value: Any) -> str:
    return _ABSENT if pd.isna(value) else number(float(value))


# -- HTML ----------------------------------------------------------------------------------------


def html(of: Comparison) -> str:
    """Return headline, what both were fed, what only one has, and a table."""
    first = of.first_divergence()
    parts = [f"<div><b>{escape(sentence(of))}</b></div>"]
    if first is not None:
        parts += [_div(first.detail), *(_div(each.strip()) for each in first._then())]  # noqa: SLF001
    parts += [_div(f"✕ independently {each.sentence}") for each in _more(of)]
    left = len(of.divergences) - _NAMED
    if left > 0:
        parts.append(_div(f"and {plural(left, 'more divergence')}: comparison.divergences"))
    parts.append(_html_table(of))
    parts += [_div(of.fed_same.sentence), _div(f"{names(of)}: {counted(of)}")]
    parts += [_div(f"! {each}") for each in of.notices]
    parts += [_div(each.strip()) for each in _alone(of)]
    return printable(f"<div>\n{chr(10).join(part for part in parts if part)}\n</div>")


def _html_table(of: Comparison) -> str:
    if not len(of):
        return ""
    head = "".join(
        f'<td {aligned(align)} role="columnheader"><b>{name}</b></td>' for name, align in _COLUMNS
    )
    found = rows(of, ROWS)
    body = "\n".join(_line(_cells(row)) for row in found.itertuples())
    inside = f"<thead>\n<tr>{head}</tr>\n</thead>\n<tbody>\n{body}\n</tbody>"
    table = sideways(f'<table cellpadding="4">\n{inside}\n</table>')
    left = len(of) - len(found)
    if left <= 0:
        return table
    return f"{table}\n<div>… and {plural(left, 'more row')}; all are in comparison.df</div>"


def _line(cells: list[str]) -> str:
    pairs = zip(cells, _COLUMNS, strict=True)
    written = [
        (
            f"<code>{escape(cell)}</code>"
            if name == "Module"
            else _together(cell)
            if name != "Why"
            else escape(cell),
            align,
        )
        for cell, (name, align) in pairs
    ]
    return (
        "<tr>" + "".join(f"<td {aligned(align)}>{cell}</td>" for cell, align in written) + "</tr>"
    )


def _div(text_: str) -> str:
    return f"<div>{escape(text_)}</div>" if text_ else ""


def _together(text_: str) -> str:
    return escape(text_).replace(" ", "&nbsp;")
