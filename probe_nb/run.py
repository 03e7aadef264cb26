"""A run: everything that one session recorded. It outlives the session and answers questions.

A run needs no torch: one that was loaded from a file is as good as one just recorded.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from probe_nb.analysis import findings, missed
from probe_nb.analysis.finding import Finding
from probe_nb.analysis.origins import Origin, first_nonfinite
from probe_nb.analysis.tally import Tally
from probe_nb.analysis.thresholds import with_changes
from probe_nb.analysis.updates import updates
from probe_nb.analysis.verdict import Judge
from probe_nb.analysis.what_if import what_if
from probe_nb.config import MEMORY
from probe_nb.errors import SessionStateError, notify
from probe_nb.exponents import Histogram
from probe_nb.grammar import Memory, as_bytes
from probe_nb.recording import Range, Recording
from probe_nb.store import files
from probe_nb.store.columns import Columns
from probe_nb.store.filters import chosen, fed, line, summed
from probe_nb.store.keeping import Tensors, streamed
from probe_nb.store.kept import frame as listed
from probe_nb.store.table import COLUMNS, stored, to_frame
from probe_nb.terms import RunInfo
from probe_nb.view.plots import Plots

if TYPE_CHECKING:
    import torch


class Run:
    """The records of one session, and what can be asked of them.

    Attributes:
        info: Names, versions, options, and how the session ended.
        columns: The records as columns; `df` is the comfortable form of the same.
        tensors: The tensors that are kept; `kept()` lists them, `tensor()` gives one.
        readers: What the report has read so far is kept here, so that it is read once.

    A run can be copied and pickled; the copy is closed. To keep one, use `save`.

    >>> import torch, probe_nb as probe
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> with probe.watch(model, roles="input,output") as run:
    ...     for _ in range(3):
    ...         _ = model(torch.ones(5, 2))
    >>> len(run)
    6
    >>> float(run.frame(role="input", step=2)["mean"].item())
    1.0
    """

    def __init__(
        self, info: RunInfo, columns: Columns | None = None, tensors: Tensors | None = None
    ) -> None:
        """Hold records; sessions and `probe.load` make runs, users need not."""
        self.info = info
        self.columns = Columns() if columns is None else columns
        self.tensors = Tensors() if tensors is None else tensors
        self.readers: list[Any] = []
        self._session: Recording | None = None
        self._frame: pd.DataFrame | None = None
        self._warned = False

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy or a pickle holds: the records, and nothing of the session."""
        self.flush()
        return {**vars(self), "readers": [], "_session": None, "_frame": None}

    # -- while the session is open ---------------------------------------------------------

    def bind(self, session: Recording | None) -> None:
        """Connect to the open session that records this run, or with None let go of it."""
        self._session = session

    @property
    def is_open(self) -> bool:
        """Tell whether the session still records."""
        return self._session is not None

    def flush(self) -> None:
        """Take in what the open session has seen since the last step ended."""
        if self._session is not None:
            self._session.flush()

    def step(self) -> None:
        """End the current step; from then on steps end only where you say so.

        Raises:
            SessionStateError: The session is closed.
        """
        if self._session is None:
            raise SessionStateError(
                "This run is closed, so it has no step to end. Call `run.step()` inside the "
                "`with probe.watch(...)` block."
            )
        self._session.step()

    def only(self, module: Any, name: str) -> Range:
        """Record one module alone, under a name of yours, until the range is closed.

        Its inside and everything else are silent. What counts is where a call begins: gradients
        that arrive later belong to the range too. Steps and calls go on being counted.

        Args:
            module: A `torch.nn.Module`; it need not be part of a watched model.
            name: What its rows have as `module`.

        Returns:
            A range: use it in `with`, or call its `close()`. It ends with the watch in any case.

        Raises:
            SessionStateError: The run is closed, or another range is open.
            ModelError: `module` is not a module.
            ConfigError: `name` is no text, or empty.

        >>> import torch, probe_nb as probe
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> with probe.watch(model, roles="output") as run:
        ...     with run.only(model, "MyBlock"):
        ...         _ = model(torch.ones(1, 2))
        >>> run.df["module"].tolist()
        ['MyBlock']
        """
        if self._session is None:
            raise SessionStateError(
                "This run is closed, so it records nothing any more. Use `run.only` inside the "
                "`with probe.watch(...)` block."
            )
        return self._session.only(module, name)

    # -- records ----------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of records."""
        self.flush()
        return len(self.columns)

    def __bool__(self) -> bool:
        """Be true also when empty: `run or other` asks whether there is a run."""
        return True

    @property
    def df(self) -> pd.DataFrame:
        """Every record, one row each, in execution order (column `order`).

        Text columns are categoricals and numbers are nullable: `pd.NA` means "not computed",
        and `status` says why.
        """
        self.flush()
        if self.columns.spilled:
            self._warn_of_size()
            return self._whole()
        if self._frame is None or len(self._frame) != len(self.columns):
            self._frame = self._whole()
        shares = pd.__version__ < "3"  # before pandas 3 a shallow copy can be written through
        return self._frame.copy(deep=shares)

    def frame(self, **filters: Any) -> pd.DataFrame:
        """Return the rows of `df` that pass every filter.

        Args:
            **filters: `step`, `micro_step`, `rank`, `call`, `model`, `module`, `type`,
                `direction`, `role`, `leaf`, `status`. Text is a shell pattern (`"layers.*"`), or
                a list of patterns; a number is a number, a list, a `range`, a `slice`, or a text
                as `steps=` takes it (`"0-3"`). The root module is `""` or `"(root)"`.

        Returns:
            A DataFrame; empty where no row passes. Numbers that no row has are no mistake, so
            that a loop over steps need not know which were recorded.

        Raises:
            SelectionError: A filter has an unknown name, a text pattern matches nothing in this
                run (the message names the nearest), or a text names no numbers.
        """
        self.flush()
        return chosen(self.columns, filters, COLUMNS)

    def _whole(self) -> pd.DataFrame:
        columns = self.columns.tail(0, stored(COLUMNS))
        return to_frame(columns, self.columns.tables)

    def _warn_of_size(self) -> None:
        """Say once that a frame of everything is larger than what the run may take."""
        if not self._warned:
            self._warned = True
            notify(
                f"`run.df` reads all {len(self.columns):,} records into memory, of which "
                f"{self.columns.spilled:,} are on disk. `run.frame(step=…, module=…)` reads only "
                "what you ask for."
            )

    def history(
        self,
        module: str,
        role: str = "output",
        stat: str = "absmax",
        *,
        leaf: str | None = None,
        model: str | None = None,
    ) -> pd.Series:
        """Return one statistic of one site over steps.

        Several calls, micro steps or leaves in a step are joined into one number: the smallest
        `min`, the largest `max`, `absmax` or `l2`, the sum of a count, the mean of the rest
        weighted by the number of elements.

        Leaves are joined unless `leaf` names one: weight and bias, every tensor of a tuple. Of
        `param_grad` those are joined that hold what a backward adds (`weight`), and those that
        hold what `.grad` was then (`weight.grad`) only where a module has no others, as in FSDP.

        Args:
            module: Module path, exact or a pattern that matches one module.
            role: One role, such as `"output"` or `"grad_output"`.
            stat: A statistic or a count, such as `"std"` or `"nan_count"`.
            leaf: One leaf path or a pattern, such as `"weight"` or `"weight.grad"`; None joins
                them as said above.
            model: Name of the model, where several have a module of this path.

        Returns:
            A Series named after the site, indexed by step.

        Raises:
            SelectionError: No such module, role or statistic.
        """
        self.flush()
        return line(self.columns, module, role, stat, leaf=leaf, model=model)

    def histogram(
        self,
        module: str,
        role: str = "output",
        step: int | None = None,
        *,
        leaf: str | None = None,
        model: str | None = None,
    ) -> Histogram:
        """Return the exponent histogram of one site, the last step's by default.

        Calls, micro steps and leaves of the step are added up. Which leaves these are is said at
        `history`: gradients as they are added, not again as `.grad` holds them.

        Raises:
            SelectionError: No such module, role or step, or nothing was counted there.
        """
        self.flush()
        return summed(self.columns, module, role, step, leaf=leaf, model=model)

    # -- answers --------------------------------------------------------------------------------

    def findings(self, **thresholds: float) -> pd.DataFrame:
        """Return what is wrong with this run, worst first; a healthy run has notes at most.

        One fault is one row: what follows from it, and other sites of which the same holds, are
        counted in `detail`. Errors come first, then warnings, then notes; of each what began first.

        Args:
            **thresholds: Change a threshold for this question, such as `dead_share=0.95`;
                `docs/findings.md` has all, with their sources.

        Returns:
            A DataFrame: `severity` (`error`, `warning`, `note`), `kind`, `model`, `module`,
            `role`, `leaf`, `step` (from which on it holds), `sentence`, `detail`, `advice` (what
            to try), `rows` (labels of `run.df` that are evidence), `value` and `threshold`.

        Raises:
            ConfigError: There is no threshold of that name, or its value makes no sense.

        >>> import torch, probe_nb as probe
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Softmax(-1))
        >>> with probe.watch(model) as run:
        ...     _ = model(torch.full((1, 2), float("nan")))
        >>> run.findings()["sentence"].item()
        'NaN first appeared at step 0 in (root) (forward input)'
        """
        return findings.as_frame(self._findings(thresholds))

    def what_if(self, dtype: Any, step: int | None = None) -> pd.DataFrame:
        """Return what another dtype would do to the values of each site, worst first.

        It follows from the exponent histograms, without the tensors: exactly, but for the values
        in the topmost power of two of the dtype, of which at least one overflows if `absmax` does.

        Args:
            dtype: `"float16"`, `"bfloat16"`, `"float8_e4m3fn"` or `"float8_e5m2"`, or torch's own.
            step: One step; all steps by default.

        Returns:
            A DataFrame, one row per site: `underflow`, `subnormal` and `overflow` are shares of the
            values that are not zero: below the smallest number, in the range where bits are lost,
            beyond the largest. For gradients, `loss_scale` is the largest power of two that keeps
            them in the lowest quarter of the range; the smallest of these, in
            `frame.attrs["loss_scale"]`, fits all, and `lost` is the share that is below the
            smallest number even then.

        Raises:
            SelectionError: The dtype is none of these, or the step has no record.

        >>> import torch, probe_nb as probe
        >>> model = torch.nn.Identity()
        >>> with probe.watch(model, roles="input") as run:
        ...     _ = model(torch.tensor([1e-9, 1e-5, 1.0, 1e6]))
        >>> run.what_if("float16")[["underflow", "subnormal", "overflow"]].values.tolist()
        [[0.25, 0.25, 0.25]]
        """
        self.flush()
        return what_if(self.columns, dtype, step)

    def _findings(self, thresholds: dict[str, Any]) -> list[Finding]:
        from probe_nb.view.frame import reading

        if thresholds:
            self.flush()
            tally = Tally(self.columns, with_changes(thresholds))
            tally.read()
            return Judge(tally).findings(self.info)
        with reading(self) as builder:
            return builder.judge.findings(self.info)

    # -- what is the matter ----------------------------------------------------------------------

    def first_nonfinite(self) -> Origin | None:
        """Return where the first NaN or Inf was born, None if there is none but on purpose.

        It is the first call, in execution order, whose inputs, parameters and buffers were finite
        and whose result was not, in the forward, in the backward or at the optimizer; or the two
        modules between which it arose, where the fault lies in the code of their parent. Only what
        was recorded can be said: a role that is missing is named in its `detail`.

        -Inf as in masks and log-probabilities is no fault unless it turns into NaN or +Inf, or is
        what a loss or the model gives out; nor are gradients that overflow under a `GradScaler`
        which finds its scale again. See `docs/find-a-nan.md`.

        >>> import torch, probe_nb as probe
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Softmax(dim=-1))
        >>> with probe.watch(model) as run:
        ...     _ = model(torch.full((1, 2), torch.inf))
        >>> run.first_nonfinite().sentence
        '+Inf first appeared at step 0 in (root) (forward input)'
        """
        self.flush()
        left, _ = self.columns.there()
        return first_nonfinite(left, self.info)

    # -- tensors --------------------------------------------------------------------------------

    def inputs(
        self, module: str, step: int | None = None, *, model: str | None = None
    ) -> pd.DataFrame:
        """Return what a module was fed in one step: the rows of its forward inputs.

        It may be asked for while the run is open, in a hook on the optimizer's step above all:
        what was seen so far is taken in first.

        Args:
            module: Module path, exact or a pattern that matches one module.
            step: A step; None for the newest in which the module was fed anything.
            model: Name of the model, where several have a module of this path.

        Returns:
            The rows of `df`, one per input tensor and call; empty if there are none in that step.

        Raises:
            SelectionError: No such module, or no inputs of it were recorded.

        >>> import torch, probe_nb as probe
        >>> model = torch.nn.Linear(2, 1)
        >>> with probe.watch(model) as run:
        ...     model(torch.full((5, 2), 3.0)).sum().backward()
        ...     fed = run.inputs("(root)")
        >>> float(fed["mean"].item())
        3.0
        """
        self.flush()
        return fed(self.columns, module, step, model=model)

    def updates(self, step: int | str | Sequence[int] | None = None) -> pd.DataFrame:
        """Return what moved each parameter and how far: one row per parameter and step.

        Rows are there for every parameter that had a gradient or was moved. What only an
        optimizer's step tells is there for the optimizers that were named as `optimizer=`; it can
        be asked for inside a hook of yours on the optimizer, of the step that it is in.

        Args:
            step: A step, several, or a text as `steps=` takes it; None for all.

        Returns:
            Columns: `model`, `module`, `parameter`, `type` of the module, `step`; `input_absmax`,
            `input_l2`, `input_mean`, `input_std` of all that the module was fed in the step;
            `grad_l2`, `grad_absmax` of the gradient as the optimizer saw it, else as the backward
            left it; `update_l2`; `param_l2` before the step; `ratio`, the update's l2 over that of
            the parameter; `lr` of its group; `skipped`, whether the step was not made; `status` of
            the update, such as `skipped_budget`. `pd.NA` means that there is no such number.

            An optimizer that stepped several times in a step is told of with its last.

        >>> import torch, probe_nb as probe
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        >>> with probe.watch(model, optimizer=optimizer) as run:
        ...     model(torch.ones(1, 1)).sum().backward()
        ...     optimizer.step()
        >>> run.updates()[["parameter", "input_l2", "grad_l2", "update_l2", "lr"]].values.tolist()
        [['weight', 1.0, 1.0, 0.5, 0.5]]
        """
        self.flush()
        return updates(self.columns, self.info.moved, step)

    def kept(self) -> pd.DataFrame:
        """Return one row per tensor that was to be kept: where it was seen, and if it is there.

        Columns: `model`, `module`, `direction`, `role`, `leaf`, `step`, `micro_step`, `call`,
        `backward`, as in `df`; `dtype`, `shape`, `bytes`; `status`: `"kept"`, or `"not kept: "` and
        the reason. `docs/kept-tensors.md` has the reasons.
        """
        return listed(self.tensors.known())

    def tensor(
        self,
        module: str,
        role: str = "input",
        step: int | None = None,
        *,
        call: int | None = None,
        leaf: str | None = None,
        micro_step: int | None = None,
        direction: str | None = None,
        model: str | None = None,
    ) -> torch.Tensor:
        """Return a tensor that `watch(keep=...)` kept, on the CPU, with memory of its own.

        Args:
            module: Module path, exact or a pattern that matches one module.
            role: Its role.
            step: Its step; None for the newest in which one was kept.
            call: Which call of the module in that step; None for the first in its micro step.
            leaf: Its leaf path, needed where there are several.
            micro_step: Its micro step; None for the newest.
            direction: Its direction, for a role that has several; the role's own otherwise.
            model: Name of the model, where several have a module of this path.

        Raises:
            SelectionError: It is not there; the message says what is, and why this is not.
            FileNotFoundError: It was in a file that is gone.
            RunFormatError: It is in a file that is damaged.

        >>> import torch, probe_nb as probe
        >>> model = torch.nn.Linear(2, 1)
        >>> with probe.watch(model, keep="(root)") as run:
        ...     _ = model(torch.tensor([[1.0, 2.0]]))
        >>> run.tensor("(root)")
        tensor([[1., 2.]])
        """
        where = {"step": step, "call": call, "leaf": leaf, "micro_step": micro_step}
        found: torch.Tensor = self.tensors.tensor(
            module, role, **where, direction=direction, model=model
        )
        return found

    # -- what was not seen --------------------------------------------------------------------

    def coverage(self) -> pd.DataFrame:
        """Return what is missing, why, and what to do: one row per module and reason.

        First the modules whose calls left no row, then the rows without numbers.

        Columns: `model`, `module`, `type`; `reason`, such as `"never called"`, or the `status` of
        rows without numbers; `rows`, how many of these there are, `pd.NA` where the module left
        none; `remedy`, what to do.
        """
        self.flush()
        found = missed.coverage(self.columns, self.info)
        frame = pd.DataFrame(found, columns=list(missed.COLUMNS))
        return frame.astype({"rows": "Int64"})

    # -- files and views ------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the run as one Parquet file, whole or not at all, and return its path.

        Tensors that are kept go into a file beside it, `x.safetensors` beside `x.parquet`; those
        that are in a folder stay there, and the run says where.

        Raises:
            FileExistsError: They would overwrite a file that is none of ours.
        """
        self.flush()
        return files.save(path, self.columns, self.info, self.tensors)

    def __repr__(self) -> str:
        """Say in a few lines what was recorded and what the worst finding is."""
        from probe_nb.view import text

        return text.summary(self)

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        """Show the report: a table that needs no JavaScript, the inspector where scripts run."""
        from probe_nb.view import report

        return report.bundle(self)

    @property
    def plot(self) -> Plots:
        """The plots of this run: `run.plot.histogram("fc1")`, `run.plot.heatmap()` and others."""
        return Plots(self)

    def inspect(self) -> Any:
        """Return the inspector widget over this run, live while the session is open."""
        from probe_nb.view import inspector

        widget = inspector.Inspector(self)
        if self._session is not None:
            self._session.listeners.append(widget.refresh)
        return widget


def load(path: str | os.PathLike[str], *, memory: Memory = MEMORY) -> Run:
    """Read a run that `Run.save` wrote, or the tensors that were streamed into a folder.

    Args:
        path: The file, or the folder: its run has tensors and no records.
        memory: What the records may take, as for `watch`; the rest stays on disk.

    Raises:
        FileNotFoundError: Nothing is at `path`.
        RunFormatError: The file is not a run, is damaged, or is of a newer version.
        ConfigError: `memory` is no amount.
        OSError: The records exceed `memory`, and the disk has no room for the rest.
    """
    if Path(path).expanduser().is_dir():
        return Run(*streamed(Path(path).expanduser().absolute()))
    columns, info = files.load(path, as_bytes(memory))
    return Run(info, columns, files.kept(path))


def save(run: Run, path: str | os.PathLike[str]) -> Path:
    """Write a run to one file; the same as `run.save(path)`."""
    return run.save(path)
