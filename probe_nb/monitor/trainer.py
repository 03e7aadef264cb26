"""`TrainerMon`: the training monitor, by the configuration and the calls of msProbe's first one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from torch.optim import Optimizer

from probe_nb.errors import ConfigError, SessionStateError, notify
from probe_nb.exports.layout import Sheets
from probe_nb.exports.lines import Line, Shares, lines
from probe_nb.exports.monitor_csv import CsvFolder
from probe_nb.exports.names import reduces, squashed
from probe_nb.exports.structure import module_struct
from probe_nb.exports.tensorboard import Board
from probe_nb.monitor import asking
from probe_nb.monitor.alerts import Anomaly, Watcher
from probe_nb.monitor.settings import Settings, micro_batches, read
from probe_nb.monitor.stepping import Recorded
from probe_nb.observe.optimizers import as_optimizers
from probe_nb.run import Run
from probe_nb.store.blocks import whole

FOLDER: Final = "MONITOR_OUTPUT_DIR"
"""The environment variable that says where files go; `./monitor_output` if it is not set."""

DYNAMIC: Final = "DYNAMIC_MONITOR"
"""The environment variable that has the configuration read again whenever it changes."""


class TrainerMon:
    """Writes statistics of a training, step by step, in the layout of msProbe's monitor.

    Nothing of the training changes, bit for bit. The numbers of all steps are in `run` too.

    Args:
        config_file_path: The configuration: a file, or what is in it as a dict.
        process_group: Taken and not needed: ranks are those of the default group.
        params_have_main_grad: Taken and not needed: gradients are read where torch has them.
        opt_ty: Taken and not needed.

    Raises:
        ConfigError: A key is unknown, or makes no sense here; the message says why.

    >>> import tempfile, torch, os
    >>> os.environ["MONITOR_OUTPUT_DIR"] = tempfile.mkdtemp()  # else `./monitor_output`
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> monitor = TrainerMon({"xy_distribution": True, "ops": ["min", "max"]})
    >>> monitor.set_monitor(model, optimizer)
    >>> model(torch.ones(1, 2)).sum().backward()
    >>> optimizer.step()
    >>> monitor.stop()
    >>> sorted(path.name for path in monitor.folder.iterdir())
    ['actv_0-0.csv', 'actv_grad_0-0.csv']
    """

    def __init__(
        self,
        config_file_path: Any,
        process_group: Any = None,  # noqa: ARG002 - as in msProbe
        params_have_main_grad: Any = True,  # noqa: ARG002, FBT002 - as in msProbe
        opt_ty: Any = None,  # noqa: ARG002 - as in msProbe
    ) -> None:
        self.settings: Settings = read(config_file_path)
        self.run: Run | None = None
        self.folder: Path | None = None
        self._base = Path(os.environ.get(FOLDER, "./monitor_output"))
        self._dynamic = os.environ.get(DYNAMIC, "False").lower() == "true"
        self._changed = 0
        self._idle = False
        self._model: Any = None
        self._optimizer: Optimizer | None = None
        self._wrapped: Any = None
        self._batches = 1
        self._step = 0
        self._rank = asking.rank()
        self._recorded: Recorded | None = None
        self._files: CsvFolder | None = None
        self._alerts: Watcher | None = None
        self._structure_due = False
        self._stacks_due = False
        self._board: Board | None = None

    # -- what msProbe's has -----------------------------------------------------------------------

    def set_monitor(  # noqa: PLR0917 - as in msProbe
        self,
        model: Any,
        optimizer: Any,
        grad_acc_steps: int = 1,
        tp_group: Any = None,  # noqa: ARG002 - as in msProbe
        dp_group: Any = None,  # noqa: ARG002 - as in msProbe
        start_iteration: int = 0,
    ) -> None:
        """Begin to watch.

        Args:
            model: The model, or a list of models (the stages of a pipeline in this process).
            optimizer: The optimizer, or a wrapper that has it as `.optimizer`. A step ends with
                its `step()`.
            grad_acc_steps: So many backwards make a step.
            tp_group: Taken and not needed.
            dp_group: Taken and not needed.
            start_iteration: The number of the first step.

        Raises:
            ModelError: `model` is none.
            ConfigError: There is no optimizer, `grad_acc_steps` is no count, or a target names no
                module.
            SessionStateError: This monitor is watching already.
        """
        if self._recorded is not None:
            raise SessionStateError("This monitor is watching already; call `stop()` first.")
        found = as_optimizers(optimizer)
        if not found:
            raise ConfigError("A step ends with the optimizer's, so `optimizer` is needed.")
        given = micro_batches(grad_acc_steps, "grad_acc_steps")
        self._model, self._optimizer = model, found[-1]
        self._batches = max(given, self.settings.numbers["micro_batches"])
        self._step = start_iteration
        if self.settings.ranks and self._rank not in self.settings.ranks:
            return
        if self._dynamic:
            self._count()
        else:
            self._open()

    def monitor_gnorm_with_ad(  # noqa: PLR0917 - as in msProbe
        self,
        model: Any,
        optimizer: Any = None,
        grad_acc_steps: int = 1,
        tp_group: Any = None,
        dp_group: Any = None,
        start_iteration: int = 0,
    ) -> None:
        """Begin to watch, as `set_monitor` does; the name of earlier versions."""
        optimizer = self._wrapped if optimizer is None else optimizer
        self.set_monitor(model, optimizer, grad_acc_steps, tp_group, dp_group, start_iteration)

    def set_wrapped_optimizer(self, optimizer: Any) -> None:
        """Name the optimizer that `monitor_gnorm_with_ad` is not given."""
        self._wrapped = optimizer

    # -- what is ours -----------------------------------------------------------------------------

    def stop(self) -> None:
        """End watching; everything is written already. May be repeated."""
        if self._recorded is not None:
            self._recorded.close()
            self._recorded = None
        if self._board is not None:
            self._board.close()
            self._board = None

    def __enter__(self) -> TrainerMon:  # noqa: PYI034 - `Self` came with Python 3.11
        """Be stopped at the end of a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop; the user's exception goes on untouched."""
        self.stop()

    @property
    def anomalies(self) -> list[Anomaly]:
        """What the rules of `alert` have found so far."""
        return [] if self._alerts is None else list(self._alerts.found)

    # -- sessions ---------------------------------------------------------------------------------

    def _open(self) -> None:
        settings = self.settings
        self._structure_due = settings.asks("print_struct")
        self._stacks_due = settings.asks("stack_info")
        if not self._structure_due and not self._options()["roles"]:
            raise ConfigError(
                "This configuration asks for nothing; switch on `xy_distribution`, "
                "`wg_distribution`, `mv_distribution`, `param_distribution` or others."
            )
        self._make_files()
        if self._structure_due:
            self._record(asking.of_structure())
        else:
            self._record({**self._options(), "steps": asking.steps(settings)})

    def _options(self) -> dict[str, Any]:
        return asking.options(self.settings, several=isinstance(self._model, (list, tuple)))

    def _record(self, options: dict[str, Any]) -> None:
        options = {**options, "first_step": self._step}
        self._recorded = Recorded(self._model, self._optimizer, self._stepped, **options)
        self._idle = False
        self.run = self._recorded.run

    def _count(self) -> None:
        """Record nothing and count steps, so that the configuration is looked at after each."""
        options = {"roles": "output", "steps": asking.NEVER, "first_step": self._step}
        self._recorded = Recorded(self._model, self._optimizer, self._stepped, **options)
        self._idle = True

    def _close(self) -> None:
        if self._recorded is not None:
            self._recorded.close()
            self._recorded = None

    def _make_files(self) -> None:
        settings = self.settings
        layout = settings.layout()
        if self.folder is None:
            self.folder = asking.place(self._base, settings, self._rank)
        if settings.format == "tensorboard":
            self._board = self._board or Board(self.folder)
        else:
            self._files = CsvFolder(
                self.folder,
                layout,
                ndigits=settings.numbers["ndigits"],
                steps_per_file=settings.numbers["step_count_per_record"],
            )
        dumped = self._base / "anomaly_detected" if settings.dumps_alerts else None
        self._alerts = Watcher(settings.rules, self._rank, dumped)

    # -- steps ------------------------------------------------------------------------------------

    def _stepped(self) -> None:
        """Write down a step that has ended."""
        recorded, step = self._recorded, self._step
        if recorded is None or not recorded.run.is_open:
            return
        self._step += 1
        try:
            if not self._idle:
                self._write(recorded.run, step)
        finally:
            recorded.next_step(self._step)
            self.run = None if self._idle else recorded.run
        self._after(step)

    def _after(self, step: int) -> None:
        """Decide what is recorded from here on."""
        if self._structure_due:
            self._structure_due = False
            self._close()
            options = self._options()
            if options["roles"]:
                self._record({**options, "steps": asking.steps(self.settings)})
        elif not self._idle and self.settings.is_done_after(step):
            self._close()
            if self._dynamic:
                self._switch_off()
                self._count()
        elif self._dynamic:
            self._look_at_config()

    def _write(self, run: Run, step: int) -> None:
        run.flush()
        rows = lines(run.columns, [step])
        if self._structure_due:
            self._write_structure(rows)
        elif self.settings.wants(step):
            self._write_tables(run, rows)

    def _write_tables(self, run: Run, rows: list[Line]) -> None:
        layout = self.settings.layout(before_reduction=reduces(run.info.models))
        tables = Sheets(rows, Shares(run.columns, rows, layout.eps), layout).tables()
        if self._alerts is not None:
            columns = {name: asking.quantities(layout, name) for name in tables}
            self._alerts.look(tables, columns)
        if self._board is not None:
            self._board.write(tables, layout)
        if self._files is None:
            return
        self._files.write(tables)
        if self._stacks_due:
            self._stacks_due = False
            self._files.write_stacks(asking.stacks(run, self._named))

    def _named(self, model: str, module: str) -> str:
        """Return the name of a module with its stage, as keys of the structure have it."""
        path = squashed(module) if self.settings.asks("squash_name") else module
        return f"{model if model.isdecimal() else 0}:{path}"

    def _write_structure(self, rows: list[Line]) -> None:
        folder = self._base / "module_struct" / f"rank{self._rank}"
        folder.mkdir(parents=True, exist_ok=True)
        found = module_struct(rows, lambda line: self._named(line.model, line.module))
        with whole(folder / "module_struct.json", lasting=False) as file:
            file.write(json.dumps(found, indent=2).encode())

    # -- a configuration that changes ---------------------------------------------------------

    def _switch_off(self) -> None:
        """Write that collecting has ended, as msProbe does, so that it can be begun again."""
        source = self.settings.source
        if source is None:
            return
        try:
            config = json.loads(source.read_text(encoding="utf-8-sig"))
            with whole(source) as file:
                file.write(json.dumps(config | {"dynamic_on": False}, indent=2).encode())
            self._changed = source.stat().st_mtime_ns
        except (OSError, RecursionError, TypeError, ValueError) as error:
            notify(f"probe_nb: `dynamic_on` could not be switched off: {error!r}")

    def _look_at_config(self) -> None:
        """Read the configuration again if it changed; what it says holds from the next step on."""
        source = self.settings.source
        if source is None:
            return
        try:
            changed = source.stat().st_mtime_ns
            if changed == self._changed:
                return
            self._changed = changed
            settings = read(source)
        except (OSError, ValueError) as error:
            notify(f"probe_nb: the configuration was not read again: {error}")
            return
        if settings.asks("dynamic_on"):
            self._close()
            self.settings = asking.beginning(settings, self._step)
            self._open()
