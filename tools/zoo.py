"""`python -m tools.zoo`: examine the whole zoo on two processes and write docs/zoo.md.

With names, families or patterns only those are examined, and nothing is written. It exits with 1
if a specimen failed without a reason in `tests/zoo/known.py`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, here and in the others
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from tests.zoo import collection, known
from tests.zoo.torch_modules import FAMILY as OF_TORCH

PAGE = Path(__file__).parents[1] / "docs" / "zoo.md"
_TOGETHER = 8
"""Specimens that a process takes at a time."""
_RENEWED = 500
"""Such portions after which a process makes room for a new one: models leave memory behind."""

INTRODUCTION = """\
# The zoo

Every module of `torch.nn`, with every input that PyTorch itself tests it with, and small models \
with random weights of many architectures of `transformers`. `make zoo` writes this page.

Each is used twice as it is, once under `probe.watch`, and once under a recorder that shares \
nothing with probe_nb: forward, backward, and a few generated tokens where the model generates. \
It passes if

1. outputs, gradients, parameters, buffers, state, random numbers, types, identities, version \
counters, warnings and exceptions are the same with and without the watch, to the bit;
2. no hook, mode, attribute or patched function is left;
3. each statistic, count and histogram of inputs, outputs, parameters and their gradients equals \
what numpy computes in float64;
4. each module that was called has rows, or a reason in `run.coverage()`; no row failed.
"""


@dataclass(frozen=True)
class Outcome:
    """What came of one specimen."""

    name: str
    family: str
    faults: tuple[str, ...]
    remarks: tuple[str, ...]
    rows: int

    @property
    def architecture(self) -> str:
        """Name of the architecture; a module of torch has many specimens."""
        return self.name.split("-")[0] if self.family == OF_TORCH else self.name


def main(words: list[str] | None = None) -> int:
    """Examine, print what failed, and write the page if everything was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tools.zoo", description=__doc__)
    parser.add_argument("patterns", nargs="*", help="names or families, with * for anything")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args(words)
    names = [each.name for each in collection.matching(given.patterns or ["*"])]
    if not names:
        parser.error(f"no specimen is named like {' or '.join(given.patterns)}; try nn.Linear-*")
    outcomes = swept(names, given.processes)
    if not given.patterns:
        PAGE.write_text(page(outcomes), encoding="utf-8")
    unexplained = [o for o in outcomes if o.faults and o.name not in known.FAULTS]
    passed = sum(not o.faults for o in outcomes)
    print(f"{passed} of {len(outcomes)} passed, {len(unexplained)} failed without a known reason")
    return int(bool(unexplained) or not outcomes)


def swept(names: list[str], processes: int) -> list[Outcome]:
    """Examine specimens in processes of their own; the results come in order of name."""
    context = multiprocessing.get_context("spawn")
    outcomes = []
    with context.Pool(processes, _prepare, maxtasksperchild=_RENEWED) as pool:
        for outcome in pool.imap_unordered(examined, names, _TOGETHER):
            outcomes.append(outcome)
            if len(outcomes) % 200 == 0:
                print(f"{len(outcomes):,} of {len(names):,}", flush=True)
            if outcome.faults:
                lines = "\n    ".join(outcome.faults)
                print(f"FAILED {outcome.name}\n    {lines}", flush=True)
    return sorted(outcomes, key=lambda each: each.name)


def _prepare() -> None:
    """Wait for the compiled kernel, so that each run measures with the same one."""
    import torch

    from probe_nb.stats.kernels import cpu

    torch.set_num_threads(1)
    if warming := cpu.warm():
        warming.join()


def examined(name: str) -> Outcome:
    """Examine one specimen."""
    from tests.zoo.__main__ import judged

    specimen = _by_name()[name]
    verdict = judged(specimen)
    return Outcome(
        name, specimen.family, tuple(verdict.faults), tuple(verdict.remarks), verdict.rows
    )


def _by_name() -> dict[str, object]:
    if not _known:
        _known.update({each.name: each for each in collection.specimens()})
    return _known


_known: dict[str, object] = {}


# -- the page ----------------------------------------------------------------------------------


def page(outcomes: list[Outcome]) -> str:
    """Return the page: totals, a table of families, what failed and why, what was not held."""
    parts = [INTRODUCTION, _versions(), _totals(outcomes), _table(outcomes), _failures(outcomes)]
    parts += [_remarks(outcomes), _left_out(), _names(outcomes)]
    return "\n".join(part for part in parts if part)


def _versions() -> str:
    from importlib.metadata import version

    return (
        f"With torch {version('torch')} and transformers {version('transformers')}, on the CPU.\n"
    )


def _totals(outcomes: list[Outcome]) -> str:
    modules = {o.architecture for o in outcomes if o.family == OF_TORCH}
    models = {o.architecture for o in outcomes if o.family != OF_TORCH}
    passed = sum(not o.faults for o in outcomes)
    partly = sum(bool(o.remarks) and not o.faults for o in outcomes)
    rows = sum(o.rows for o in outcomes)
    return (
        f"**{passed:,} of {len(outcomes):,} passed**: {len(models)} architectures of transformers "
        f"and {len(modules)} modules of torch. Of those that passed, {partly:,} could be held to "
        f"it only in part, see below. {rows:,} rows were compared with numpy.\n"
    )


def _table(outcomes: list[Outcome]) -> str:
    lines = ["| family | architectures | uses | passed | rows compared |", "|---|--:|--:|--:|--:|"]
    for family, mine in _grouped(outcomes, "family").items():
        kinds = len({o.architecture for o in mine})
        passed = sum(not o.faults for o in mine)
        rows = sum(o.rows for o in mine)
        lines.append(f"| {family} | {kinds} | {len(mine):,} | {passed:,} | {rows:,} |")
    return "\n".join(lines) + "\n"


def _failures(outcomes: list[Outcome]) -> str:
    failed = [o for o in outcomes if o.faults]
    if not failed:
        return "## What failed\n\nNothing.\n"
    lines = ["## What failed", "", "| specimen | what | why |", "|---|---|---|"]
    for o in failed:
        what = "<br>".join(_cell(fault) for fault in o.faults)
        why = known.FAULTS.get(o.name, "not explained yet")
        lines.append(f"| {o.name} | {what} | {_cell(why)} |")
    return "\n".join(lines) + "\n"


def _remarks(outcomes: list[Outcome]) -> str:
    """List what could not be held against a watch, the same reason in one line."""
    said: dict[str, Counter[str]] = defaultdict(Counter)
    for o in outcomes:
        for remark in o.remarks:
            said[remark][o.architecture] += 1
    if not said:
        return ""
    lines = ["## What could not be held", "", "| reason | of | uses |", "|---|---|--:|"]
    lines += [
        f"| {_cell(remark)} | {', '.join(sorted(of))} | {sum(of.values())} |"
        for remark, of in sorted(said.items())
    ]
    return "\n".join(lines) + "\n"


def _left_out() -> str:
    reasons = collection.left_out()
    if not reasons:
        return ""
    lines = ["## What is not in the zoo", "", "| architecture | why |", "|---|---|"]
    lines += [f"| {name} | {_cell(why)} |" for name, why in sorted(reasons.items())]
    return "\n".join(lines) + "\n"


def _names(outcomes: list[Outcome]) -> str:
    lines = ["## All of them", ""]
    for family, mine in _grouped(outcomes, "family").items():
        lines.append(f"* **{family}**: {', '.join(sorted({o.architecture for o in mine}))}")
    return "\n".join(lines) + "\n"


def _grouped(outcomes: list[Outcome], by: str) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        found[getattr(outcome, by)].append(outcome)
    return dict(sorted(found.items()))


def _cell(text: str) -> str:
    """Return a text that a cell of a Markdown table can hold."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.exit(main())
