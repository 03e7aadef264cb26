"""`python -m benchmarks.divergences`: plant every divergence, and print what is named first."""

from __future__ import annotations

import argparse
import os
from typing import Final

# before torch is imported; the models are tiny
os.environ.setdefault("OMP_NUM_THREADS", "1")

import datetime as dt
import fnmatch
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch

import probe_nb
from benchmarks.divergences import held_out, planted
from benchmarks.divergences.case import HELD_OUT, PLANTED, Case, Collection, Pair
from benchmarks.divergences.judge import MODES, Mode, Result, asked, judged
from benchmarks.divergences.page import Results, figures, page
from benchmarks.report import RESULTS

_SETS: Final[dict[str, tuple[str, Collection]]] = {
    planted.__name__.rpartition(".")[2]: ("The set the rules were tried on", PLANTED),
    held_out.__name__.rpartition(".")[2]: ("The set that was held out", HELD_OUT),
}

Some = TypeVar("Some", Case, Pair)


def main(words: list[str] | None = None) -> None:
    """Run what was asked for and print it; `--write` keeps it."""
    given = _arguments(words)
    chosen = [given.set] if given.set else list(_SETS)
    modes = [given.mode] if given.mode else list(MODES)
    found = [_results(*_SETS[name], given.only, modes) for name in chosen]
    text = page(found, _conditions())
    print(text)
    for results in found:
        print(f"{results.title}: {figures(results)}")
    if given.write:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "divergences.md").write_text(text, encoding="utf-8")
        print("Wrote benchmarks/results/divergences.md.")


def _results(title: str, cases: Collection, only: str, modes: Sequence[Mode]) -> Results:
    return Results(
        title,
        _each(judged, _named(cases.cases, only), modes),
        _each(asked, _named(cases.pairs, only), modes),
        tuple(modes),
    )


def _named(cases: Iterable[Some], pattern: str) -> Iterable[Some]:
    return (case for case in cases if fnmatch.fnmatchcase(case.name, pattern))


def _each(
    ask: Callable[[Some, Sequence[Mode]], Result], cases: Iterable[Some], modes: Sequence[Mode]
) -> list[Result]:
    found = []
    for case in cases:
        begun = time.perf_counter()
        found.append(ask(case, modes))
        took = time.perf_counter() - begun
        print(f"{case.name} ({took:.1f} s): {found[-1].verdicts}", file=sys.stderr, flush=True)
    return found


def _conditions() -> str:
    day = dt.datetime.now(dt.timezone.utc).date()
    return (
        f"{day}; probe_nb {probe_nb.__version__}, torch {torch.__version__}. "
        "Written by `python -m benchmarks.divergences --write`; "
        "what counts as right was written down before the tool was asked."
    )


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.divergences", description=__doc__)
    parser.add_argument("set", nargs="?", choices=list(_SETS), help="only this set")
    parser.add_argument("--only", default="*", help="names of cases, a shell pattern")
    parser.add_argument("--mode", choices=MODES, help="judge by this alone")
    parser.add_argument("--write", action="store_true", help="keep the page in results/")
    given = parser.parse_args(words)
    if given.write and (given.set or given.only != "*" or given.mode):
        parser.error("--write keeps the page of everything: ask for no part")
    return given


if __name__ == "__main__":
    main()
