"""A comparison of two runs: where they part, and everything that belongs together.

`compare` takes runs, saved runs, dumps of msProbe, or two ranks of one run.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from probe_nb import progress as bars
from probe_nb import torchless
from probe_nb.analysis.compare import rounding
from probe_nb.analysis.compare.compared import WORK, Compared, Options, compared
from probe_nb.analysis.compare.divergence import (
    Divergence,
    check_direction,
    direction_of,
    origins,
    told,
)
from probe_nb.analysis.compare.fed import Fed, fed_same
from probe_nb.analysis.compare.frames import frame
from probe_nb.analysis.compare.judge import DIVERGED
from probe_nb.analysis.compare.naming import Mapped, check_known
from probe_nb.analysis.compare.onesided import one_sided, suggestions
from probe_nb.analysis.compare.profile import profile, rows_of
from probe_nb.errors import ConfigError
from probe_nb.records import Records
from probe_nb.run import Run, load, read_dump
from probe_nb.terms import Made, shown

if TYPE_CHECKING:
    from probe_nb.replay import Replay
    from probe_nb.view.plots.compare import Plots

_DUMPS: Final = ("dump.json", "debug.json")
Source = Run | str | os.PathLike[str]


class Comparison:
    """Two runs side by side.

    Attributes:
        baseline: The run to trust.
        candidate: The run in question.
        notices: What has to be known about how they were aligned.

    >>> import torch, probe_nb as probe
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))
    >>> x = torch.randn(4, 8)
    >>> with probe.watch(model) as baseline:
    ...     _ = model(x)
    >>> model[1].eps = 0.1
    >>> with probe.watch(model) as candidate:
    ...     _ = model(x)
    >>> probe.compare(baseline, candidate).first_divergence().module
    '1'
    """

    def __init__(self, baseline: Run, candidate: Run, found: Compared) -> None:
        """Hold what was compared; `compare` makes comparisons, users need not."""
        self.baseline, self.candidate = baseline, candidate
        self._of = found
        self._origins = origins(found)
        for each in self._origins:
            found.verdicts[each.pairs] = DIVERGED
        self.notices = found.notices

    @cached_property
    def _frame(self) -> pd.DataFrame:
        return frame(self._of)

    def __len__(self) -> int:
        """Return the number of rows of `df`."""
        pairs = self._of.pairs
        return len(self._of) + len(pairs.only_baseline) + len(pairs.only_candidate)

    def __bool__(self) -> bool:
        """Be true also when empty."""
        return True

    @property
    def df(self) -> pd.DataFrame:
        """One row per pair in execution order, then what only one run has; column `verdict`.

        `same`: every number agrees. `close`: what rounding explains after so many calls.
        `diverged`: more than that. `only_in_baseline`, `only_in_candidate`: nothing to compare
        with. `not_comparable`: no numbers, and `reason` says why. `docs/compare.md` explains all.
        """
        return self._frame.copy(deep=pd.__version__ < "3")

    @cached_property
    def counts(self) -> dict[str, int]:
        """Rows per verdict, of those that there are."""
        known = Counter(self._frame["verdict"].astype(str))
        return {name: known[name] for name in self._frame["verdict"].cat.categories if known[name]}

    @cached_property
    def fed_same(self) -> Fed:
        """Whether both runs were fed the same; false if not, and it says what differs."""
        return fed_same(self._of, self._frame)

    @cached_property
    def divergences(self) -> list[Divergence]:
        """Where the runs part, in execution order: all that arose independently of each other."""
        return list(told(self._of, self._origins, self._frame))

    def first_divergence(self, direction: str | None = None) -> Divergence | None:
        """Return the first call whose inputs agree and whose result does not, None without one.

        What both runs were fed counts as well: a difference in it comes before all others.

        Args:
            direction: `"forward"`, `"backward"` or `"optimizer"` for the first of these; None for
                the first of all.

        Raises:
            ConfigError: It is none of these.
        """
        check_direction(direction)
        found = (d for d in self.divergences if direction in (None, direction_of(d.phase)))
        return next(found, None)

    def profile(self, direction: str = "forward", step: int | None = None) -> pd.DataFrame:
        """Return how the difference grows: one row per output (or gradient), in execution order.

        Args:
            direction: `"forward"` or `"backward"`.
            step: A step; None for the first one of both runs.

        Returns:
            Columns: `order`, `step`, `model`, `module`, `type`, `api`, `role`, `leaf`, `call`,
            `difference`, `came_in`, `gain` (the first over the second), `tolerance`, `verdict`.

        Raises:
            ConfigError: There is no such direction.
            SelectionError: The step has no pair.
        """
        return profile(self._of, self._frame, direction, step)

    def one_sided(self) -> pd.DataFrame:
        """Return the modules and functions of which one run has rows that the other has not.

        Columns: `side`, `model`, `module`, `type`, `api`, `rows`, `calls`, `reason`, and
        `suggestion`: what it might be in the other run, for `compare(mapping=...)`.
        """
        return one_sided(self._of)

    def suggested_mapping(self) -> dict[str, str]:
        """Return a `mapping` for modules that are left over on both sides and look alike.

        It is guessed by class, shapes and position; look at it before you use it.
        """
        return suggestions(self._of)

    def to_msprobe(self, **options: Any) -> pd.DataFrame:
        """Return msProbe's columns and Results for this pair, as `msprobe compare` writes them.

        It is msProbe's judgement, faults included: `df` has ours.

        Args:
            **options: `step`, `rank`, `fuzzy`, `data_mapping`, `cell_mapping`: msProbe's own.

        Raises:
            SelectionError: The runs have no such step and rank in common.
            RunFormatError: They are not of one kind: statistics, tensors, checksums.
        """
        from probe_nb.dump import verdicts

        return verdicts.table(self.baseline, self.candidate, **options)

    def to_xlsx(self, path: str | os.PathLike[str], **options: Any) -> Path:
        """Write what `to_msprobe` gives as an Excel file, errors and warnings in colour.

        Raises:
            ConfigError: XlsxWriter is not installed, or there are more rows than Excel takes.
        """
        from probe_nb.dump import verdict_sheet

        return verdict_sheet.write(self.to_msprobe(**options), path)

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the report as one page that needs neither a kernel nor a network; return its path.

        Raises:
            FileNotFoundError: The folder is not there.
        """
        from probe_nb.view import report

        shown = self._repr_mimebundle_()["text/html"]
        return report.write(report.page(shown, "Two runs"), path)

    def rows_of(
        self,
        module: str,
        role: str,
        step: int | None = None,
        leaf: str | None = None,
        *,
        every: bool = False,
    ) -> pd.DataFrame:
        """Return the pairs of one module in one role: of one step, or of every step its first one.

        Raises:
            SelectionError: There is no such pair, or several modules match.
        """
        return rows_of(self._frame, module, role, step, leaf, every=every)

    def replay(
        self,
        module: str | None = None,
        of: Any = None,
        step: int | None = None,
        *,
        api: str | None = None,
        tolerance: float | str = 1.0,
        **options: Any,
    ) -> Replay:
        """Run a call again in float64 on the CPU, and say which run is how far from that.

        Each run's result is measured against the truth for the inputs that this run kept. It says
        which side is wrong where two differ: the candidate, the baseline, or neither.

        Args:
            module: Module path, as the baseline has it.
            of: The model, or the module itself, of either run.
            step: A step of both; None for the newest of which both kept inputs.
            api: Name of a function instead, such as `Functional.softmax`.
            tolerance: As `compare` takes it.
            **options: `call`, `micro_step`, `model`, `inputs`, `state`, as `Run.replay` takes them.

        Raises:
            SelectionError: Something that is needed was not kept or recorded by one of both.
            ModelError: `of` is no module.
            ConfigError: An option makes no sense.
        """
        with torchless.needed():
            from probe_nb import replay

        one, other = (_rank(side.data["rank"]) for side in (self._of.one, self._of.other))
        path = self._path_in_candidate(module)
        runs = {
            "baseline": replay.Where(self.baseline, module, one),
            "candidate": replay.Where(self.candidate, path, other),
        }
        return replay.replay(
            runs,
            of,
            **{"inputs": None, "state": None, **options},
            step=step,
            api=api,
            tolerance=tolerance,
        )

    def _path_in_candidate(self, module: Any) -> Any:
        """Return the candidate's path of a module, the baseline's own where none is known."""
        frame = self._frame
        path = "" if module == shown("") else module
        pairs = frame[(frame["module"] == path) & frame["row_candidate"].notna()]
        return str(pairs["module_candidate"].iloc[0]) if len(pairs) else module

    @property
    def plot(self) -> Plots:
        """The plots: `comparison.plot.profile()`, `.histograms(module)`, `.trend(module)`."""
        from probe_nb.view.plots.compare import Plots

        return Plots(self)

    def inspect(self) -> Any:
        """Return the inspector over both runs: side by side, opened where they part."""
        from probe_nb.view import comparing, inspector

        return inspector.ComparisonInspector(comparing.Comparing(self))

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        """Show the report: a table that needs no JavaScript, the inspector where scripts run."""
        from probe_nb.view import comparing, report

        return report.compared(comparing.Comparing(self))

    def __repr__(self) -> str:
        """Say where they part first, then what else there is."""
        from probe_nb.view import compare

        return compare.text(self)

    def _repr_html_(self) -> str:
        """Show the same as a static table."""
        from probe_nb.view import compare

        return compare.html(self)


def compare(
    baseline: Source,
    candidate: Source | None = None,
    *,
    mapping: Mapped = None,
    fuzzy: bool = False,
    tolerance: float | str = 1.0,
    ranks: tuple[int, int] | None = None,
    progress: bool = True,
) -> Comparison:
    """Compare two runs of the same model, and find where they part.

    Args:
        baseline: The run to trust: a run, the file of a saved one, or a dump folder of msProbe.
        candidate: The run in question. None: the same run, of which `ranks` names two processes.
        mapping: Which module is which where names differ: a dict `{baseline: candidate}` of paths
            (of a path its whole subtree), a function that gives the baseline's path for one of the
            candidate's, or the path of a yaml file of msProbe's (data mapping, cell mapping).
        fuzzy: Take calls in the order in which they came, whatever their numbers are: for runs that
            call a module a different number of times.
        tolerance: How many times what rounding explains is allowed; or the format in which the
            computation may have been done, such as `"tf32"` or `"bfloat16"`.
        ranks: The rank of the baseline and that of the candidate that are compared.
        progress: Show a bar where it takes longer than a second.

    Raises:
        ConfigError: An option makes no sense.
        SelectionError: No record is of a rank.
        FileNotFoundError: There is no such file.
        RunFormatError: It is no run and no dump.

    >>> import torch, probe_nb as probe
    >>> model, x = torch.nn.Linear(8, 8), torch.randn(4, 8)
    >>> with probe.watch(model) as baseline:
    ...     _ = model(x)
    >>> with probe.watch(model) as candidate:
    ...     _ = model(x)
    >>> comparison = probe.compare(baseline, candidate)
    >>> bool(comparison.fed_same), comparison.first_divergence(), comparison.counts
    (True, None, {'same': 4})
    """
    one = opened(baseline)
    if candidate is None and ranks is None:
        raise ConfigError(
            "`compare` was given one run. Give the run in question as well, or `ranks=(0, 1)` to "
            "compare two processes of this one."
        )
    other = one if candidate is None else opened(candidate)
    options = Options(mapping, fuzzy, tolerance, _ranks(ranks))
    known = rounding.TAKEN if any(map(_is_dump, (one, other))) else rounding.MEASURED
    sides = _of(one), _of(other)
    check_known(mapping, _modules(one), _modules(other))
    with bars.progress("Comparing", WORK, "%") as told:
        hears = told if progress else bars.silent
        found = compared(*sides, options, known, told=hears, owns=_owns(one))
    return Comparison(one, other, found)


def against(baseline: Source, candidate: Run) -> Callable[[], Comparison]:
    """Return what compares a run that still grows with another, each time as it is then.

    Raises:
        FileNotFoundError, RunFormatError, ConfigError: The baseline is no run.
    """
    one = opened(baseline)
    return lambda: compare(one, candidate, progress=False)


def opened(source: Source) -> Run:
    """Return a run, read from where it is if it is a path.

    Raises:
        ConfigError: It is neither.
    """
    if isinstance(source, Run):
        return source
    if not isinstance(source, (str, os.PathLike)):
        raise ConfigError(f"`{source!r}` is no run; give a run, or the path of a saved one.")
    path = Path(source).expanduser()
    named = path.name in _DUMPS
    dumped = named or (path.is_dir() and any(any(path.rglob(name)) for name in _DUMPS))
    return read_dump(path) if dumped else load(path)


def _of(run: Records) -> tuple[Any, Any]:
    run.flush()
    return run.columns.there()[0], run.tensors


def _modules(run: Run) -> set[str]:
    """Return the modules that have rows, and those that are known to have none."""
    seen = {site.module for site in run.columns.tables.sites.values}
    return seen | {str(made[1]) for made in run.info.tree}


def _owns(run: Run) -> Callable[[str, str], bool]:
    """Return what tells whether a module has parameters; one that nobody knows may have some."""
    tree = (Made(*made) for made in run.info.tree)
    none = {(made.model, made.module) for made in tree if made.total == 0}
    return lambda model, module: (model, module) not in none


def _rank(ranks: Any) -> int | None:
    """Return the process that all rows of a side are of, None if there is no one."""
    known = {int(each) for each in set(ranks.tolist())}
    return known.pop() if len(known) == 1 and min(known) >= 0 else None


def _is_dump(run: Run) -> bool:
    return "dump" in run.info.config


def _ranks(ranks: Any) -> tuple[int | None, int | None]:
    if ranks is None:
        return None, None
    if len(ranks) != 2 or not all(isinstance(each, int) for each in ranks):  # noqa: PLR2004
        raise ConfigError(f"`ranks` is {ranks!r}; give two numbers, as in (0, 1).")
    return ranks[0], ranks[1]
