"""`python -m benchmarks.faults`: plant every fault, and print what the tool says of it first."""

from __future__ import annotations

import argparse
import os
from typing import Final

# before torch is imported; the models are tiny
os.environ.setdefault("OMP_NUM_THREADS", "1")

import datetime as dt
import fnmatch
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

import probe_nb
from benchmarks.faults import planted, unseen
from benchmarks.faults.case import PLANTED, UNSEEN, Case, Collection, Healthy
from benchmarks.faults.judge import Result, asked, asked_whole, judged
from benchmarks.faults.page import Results, figures, page
from benchmarks.report import RESULTS

_SETS: Final[dict[str, tuple[str, Collection]]] = {
    planted.__name__.rpartition(".")[2]: ("The set the rules were tried on", PLANTED),
    unseen.__name__.rpartition(".")[2]: ("The set that was held out", UNSEEN),
}

Some = TypeVar("Some", Case, Healthy)


def main(words: list[str] | None = None) -> None:
    """Run what was asked for and print it; `--write` keeps it."""
    given = _arguments(words)
    chosen = [given.set] if given.set else list(_SETS)
    found = [_results(*_SETS[name], given.only, whole=not given.quick) for name in chosen]
    text = page(found, _conditions())
    print(text)
    for results in found:
        print(f"{results.title}: {figures(results)}")
    if given.write:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "faults.md").write_text(text, encoding="utf-8")
        print("Wrote benchmarks/results/faults.md.")


def _results(title: str, cases: Collection, only: str, *, whole: bool) -> Results:
    faults = list(_named(cases.faults, only))
    return Results(
        title,
        _each(judged, faults),
        _each(asked, _named(cases.healthy, only)),
        _each(asked_whole, faults) if whole else [],
    )


def _named(cases: Iterable[Some], pattern: str) -> Iterable[Some]:
    return (case for case in cases if fnmatch.fnmatchcase(case.name, pattern))


def _each(ask: Callable[[Some], Result], cases: Iterable[Some]) -> list[Result]:
    return [ask(case) for case in cases]


def _conditions() -> str:
    day = dt.datetime.now(dt.timezone.utc).date()
    return (
        f"{day}; probe_nb {probe_nb.__version__}, torch {torch.__version__}. "
        "Written by `python -m benchmarks.faults --write`; "
        "what counts as right was written down before the tool was asked."
    )


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("set", nargs="?", choices=list(_SETS), help="only this set")
    parser.add_argument("--only", default="*", help="names of cases, a shell pattern")
    parser.add_argument("--quick", action="store_true", help="leave the whole twins out")
    parser.add_argument("--write", action="store_true", help="keep the page in results/")
    given = parser.parse_args(words)
    if given.write and (given.set or given.only != "*" or given.quick):
        parser.error("--write keeps the page of everything: ask for no part")
    return given


if __name__ == "__main__":
    main()
