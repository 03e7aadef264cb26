"""A run: everything that one session recorded. It outlives the session and answers questions.

A run needs no torch: one that was loaded from a file is as good as one just recorded.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from probe_nb import loading
from probe_nb.answers import Answers
from probe_nb.config import MEMORY
from probe_nb.errors import ConfigError, SessionStateError, notify
from probe_nb.exports import of_run
from probe_nb.grammar import Memory, Steps, as_bytes
from probe_nb.recording import Range, Recording
from probe_nb.store import beside, files, merging
from probe_nb.store.calls import Calls
from probe_nb.store.merging import Member
from probe_nb.store.parts import Parts
from probe_nb.store.places import place_of
from probe_nb.store.values import Values
from probe_nb.view.plots import Plots


class Run(Answers):
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

    # -- while the session is open ---------------------------------------------------------

    def bind(self, session: Recording | None) -> None:
        """Connect to the open session that records this run, or with None let go of it."""
        self._session = session

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

    def register_custom_api(self, module: Any, name: str, prefix: str | None = None) -> None:
        """Record calls of a function of yours, `module.name`, at API level.

        A plain Python function is invisible to torch. So this one name is replaced, until
        `restore_custom_api` or the end of the watch. What the function calls is part of it and has
        no rows of its own. It is seen where it is looked up as `module.name`: what was imported by
        name before is the function itself.

        Args:
            module: The package, module or class that has the function.
            name: Its name there.
            prefix: What its rows have before the name. None: the name of the module.

        Raises:
            SessionStateError: The run is closed, or it records modules alone.
            ConfigError: There is no such function.

        >>> import types, torch, probe_nb as probe
        >>> mine = types.SimpleNamespace(twice=lambda x: x + x, __name__="mine")
        >>> with probe.watch(level="api", roles="output") as run:
        ...     run.register_custom_api(mine, "twice")
        ...     _ = mine.twice(torch.ones(3))
        >>> run.df["api"].tolist(), run.df["max"].tolist()
        (['mine.twice'], [2.0])
        """
        self._opened().register_custom_api(module, name, prefix)

    def restore_custom_api(self, module: Any = None, name: str | None = None) -> int:
        """Undo `register_custom_api`, for one function or for all; return how many there were.

        Raises:
            SessionStateError: The run is closed: everything was restored then.
        """
        return self._opened().restore_custom_api(module, name)

    def _opened(self) -> Recording:
        if self._session is None:
            raise SessionStateError(
                "This run is closed, so it records nothing any more, and every name is restored."
            )
        return self._session

    # -- files and views ------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the run as one Parquet file, whole or not at all, and return its path.

        Tensors that are kept go into a file beside it, `x.safetensors` beside `x.parquet`; those
        that are in a folder stay there, and the run says where.

        Args:
            path: The file. Where there are several processes, the folder of all: each writes
                `rank0.parquet`, `rank1.parquet` into it, and `probe.load(folder)` reads them as
                one. A path is a folder if it ends in a slash, if a folder is there, and in a
                process that has joined others if it does not end in `.parquet`. `{rank}` in a name
                stands for the rank.

        Raises:
            FileExistsError: A file of somebody else's, or the run of another process, is there.
            IsADirectoryError: It is a folder, and the run has no rank.

        >>> import tempfile, torch, probe_nb as probe
        >>> model = torch.nn.Linear(2, 1)
        >>> with probe.watch(model) as run:
        ...     _ = model(torch.ones(5, 2))
        >>> path = run.save(tempfile.mkdtemp() + "/run.parquet")
        >>> probe.load(path).df.equals(run.df)
        True
        """
        self.flush()
        path = place_of(path, self.info)
        tables: dict[str, Calls | Values] = {
            beside.CALLS: self.call_table,
            beside.VALUES: self.value_table,
        }
        held = {key: table.to_table() for key, table in tables.items() if len(table)}
        return files.save(path, self.columns, self.info, self.tensors, held)

    def write_dump(
        self,
        path: str | os.PathLike[str],
        *,
        task: str | None = None,
        listed: bool | None = None,
        extras: bool = True,
        overwrite: bool = False,
    ) -> Path:
        """Write the run as an msProbe folder, whole or not at all, and return its path.

        msProbe's own tools read it: `msprobe compare`, `overflow_check`, `graph_visualize`,
        `data2db`. What msProbe has no place for is left out: the model itself (msProbe records
        what is in it), buffers, and what an optimizer saw. See `docs/msprobe-folders.md`.

        Args:
            path: The folder. Each step and rank has one of its own in it, `step0/rank0`, so that
                several processes can write into the same.
            task: `"statistics"`, `"tensor"` or `"structure"`. None: as the run was recorded;
                `tensor` where it keeps tensors, which become `.pt` files.
            listed: Begin the names of modules with the index of their model, as msProbe does where
                it was given a list. None: where several models were watched.
            extras: Write also what msProbe has no word for (counts, `std`, histograms), under a key
                that it passes over.
            overwrite: Replace the folders of these steps and ranks, where they are there.

        Raises:
            FileExistsError: One of them is there.
            ConfigError: There is no such task.

        >>> import tempfile, torch, probe_nb as probe
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 1))
        >>> with probe.watch(model) as run:
        ...     _ = model(torch.ones(5, 2))
        >>> folder = run.write_dump(tempfile.mkdtemp() + "/dump")
        >>> sorted(each.name for each in folder.glob("step0/*/*"))
        ['construct.json', 'dump.json', 'stack.json']
        """
        from probe_nb.dump import roots, writer

        how = writer.wanted(self, task=task, listed=listed, ours=extras)
        written = writer.write(self, path, how, overwrite=overwrite)
        roots.tell_of_single(self.columns, self.info)
        return written

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the report as one page that needs neither a kernel nor a network; return its path.

        It is the report that a cell shows: under 200 kB, with the inspector where scripts run.
        A file that is there is written over.

        Raises:
            FileNotFoundError: The folder is not there.

        >>> import torch, probe_nb as probe
        >>> model = torch.nn.Linear(2, 1)
        >>> with probe.watch(model) as run:
        ...     _ = model(torch.ones(1, 2))
        >>> run.to_html("report.html").read_text("utf-8").startswith("<!doctype html>")
        True
        """
        from probe_nb.view import report

        return report.write(report.html_page(self), path)

    def to_monitor_csv(
        self,
        folder: str | os.PathLike[str],
        *,
        ops: Sequence[str] = of_run.DEFAULT,
        eps: float = 1e-8,
        ndigits: int = 6,
        steps_per_file: int = 1,
    ) -> Path:
        """Write the run as msProbe's training monitor would, and return the folder of its rank.

        Only modules in training mode have activations there. See `docs/training-monitor.md`.

        Args:
            folder: Where the folder is made, `Nov29_20-35-24-rank0-7212e8ed`.
            ops: The columns: `min`, `max`, `mean`, `norm`, `nans`, `zeros`, `id`, `shape`, `dtype`.
            eps: `zeros` is the share of elements with `abs(x) < eps`.
            ndigits: Digits behind the point.
            steps_per_file: How many steps are in one file.

        Raises:
            ConfigError: There is no such column, or the run does not tell `zeros`: it does where
                `eps` is a power of two, or was given to `watch` as `extras={"below:1e-8": "*"}`.

        >>> import tempfile, torch, probe_nb as probe
        >>> model = torch.nn.Linear(2, 1)
        >>> with probe.watch(model) as run:
        ...     _ = model(torch.ones(5, 2))
        >>> folder = run.to_monitor_csv(tempfile.mkdtemp())
        >>> sorted(each.name for each in folder.iterdir())
        ['actv_0-0.csv', 'param_origin_0-0.csv']
        """
        self.flush()
        return of_run.monitor_csv(
            self.columns,
            Path(folder).expanduser(),
            self.info,
            ops=ops,
            eps=eps,
            ndigits=ndigits,
            steps_per_file=steps_per_file,
        )

    def to_tensorboard(self, folder: str | os.PathLike[str]) -> Path:
        """Write the run as TensorBoard's event files and return their folder.

        Each row becomes `min`, `max`, `mean` and `l2` over steps, the counts that are not 0, and a
        histogram whose buckets are powers of two. It needs `pip install probe-nb[tensorboard]`.

        Raises:
            ImportError: tensorboardX is not installed.
        """
        from probe_nb.exports import tensorboard

        self.flush()
        path = Path(folder).expanduser()
        if not tensorboard.write_run(self.columns, path):
            notify("probe_nb: This run has no number, so nothing is in TensorBoard's files.")
        return path

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
    """Read a run that `Run.save` wrote; of a folder the runs of all processes as one.

    Of many processes each row has its `rank`. Rows lie side by side step by step, and `order` is
    numbered anew along this line: within a rank it is the order of execution. What could not be
    read, which ranks are missing, and in what the processes differ stands in `run.info.notices`;
    `run.info.processes` says of each how it ended.

    Args:
        path: The file; or the folder in which each process saved its run; or one into which tensors
            were streamed: that run has tensors and no records.
        memory: What the records may take, as for `watch`; the rest stays on disk.

    Raises:
        FileNotFoundError: Nothing is at `path`.
        RunFormatError: The file is not a run, is damaged, or is of a newer version; or the files in
            the folder are not of one job: two of the same rank, or of jobs of different sizes.
        ConfigError: `memory` is no amount.
        OSError: The records exceed `memory`, and the disk has no room for the rest.

    >>> import tempfile, torch, probe_nb as probe
    >>> model = torch.nn.Linear(2, 1)
    >>> with probe.watch(model, name="mine") as run:
    ...     _ = model(torch.ones(5, 2))
    >>> probe.load(run.save(tempfile.mkdtemp() + "/run.parquet")).info.name
    'mine'
    """
    return made_of(loading.read(Path(path).expanduser(), as_bytes(memory)))


def merge(
    runs: Sequence[Run], *, ranks: Sequence[int] | None = None, memory: Memory = MEMORY
) -> Run:
    """Lay the runs of several processes together as one; `load` does it with those of a folder.

    Args:
        runs: One run of each process.
        ranks: The rank of each, for runs that have none of their own. None: as they are numbered.
        memory: What the records may take, as for `watch`; the rest goes to disk.

    Raises:
        RunFormatError: Two are of the same rank, or they are of jobs of different sizes.
        ConfigError: There is no run, or `ranks` are not as many.
    """
    numbers = range(len(runs)) if ranks is None else ranks
    if not runs or len(numbers) != len(runs):
        raise ConfigError(f"There are {len(runs)} runs and {len(numbers)} ranks.")
    members = [
        Member(_parts(run), number if run.info.rank is None else None, f"run {place}")
        for place, (run, number) in enumerate(zip(runs, numbers, strict=True))
    ]
    return made_of(merging.merge(members, as_bytes(memory)))


def _parts(run: Run) -> Parts:
    """Return what a run is made of, as far as it can be read."""
    run.flush()
    columns = run.columns.there()[0]
    return Parts(run.info, columns, run.tensors, run.call_table, run.value_table)


def made_of(parts: Parts) -> Run:
    """Return the run that is made of these parts."""
    run = Run(parts.info, parts.columns, parts.tensors)
    run.call_table, run.value_table = parts.calls, parts.values
    return run


def read_dump(
    path: str | os.PathLike[str],
    *,
    step: Steps = None,
    rank: Steps = None,
    memory: Memory = MEMORY,
) -> Run:
    """Read a folder that msProbe wrote, of PyTorch, MindSpore or MSAdapter, as a run.

    Args:
        path: The folder of the dump, of one step or of one process in it; or a `dump.json` or
            `debug.json`.
        step: The steps that are read, as `steps=` of `watch` takes them; None for all.
        rank: The ranks that are read, in the same way.
        memory: What the records may take, as for `watch`; the rest goes to disk.

    Returns:
        A run. What was skipped, and why, is in `run.info.notices`. Tensors that were dumped are
        listed by `run.kept()`, and read when `run.tensor(...)` asks for one. Of NaN and Inf msProbe
        tells that there are some and not how many: such rows say `has_nan` or `has_inf`.

    Raises:
        FileNotFoundError: Nothing is at `path`.
        RunFormatError: It is no dump, or nothing of it can be read.
        SelectionError: It has no such step or rank.
        ConfigError: `step`, `rank` or `memory` makes no sense.

    >>> import tempfile, torch, probe_nb as probe
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> with probe.watch(model, roles="output") as run:
    ...     _ = model(torch.ones(1, 2))
    >>> folder = run.write_dump(tempfile.mkdtemp() + "/dump")
    >>> probe.read_dump(folder).df["module"].tolist()
    ['0', '1']
    """
    from probe_nb.dump import reader

    budget = as_bytes(memory)
    found = reader.read(Path(path).expanduser(), step=step, rank=rank, budget=budget)
    return made_of(found)
