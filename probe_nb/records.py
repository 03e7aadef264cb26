"""The records of a run: all rows, some of them, one line over steps, one histogram."""

from __future__ import annotations

from typing import Any

import pandas as pd

from probe_nb.errors import notify
from probe_nb.exponents import Histogram
from probe_nb.recording import Recording
from probe_nb.store.calls import Calls
from probe_nb.store.columns import Columns
from probe_nb.store.filters import chosen, line, summed
from probe_nb.store.keeping import Tensors
from probe_nb.store.table import COLUMNS, stored, to_frame
from probe_nb.store.values import Values
from probe_nb.terms import RunInfo


class Records:
    """What a run holds, and the ways to read it as it was written."""

    def __init__(
        self, info: RunInfo, columns: Columns | None = None, tensors: Tensors | None = None
    ) -> None:
        """Hold records; sessions and `probe.load` make runs, users need not."""
        self.info = info
        self.columns = Columns() if columns is None else columns
        self.tensors = Tensors() if tensors is None else tensors
        self.call_table = Calls(notices=info.notices)
        self.value_table = Values(notices=info.notices)
        self.readers: list[Any] = []
        self._session: Recording | None = None
        self._frame: pd.DataFrame | None = None
        self._warned = False

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy or a pickle holds: the records, and nothing of the session."""
        self.flush()
        return {**vars(self), "readers": [], "_session": None, "_frame": None}

    @property
    def is_open(self) -> bool:
        """Tell whether the session still records."""
        return self._session is not None

    def flush(self) -> None:
        """Take in what the open session has seen since the last step ended."""
        if self._session is not None:
            self._session.flush()

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
        and `status` says why. `docs/columns.md` has every column.

        >>> import torch, probe_nb as probe
        >>> model = torch.nn.Identity()
        >>> with probe.watch(model) as run:
        ...     _ = model(torch.tensor([3.0, -4.0]))
        >>> run.df[["role", "shape", "mean", "absmax", "status"]].values.tolist()
        [['input', (2,), -0.5, 4.0, 'ok'], ['output', (2,), -0.5, 4.0, 'ok']]
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
                as `steps=` takes it (`"0-3"`). The root module is `""` or `"(root)"`; in
                the frame it is `""`, as in `model.named_modules()`.

        Returns:
            A DataFrame; empty where no row passes. Numbers that no row has are no mistake, so
            that a loop over steps need not know which were recorded.

        Raises:
            SelectionError: A filter has an unknown name, a text pattern matches nothing in this
                run (the message names the nearest), or a text names no numbers.

        >>> import torch, probe_nb as probe
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> with probe.watch(model) as run:
        ...     for _ in range(3):
        ...         _ = model(torch.ones(5, 2))
        >>> run.frame(type="ReLU", role="output", step="1-2")["step"].tolist()
        [1, 2]
        """
        self.flush()
        return chosen(self.columns, filters, COLUMNS)

    def values(self) -> pd.DataFrame:
        """Return what was seen and is no tensor: one row per number, text, None and the like.

        It is recorded of arguments and results with `watch(values=True)`, and of what
        `probe.save(value, name)` is given.

        Returns:
            A DataFrame: `step`, `micro_step`, `rank`; `order`, the `order` of the row of `df` that
            comes next; `call`, `model`, `module`, `type`, `api`, `direction`, `role`, `leaf`, as in
            `df`; `kind`, such as `"int"`, `"str"`, `"None"`, `"torch.dtype"`, or `"object"`, of
            which only the name of the class is known; `value`, a Python object.

        >>> import probe_nb as probe
        >>> with probe.watch(level="debug") as run:
        ...     probe.save({"lr": 0.1, "name": "warm-up"}, "settings")
        >>> run.values()[["api", "leaf", "value"]].values.tolist()
        [['settings', 'lr', 0.1], ['settings', 'name', 'warm-up']]
        """
        self.flush()
        return self.value_table.frame()

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
        module: str = "",
        role: str = "output",
        stat: str = "absmax",
        *,
        leaf: str | None = None,
        model: str | None = None,
        api: str | None = None,
        rank: Any = None,
    ) -> pd.Series:
        """Return one statistic of one site over steps.

        Several calls, micro steps or leaves in a step are joined into one number: the smallest
        `min`, the largest `max` or `absmax`, the `l2` of all elements together (the root of the
        sum of squares), the sum of a count, the mean of the rest weighted by the number of
        elements.

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
            api: A function that the module calls, such as `"Functional.relu"`; None: the module
                itself, where it has rows of its own. What no module runs around has the path `""`.
            rank: One process of several, or some of them, as in `frame`; None joins all.

        Returns:
            A Series named after the site, indexed by step, in the unit of the tensor; NaN is a step
            without that number.

        Raises:
            SelectionError: No such module, role or statistic; or no step has that number: it was
                not measured, or msProbe wrote no such number into its dump.

        >>> import torch, probe_nb as probe
        >>> model = torch.nn.Identity()
        >>> with probe.watch(model) as run:
        ...     for size in (1.0, 2.0):
        ...         _ = model(torch.tensor([3 * size, -4 * size]))
        >>> run.history("(root)", "output", "absmax").to_dict()
        {0: 4.0, 1: 8.0}
        """
        self.flush()
        return line(self.columns, module, role, stat, leaf=leaf, model=model, api=api, rank=rank)

    def histogram(
        self,
        module: str = "",
        role: str = "output",
        step: int | None = None,
        *,
        leaf: str | None = None,
        model: str | None = None,
        api: str | None = None,
        rank: Any = None,
    ) -> Histogram:
        """Return the exponent histogram of one site, the last step's by default.

        Calls, micro steps and leaves of the step are added up. Which leaves these are is said at
        `history`: gradients as they are added, not again as `.grad` holds them. So are `api` and
        `rank`.

        Args:
            module: Module path, exact or a pattern that matches one module.
            role: One role, such as `"output"` or `"grad_output"`.
            step: A step, -1 for the last; None for the last one too.
            leaf: One leaf path or a pattern; None joins them.
            model: Name of the model, where several have a module of this path.
            api: A function that the module calls, as in `history`.
            rank: One process of several, or some of them, as in `frame`; None joins all.

        Raises:
            SelectionError: No such module, role or step, or nothing was counted there.

        >>> import torch, probe_nb as probe
        >>> model = torch.nn.Identity()
        >>> with probe.watch(model) as run:
        ...     _ = model(torch.tensor([1.0, 1.5, -4.0, 0.0]))
        >>> run.histogram("(root)").signed()
        [(-1, 2, 1), (1, 0, 2)]
        """
        self.flush()
        return summed(self.columns, module, role, step, leaf=leaf, model=model, api=api, rank=rank)
