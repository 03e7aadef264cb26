"""Watch both sides of a case, compare them, and judge what is named first."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import probe_nb as probe
from benchmarks.divergences.case import Case, Pair, Program
from benchmarks.divergences.proof import parted, traced

Verdict = Literal["right", "right place, other phase", "wrong", "nothing found", "not in it"]
Mode = Literal["statistics", "histograms", "tensors"]

MODES: Final[tuple[Mode, ...]] = ("statistics", "histograms", "tensors")
"""What there is to judge by. `statistics`: a dump, which has Max, Min, Mean and Norm of the forward
and the backward; `histograms`: a watch as it is without options; `tensors`: inputs and outputs were
kept too."""

KEEP: Final = probe.Keep("*", roles=("input", "output"))


@dataclass(frozen=True)
class Said:
    """What the tool says first, in one mode."""

    module: str
    phase: str
    sentence: str
    detail: str
    count: int


@dataclass(frozen=True)
class Result:
    """What was said of one case or pair, by mode; None: nothing was found."""

    title: str
    name: str
    architecture: str
    planted: str
    said: dict[Mode, Said | None]
    verdicts: dict[Mode, Verdict]
    really: str = ""
    note: str = ""


def watched(program: Program, mode: Mode) -> probe.Run:
    """Run a program under a watch."""
    if program.device == "npu":
        return _elsewhere(program, mode)
    keep = KEEP if mode == "tensors" else None
    with probe.watch(program.model, optimizer=program.optimizer, keep=keep, live=False) as run:
        program.run()
    return run


def _elsewhere(program: Program, mode: Mode) -> probe.Run:
    """Run it on the simulated NPU: to name a device cannot be undone in a process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.parquet"
        words = [program.model.__class__.__name__.lower(), program.kernel, mode, str(path)]
        subprocess.run([sys.executable, "-m", "benchmarks.divergences.npu", *words], check=True)
        return probe.load(path)


def compared(one: Program, other: Program, mode: Mode) -> probe.Comparison:
    """Run both and compare them."""
    options = {**other.compared, "progress": False}
    runs = watched(one, mode), watched(other, mode)
    if mode != "statistics":
        return probe.compare(*runs, **options)
    with tempfile.TemporaryDirectory() as folder:
        paths = [
            run.write_dump(Path(folder) / name, task="statistics", extras=False)
            for run, name in zip(runs, ("baseline", "candidate"), strict=True)
        ]
        return probe.compare(*paths, **options)


def first(found: probe.Comparison) -> Said | None:
    """Return what the tool says first."""
    told = found.first_divergence()
    if told is None:
        return None
    count = len(found.divergences)
    return Said(told.module, told.phase, told.sentence, told.detail, count)


def judged(case: Case, modes: Sequence[Mode] = MODES) -> Result:
    """Compare both sides of a planted case."""
    said: dict[Mode, Said | None] = {}
    verdicts: dict[Mode, Verdict] = {}
    for mode in _possible(case.program(broken=True), modes):
        found = compared(case.program(broken=False), case.program(broken=True), mode)
        said[mode] = first(found)
        verdicts[mode] = verdict(case, said[mode], mode)
    where = " or ".join(f"`{path or '(root)'}`" for path in case.at)
    return Result(
        case.title, case.name, case.architecture, f"{where}, {' or '.join(case.phases)}",
        said, verdicts, proved(case), case.corrected,
    )  # fmt: skip


def _possible(program: Program, modes: Sequence[Mode]) -> list[Mode]:
    """Return the modes to judge in: one, where a process of its own has to start for each."""
    return [mode for mode in modes if program.device == "cpu" or mode == "histograms"]


def verdict(case: Case, said: Said | None, mode: Mode) -> Verdict:
    """Compare what is said with what was written down before."""
    if said is None:
        lacks = mode == "statistics" and set(case.phases) <= {"optimizer"}
        return "not in it" if lacks else "nothing found"
    if not case.names(said.module):
        return "wrong"
    return "right" if said.phase in case.phases else "right place, other phase"


def proved(case: Case) -> str:
    """Say where plain hooks see the first different bit."""
    if case.program(broken=True).device == "npu":
        return "the device has another kernel"
    found = parted(traced(case.program(broken=False)), traced(case.program(broken=True)))
    return "" if found is None else f"{found.what} of `{found.module or '(root)'}`"


def asked(pair: Pair, modes: Sequence[Mode] = MODES) -> Result:
    """Compare both sides of a healthy pair."""
    possible = _possible(pair.program(second=True), modes)
    chosen = [mode for mode in possible if pair.whole or mode != "tensors"]
    said = {
        mode: first(compared(pair.program(second=False), pair.program(second=True), mode))
        for mode in chosen
    }
    verdicts: dict[Mode, Verdict] = {
        mode: "nothing found" if told is None else "wrong" for mode, told in said.items()
    }
    return Result(pair.title, pair.name, pair.architecture, "", said, verdicts, note=pair.corrected)


def named(result: Result, mode: Mode) -> bool:
    """Tell whether the planted module was named."""
    return result.verdicts.get(mode) in ("right", "right place, other phase")
