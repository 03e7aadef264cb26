"""`python -m benchmarks [step|statistics|live]`: measure, and print one table of ratios."""

from __future__ import annotations

import argparse
import os
from typing import Final

# before torch is imported; every row is about one thread
os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks import live_cost, report, statistics_cost, step_cost
from benchmarks.table import markdown
from benchmarks.timing import Stopwatch
from probe_nb.stats.kernels import cpu

_NAMES: Final = ("step", "statistics", "live")
_LEVELS: Final = ("L0", "L1", "mix")


def main(words: list[str] | None = None) -> None:
    """Measure what was asked for and print it; `--write` keeps it."""
    given = _arguments(words)
    if given.torch:
        cpu.disable()
    elif warming := cpu.warm():
        warming.join()
    table, watch = [], Stopwatch(cpu=given.cpu)
    if given.name in (None, "step"):
        table += step_cost.rows(given.rounds, given.levels, cpu=given.cpu)
    if given.name in (None, "statistics"):
        table += statistics_cost.rows(given.statistics_rounds, watch)
    if given.name in (None, "live"):
        table += live_cost.rows(given.statistics_rounds, watch)
    text = markdown(table)
    theirs = given.name in (None, "step") and bool(given.levels)
    taken_with = report.conditions(
        given.rounds, given.statistics_rounds, msprobe=theirs, cpu=given.cpu
    )
    print(f"{text}\n\n{taken_with}")
    if given.write:
        print("\n".join(report.write(text, taken_with)))


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", choices=_NAMES, help="only these rows")
    parser.add_argument("--rounds", type=int, default=11, help="rounds of the step rows")
    parser.add_argument("--statistics-rounds", type=int, default=25, help="of the other rows")
    parser.add_argument(
        "--levels", nargs="*", choices=_LEVELS, default=_LEVELS, help="msProbe's levels; none: skip"
    )
    parser.add_argument("--cpu", action="store_true", help="processor time, on a busy machine")
    parser.add_argument(
        "--torch", action="store_true", help="the torch kernel, although numba is installed"
    )
    parser.add_argument(
        "--write", action="store_true", help="keep the table in results/ and the pages"
    )
    given = parser.parse_args(words)
    if given.write and (given.name or not given.levels):
        parser.error("--write keeps a whole table: leave the name out, and a level of msProbe in")
    return given


if __name__ == "__main__":
    main()
