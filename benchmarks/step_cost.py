"""What a watch adds to a step, and what msProbe adds to the same step, in turns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
from torch import nn

import probe_nb
from benchmarks.models import SIZES, batch, encoder, histograms, items, train
from benchmarks.msprobe import MsProbe
from benchmarks.table import Row
from benchmarks.timing import Stopwatch, added, between, ratio
from tools.msprobe import MissingError


class Case(NamedTuple):
    """One way to watch: what the table calls it, the options, the bars per size.

    `hooks` is somebody else's way, in place of options.
    """

    what: str
    options: dict[str, Any] | None
    bars: dict[str, float] = {}  # noqa: RUF012 - never written
    today: dict[str, float] = {}  # noqa: RUF012 - never written
    hooks: Callable[[nn.Module], AbstractContextManager[None]] | None = None


_ALL: Final = "every role, exact histograms"
_FUNCTIONS: Final = 'functions, `level="api"`'
_BOTH: Final = 'modules and functions, `level="mix"`'
_SAME: Final = {"L0": _ALL, "L1": _FUNCTIONS, "mix": _BOTH}
"""What of ours sees what a level of msProbe's sees."""

CASES: Final = (
    Case("bare step (the noise of this run)", None),
    Case(_ALL, {}, {"d256": 1.20, "d64": 1.50}, {"d256": 1.9}),
    Case(
        "inputs, outputs and their gradients",
        {"roles": ["input", "output", "grad_output", "grad_input"]},
        {"d256": 1.12},
    ),
    Case(_FUNCTIONS, {"level": "api"}),
    Case(_BOTH, {"level": "mix"}),
    Case("watch open, step not selected by `steps=`", {"steps": 10**6}, {"d256": 1.02}),
    Case("own hooks, six `.item()` for each output", None, hooks=items),
    Case("own hooks, a histogram of each parameter's gradient", None, hooks=histograms),
)
_ADDED_BAR: Final = 1 / 8
_ADDED_TODAY: Final = 1 / 2
_WARM: Final = 3


@dataclass
class Rounds:
    """The ratios of one size, round by round: ours by case, msProbe's by level."""

    ours: dict[str, list[float]] = field(default_factory=dict)
    theirs: dict[str, list[float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


class Bench:
    """One model of ours and msProbe's processes beside it, measured in rounds."""

    def __init__(self, size_name: str, levels: Sequence[str], *, cpu: bool) -> None:
        """Start msProbe at each level; what cannot be had is written down in `found`."""
        self.found = Rounds()
        self._watch = Stopwatch(cpu=cpu)
        size = SIZES[size_name]
        self._steps = size.steps
        self._model, self._x = encoder(size.width, size.layers), batch(size.width)
        self._stack = contextlib.ExitStack()
        self._processes: dict[str, MsProbe] = {}
        for level in levels:
            with self._noted(level):
                process = MsProbe(size_name, level, cpu=cpu)
                self._processes[level] = process
                self._stack.callback(process.close)

    def run(self, rounds: int) -> Rounds:
        """In each round measure every case between bare steps, then msProbe at each level."""
        with self._stack:
            for _ in range(_WARM):
                train(self._model, self._x)
            for _ in range(rounds):
                self._ours()
                for level, process in self._processes.items():
                    self._theirs(level, process)
        return self.found

    @contextlib.contextmanager
    def _noted(self, level: str) -> Iterator[None]:
        try:
            yield
        except MissingError as error:
            self.found.missing[level] = str(error)

    def _theirs(self, level: str, process: MsProbe) -> None:
        if level not in self.found.missing:
            with self._noted(level):
                self.found.theirs.setdefault(level, []).append(process.round())

    def _ours(self) -> None:
        bares, measured = [self._bare()], []
        for case in CASES:
            measured.append(self._measured(case))
            bares.append(self._bare())
        for case, value in zip(CASES, between(bares, measured), strict=True):
            self.found.ours.setdefault(case.what, []).append(value)

    def _measured(self, case: Case) -> float:
        if case.options is not None:
            return self._watched(case.options)
        hooks = contextlib.nullcontext() if case.hooks is None else case.hooks(self._model)
        with hooks:
            return self._bare()

    def _bare(self) -> float:
        return self._watch.per_run(lambda: train(self._model, self._x), self._steps)

    def _watched(self, options: dict[str, Any]) -> float:
        """Time steps inside a watch, the drain at each step's end included, opening it not."""
        with probe_nb.watch(self._model, live=False, **options) as run:

            def act() -> None:
                train(self._model, self._x)
                run.step()

            act()
            return self._watch.per_run(act, self._steps)


def rows(rounds: int, levels: Sequence[str], *, cpu: bool) -> list[Row]:
    """Measure every size and return the rows of the table."""
    torch.set_num_threads(1)
    table = []
    for size_name, size in SIZES.items():
        found = Bench(size_name, levels, cpu=cpu).run(rounds)
        table += _our_rows(size_name, size.title, found)
        for level in levels:
            table += _msprobe_rows(size.title, level, found)
    return table


def _our_rows(size_name: str, title: str, found: Rounds) -> list[Row]:
    return [
        Row(
            f"step against bare step, {title}: {case.what}",
            ratio(found.ours[case.what]),
            case.bars.get(size_name),
            case.today.get(size_name),
        )
        for case in CASES
    ]


def _msprobe_rows(title: str, level: str, found: Rounds) -> list[Row]:
    today = _ADDED_TODAY if level == "L0" else None
    alone = f"step against bare step, {title}: msProbe {level} statistics"
    against = f"time we add against the time msProbe {level} adds, {title}: {_SAME[level]}"
    missing = found.missing.get(level)
    if missing:
        return [
            Row(alone, None, missing=missing),
            Row(against, None, _ADDED_BAR, today, missing),
        ]
    theirs = found.theirs[level]
    ours_added = ratio(added(found.ours[_SAME[level]], theirs))
    return [Row(alone, ratio(theirs)), Row(against, ours_added, _ADDED_BAR, today)]
