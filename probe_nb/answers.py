"""What can be asked of a run beyond its rows: what is wrong, what was fed, kept and missed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from probe_nb import torchless
from probe_nb.analysis import findings, missed
from probe_nb.analysis.finding import Finding
from probe_nb.analysis.listed import Whole
from probe_nb.analysis.origins import Origin, first_nonfinite
from probe_nb.analysis.tally import Tally
from probe_nb.analysis.thresholds import with_changes
from probe_nb.analysis.updates import updates
from probe_nb.analysis.verdict import Judge
from probe_nb.analysis.what_if import what_if
from probe_nb.records import Records
from probe_nb.store.filters import fed
from probe_nb.store.kept import frame as listed

if TYPE_CHECKING:
    import torch

    from probe_nb.replay import Replay
    from probe_nb.view.structure import Structure


class Answers(Records):
    """A run that answers questions."""

    def findings(self, **thresholds: float) -> pd.DataFrame:
        """Return what is wrong with this run, worst first; a healthy run has notes at most.

        One fault is one row: what follows from it, and other sites of which the same holds, are
        counted in `detail`. Errors come first, then warnings, then notes; of each what began first.

        Args:
            **thresholds: Change a threshold for this question, such as `dead_share=0.95`;
                `docs/findings.md` has all, with their sources.

        Returns:
            A DataFrame that prints as sentences: `severity` (`error`, `warning`, `note`), `kind`,
            `module`, `step` (from which on it holds), `sentence`, `detail`, `advice` (what to try),
            `model`, `role`, `leaf`, `rows` (labels of `run.df` that are evidence), `value` and
            `threshold`.

        Raises:
            ConfigError: There is no threshold of that name, or its value makes no sense.

        >>> import torch, probe_nb as probe
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Softmax(-1))
        >>> with probe.watch(model) as run:
        ...     _ = model(torch.full((1, 2), float("nan")))
        >>> run.findings()["sentence"].item()
        'NaN first appeared at step 0 in (root) (forward input)'
        """
        found = self._findings(thresholds)
        return findings.as_frame(found, "" if found else self._unjudged())

    def what_if(self, dtype: Any, step: int | None = None) -> pd.DataFrame:
        """Return what another dtype would do to the values of each site, worst first.

        It follows from the exponent histograms, without the tensors: exactly, but for the values
        in the topmost power of two of the dtype, of which at least one overflows if `absmax` does.

        Args:
            dtype: `"float16"`, `"bfloat16"`, `"float8_e4m3fn"` or `"float8_e5m2"`, or torch's own.
            step: One step, -1 for the last; all steps by default.

        Returns:
            A DataFrame, one row per site; functions (`api`) are sites where they were recorded, so
            only `level="mix"` tells of what lies between two modules. `underflow`, `subnormal` and
            `overflow` are shares of the values that are not zero: below the smallest number, in the
            range where bits are lost, beyond the largest. For gradients, `loss_scale` is the
            largest power of two that keeps them in the lowest quarter of the range; the smallest
            of these, in `frame.attrs["loss_scale"]`, fits all, and `lost` is the share that is
            below the smallest number even then. `pd.NA` is a share that nobody knows: dumps of
            msProbe's have no histograms.

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

    def _unjudged(self) -> str:
        """Say why nothing can be found in a run without numbers; "" where there are some."""
        from probe_nb.view.frame import reading

        with reading(self) as builder:
            said = builder.verdict()
        parts = ("Nothing could be judged", said.sentence, said.detail)
        return ". ".join(part for part in parts if part) if said.kind == "empty" else ""

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
        self, module: str, step: int | None = None, *, model: str | None = None, rank: Any = None
    ) -> pd.DataFrame:
        """Return what a module was fed in one step: the rows of its forward inputs.

        It may be asked for while the run is open, in a hook on the optimizer's step above all:
        what was seen so far is taken in first.

        Args:
            module: Module path, exact or a pattern that matches one module.
            step: A step; None or -1 for the newest in which the module was fed anything, -2 for the
                one before.
            model: Name of the model, where several have a module of this path.
            rank: One process of several, or some of them, as in `frame`; None for all.

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
        return fed(self.columns, module, step, model=model, rank=rank)

    def updates(
        self,
        step: int | str | Sequence[int] | None = None,
        *,
        module: str | Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Return what moved each parameter and how far: one row per parameter and step.

        Rows are there for every parameter that had a gradient or was moved. What only an
        optimizer's step tells is there for the optimizers that were named as `optimizer=`; it can
        be asked for inside a hook of yours on the optimizer, of the step that it is in.

        Args:
            step: A step, several, or a text as `steps=` takes it; -1 is the last; None for all.
            module: Module path or pattern, or several, as in `frame`; None for all.

        Returns:
            Columns: `module`, `parameter`, `step`; `ratio`, the update's l2 over that of the
            parameter; `update_l2`; `param_l2` before the step; `model`, `type` of the module;
            `input_absmax`, `input_l2`, `input_mean`, `input_std` of all that the module was fed in
            the step; `grad_absmax`, `grad_l2` of the gradient as the optimizer saw it, else as the
            backward left it; `lr` of its group; `skipped`, whether the step was not made; `status`
            of the update, or why there is none, such as `"not_held"` where no named optimizer has
            the parameter. `pd.NA` means that there is no such number.

            An optimizer that stepped several times in a step is told of with its last.

        Raises:
            SelectionError: There is no such step or module.

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
        return updates(self.columns, self.info, step, module)

    def kept(self) -> pd.DataFrame:
        """Return one row per tensor that was to be kept: where it was seen, and if it is there.

        Columns: `module`, `role`, `leaf`, `step`, `model`, `direction`, `micro_step`, `call`,
        `backward`, as in `df`; `dtype`, `shape`, `bytes`; `status`: `"kept"`, or `"not kept: "` and
        the reason; `rank`. `docs/kept-tensors.md` has the reasons.

        >>> import torch, probe_nb as probe
        >>> model = torch.nn.Linear(2, 1)
        >>> with probe.watch(model, keep="(root)") as run:
        ...     _ = model(torch.ones(5, 2))
        >>> run.kept()[["role", "shape", "bytes", "status"]].values.tolist()
        [['input', (5, 2), 40, 'kept']]
        """
        return listed(self.tensors.known())

    def tensor(
        self,
        module: str | None = None,
        role: str = "input",
        step: int | None = None,
        *,
        api: str | None = None,
        call: int | None = None,
        leaf: str | None = None,
        micro_step: int | None = None,
        direction: str | None = None,
        model: str | None = None,
        rank: int | None = None,
    ) -> torch.Tensor:
        """Return a tensor that `watch(keep=...)` kept, on the CPU, with memory of its own.

        Args:
            module: Module path, exact or a pattern that matches one module.
            role: Its role.
            api: Name of a function or of a saved value, such as `Functional.linear`; `module` is
                then the module around its calls, None for all.
            step: Its step; None for the newest in which one was kept.
            call: Which call of it in that step; None for the first in its micro step.
            leaf: Its leaf path, needed where there are several.
            micro_step: Its micro step; None for the newest.
            direction: Its direction, for a role that has several; the role's own otherwise.
            model: Name of the model, where several have a module of this path.
            rank: The process that had it, needed where several have.

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
            module, role, api=api, **where, direction=direction, model=model, rank=rank
        )
        return found

    def replay(
        self,
        module: str | None = None,
        of: Any = None,
        step: int | None = None,
        *,
        api: str | None = None,
        call: int | None = None,
        micro_step: int | None = None,
        model: str | None = None,
        rank: int | None = None,
        inputs: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        tolerance: float | str = 1.0,
    ) -> Replay:
        """Run a call again in float64 on the CPU, and say how far the device's result is from that.

        A copy of the module is run on the inputs that were kept, and what `keep=` kept of its
        outputs is measured against what comes out, and against what rounding explains. The module,
        its optimizer and all random numbers stay as they are. See `docs/replay.md`.

        Args:
            module: Module path, exact or a pattern that matches one module.
            of: The model that was watched, or the module itself. Its parameters have to be those of
                the step, unless they were kept; a run tells if they are not.
            step: Its step; None for the newest of which inputs are there.
            api: Name of a function instead, such as `Functional.softmax`; `module` is then the
                module around it, and `of` the function, where it is none of torch's.
            call: Which call in that step; None for the first in its micro step.
            micro_step: Its micro step; None for the newest.
            model: Name of the model, where several have a module of this path.
            rank: The process that had it; None for the first.
            inputs: Arguments that were not kept or recorded, by leaf path: `{"kwargs.mask": mask}`.
            state: Parameters and buffers, as `state_dict()` of the module or of the model has them.
            tolerance: How many times what rounding explains is allowed; or the format in which the
                computation may have been done, such as `"tf32"` or `"bfloat16"`.

        Raises:
            SelectionError: Something that is needed was not kept or recorded; the message says what
                to do.
            ModelError: `of` is no module.
            ConfigError: An option makes no sense.

        >>> import torch, probe_nb as probe
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
        >>> with probe.watch(model, keep=probe.Keep("*", roles="input, output")) as run:
        ...     _ = model(torch.ones(4, 8))
        >>> run.replay("0", model).verdict
        'within'
        """
        with torchless.needed():
            from probe_nb import replay

        self.flush()
        where = {"step": step, "call": call, "micro_step": micro_step, "model": model}
        return replay.replay(
            {"run": replay.Where(self, module, rank)},
            of,
            api=api,
            inputs=inputs,
            state=state,
            tolerance=tolerance,
            **where,
        )

    # -- what ran inside what ---------------------------------------------------------------------

    def calls(self) -> pd.DataFrame:
        """Return what ran inside what: one row per call, in the order in which the calls began.

        Forwards that activation checkpointing repeats are no calls of their own, nor is what runs
        in steps that are not recorded.

        Columns: `step`, `micro_step`, `rank`, `model`, `module`, `type`, `call` as in `df`; `api`,
        the function that was called, empty for a module; `parent`, the label of the row of the
        module (or registered function) around it, `pd.NA` for what nothing watched runs around;
        `stack`, the lines of yours that led to it, the innermost first, where `stacks=True`.

        >>> import torch, probe_nb as probe
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> with probe.watch(model, level="mix") as run:
        ...     _ = model(torch.ones(1, 2))
        >>> run.calls()[["module", "api", "parent"]].astype(object).values.tolist()[:3]
        [['', '', <NA>], ['0', '', 0], ['0', 'Functional.linear', 1]]
        """
        self.flush()
        return self.call_table.frame()

    def structure(self, step: int | None = None) -> Structure:
        """Return the tree of modules: classes, parameters, and what went through each in one call.

        Args:
            step: A step; None for the first in which a module ran.

        Returns:
            What shows the tree, in a notebook as a table. Its `df` has it as a DataFrame, and
            `to_module_struct(path)` writes what msProbe's training monitor calls
            `module_struct.json`.

        >>> import torch, probe_nb as probe
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> with probe.watch(model, structure=True) as run:
        ...     _ = model(torch.ones(1, 2))
        >>> run.structure()
        model · Sequential · 3 modules · 9 parameters
        <BLANKLINE>
        module  type        parameters  inputs          outputs
        (root)  Sequential           9  float32 (1, 2)  float32 (1, 3)
          0     Linear               9  float32 (1, 2)  float32 (1, 3)
          1     ReLU                 0  float32 (1, 3)  float32 (1, 3)
        """
        from probe_nb.view.structure import Structure

        self.flush()
        if self._session is not None:
            self._session.structure()
        return Structure(self.columns, self.info, step)

    # -- what was not seen --------------------------------------------------------------------

    def coverage(self) -> pd.DataFrame:
        """Return what is missing, why, and what to do: one row per module and reason.

        First the modules whose calls left no row, then the rows without numbers.

        Columns: `model`, `module`, `type`; `reason`, such as `"never called"`, or the `status` of
        rows without numbers; `rows`, how many of these there are, `pd.NA` where the module left
        none; `remedy`, what to do.

        >>> import torch, probe_nb as probe
        >>> model = torch.nn.ModuleDict({"used": torch.nn.ReLU(), "unused": torch.nn.ReLU()})
        >>> with probe.watch(model) as run:
        ...     _ = model["used"](torch.ones(2))
        >>> run.coverage()[["module", "reason"]].values.tolist()
        [['', 'a container'], ['unused', 'never called']]
        """
        self.flush()
        found = missed.coverage(self.columns, self.info)
        frame = pd.DataFrame(found, columns=list(missed.COLUMNS))
        return Whole(frame.astype({"rows": "Int64"}))
