"""`TrainerMonitorV2`: the training monitor, by the configuration of msProbe's second one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from torch.optim import Optimizer

from probe_nb.errors import ConfigError, SessionStateError, closest, notify
from probe_nb.exports.lines import lines
from probe_nb.exports.names import reduces
from probe_nb.exports.second import MONITORS, OPS, Wanted, rows_of, write
from probe_nb.monitor import asking
from probe_nb.monitor.settings import LARGEST, loaded, micro_batches
from probe_nb.monitor.stepping import Recorded
from probe_nb.observe.optimizers import as_optimizers
from probe_nb.run import Run

_NUMBERS: Final = {
    "start_step": (0, 0),
    "step_interval": (1, 1),
    "step_count_per_record": (1, 1),
    "collect_times": (1, LARGEST),
    "stop_step": (0, LARGEST),
}
_OTHER: Final = (
    *("framework", "output_dir", "rank", "monitors", "format", "async_write"),
    "patch_optimizer_step",
)
_OF_MONITOR: Final = {
    "module": ("targets",),
    "weight_grad": ("monitor_mbs_grad", "micro_batch_number", "grad_acc_steps"),
    "optimizer": ("mv_distribution",),
    "param": ("param_distribution",),
    "cc": (),
}
_ALWAYS: Final = ("enabled", "ops", "eps")
_ROLES: Final = {
    "module": ("input", "output", "grad_input", "grad_output"),
    "weight_grad": ("param_grad",),
    "optimizer": ("state",),
    "param": ("param",),
}
_SWITCHES: Final = {"optimizer": "mv_distribution", "param": "param_distribution"}


class TrainerMonitorV2:
    """Writes statistics of a training in the layout of msProbe's second monitor.

    Args:
        config_path: The configuration: a file, or what is in it as a dict.
        fr: The framework, `"pytorch"`.

    Raises:
        ConfigError: A key is unknown, or makes no sense here; the message says why.

    >>> import tempfile, torch
    >>> folder = tempfile.mkdtemp()
    >>> model = torch.nn.Linear(2, 1)
    >>> monitor = TrainerMonitorV2({"output_dir": folder, "monitors": {"module": {}}})
    >>> monitor.start(model)
    >>> _ = model(torch.ones(1, 2))
    >>> monitor.step()
    >>> monitor.stop()
    >>> [path.name for path in monitor.folder.iterdir()]
    ['module_step0-0.csv']
    """

    def __init__(self, config_path: Any, fr: str | None = None) -> None:
        config = _loaded(config_path)
        framework = fr or config.get("framework", "pytorch")
        if str(framework).strip().lower() not in ("pytorch", "pt", "torch"):
            raise ConfigError(f"`framework` is {framework!r}; here it is `pytorch`.")
        self._numbers = {name: _number(config, name, *e) for name, e in _NUMBERS.items()}
        self._wanted = _wanted(config.get("monitors", {}))
        self._ranks = _ranks(config.get("rank", []))
        self._rank = asking.rank()
        self._by_hand = config.get("patch_optimizer_step") is False
        self.folder = _folder(config.get("output_dir", "./")) / f"rank_{self._rank}"
        self.run: Run | None = None
        self.current_step = 0
        self._written = 0
        self._batches = _batches(config.get("monitors", {}))
        self._optimizer: Optimizer | None = None
        self._recorded: Recorded | None = None
        self._warned = False

    def start(self, model: Any = None, optimizer: Any = None, **context: Any) -> None:
        """Begin to watch a model, or a list of models.

        Args:
            model: The model.
            optimizer: The optimizer; with it a step ends with its `step()`, unless
                `patch_optimizer_step` is false.
            **context: `grad_acc_steps` or `micro_batch_number`: so many backwards make a step.

        Raises:
            ModelError: `model` is none.
            ConfigError: A monitor needs an optimizer, and there is none.
            SessionStateError: This monitor is watching already.
        """
        if self._recorded is not None:
            raise SessionStateError("This monitor is watching already; call `stop()` first.")
        if self._ranks and self._rank not in self._ranks:
            return
        of_steps = [each.name for each in self._wanted if each.name != "module"]
        found = as_optimizers(optimizer)
        if of_steps and not found:
            raise ConfigError(f"`{of_steps[0]}` reads what an optimizer does; give `optimizer`.")
        names = ("grad_acc_steps", "micro_batch_number")
        given = [micro_batches(context[n], n) for n in names if context.get(n) is not None]
        self._batches = self._batches or next(iter(given), 1)
        self._optimizer = found[-1] if found else None
        self.folder.mkdir(parents=True, exist_ok=True)
        roles = [role for each in self._wanted for role in _ROLES[each.name]]
        first, last, interval = self._range()
        options = {
            "roles": roles,
            "when": "train",
            "steps": f"{first}:{last}:{interval}",
            "first_step": self.current_step,
        }
        self._recorded = Recorded(model, self._optimizer, self._stepped, **options)
        self.run = self._recorded.run

    def step(self) -> None:
        """End a step, where no optimizer does."""
        if self._recorded is None:
            return
        if self._optimizer is not None and not self._by_hand:
            if not self._warned:
                self._warned = True
                notify("`step()` is not needed: a step ends with the optimizer's.")
            return
        self._end()

    def stop(self) -> None:
        """End watching; everything is written already. May be repeated."""
        if self._recorded is not None:
            self._recorded.close()
            self._recorded = None

    # -- steps --------------------------------------------------------------------------------

    def _range(self) -> tuple[int, int, int]:
        numbers = self._numbers
        first, interval = numbers["start_step"], numbers["step_interval"]
        last = min(numbers["stop_step"], first + interval * numbers["collect_times"])
        return first, last, interval

    def _stepped(self) -> None:
        if not self._by_hand:
            self._end()

    def _end(self) -> None:
        recorded, step = self._recorded, self.current_step
        if recorded is None or not recorded.run.is_open:
            return
        self.current_step += 1
        try:
            if step in range(*self._range()):
                recorded.run.flush()
                self._write(recorded.run, step)
        finally:
            recorded.next_step(self.current_step)
            self.run = recorded.run

    def _write(self, run: Run, step: int) -> None:
        rows = lines(run.columns, [step])
        first, steps = self._numbers["start_step"], self._numbers["step_count_per_record"]
        begin = first + (step - first) // steps * steps
        before = reduces(run.info.models)
        for each in (replace(each, before_reduction=before) for each in self._wanted):
            part = (begin, begin + steps - 1)
            write(self.folder, each, rows_of(each, rows, self._batches), part)


# -- the configuration -----------------------------------------------------------------------------


def _loaded(given: Any) -> Mapping[str, Any]:
    config = loaded(given)
    known = (*_NUMBERS, *_OTHER)
    for key in config:
        if key not in known:
            near = closest(str(key), known)
            raise ConfigError(f"`{key}` is no key of the second monitor's configuration.{near}")
    if config.get("format", "csv") != "csv":
        raise ConfigError(f"`format` is {config['format']!r}; the second monitor writes `csv`.")
    return config


def _number(config: Mapping[str, Any], name: str, least: int, default: int) -> int:
    value = config.get(name)
    if value is None:
        return default
    if type(value) is not int or value < least:
        raise ConfigError(f"`{name}` is {value!r}; give a whole number from {least} on.")
    return value


def _wanted(monitors: Any) -> tuple[Wanted, ...]:
    if not isinstance(monitors, Mapping):
        raise ConfigError(f"`monitors` is {monitors!r}; give an object.")
    found = []
    for name, about in monitors.items():
        if name not in MONITORS:
            raise ConfigError(f"`{name}` is no monitor.{closest(name, MONITORS)}")
        if not isinstance(about, Mapping):
            raise ConfigError(f"`{name}` of `monitors` is {about!r}; give an object.")
        if about.get("enabled", name == "module"):
            if name == "cc":
                raise ConfigError(
                    "`cc` replaces functions of `torch.distributed`, which is not done here. "
                    'Communication is recorded by `probe.watch(level="mix")`.'
                )
            if about.get(_SWITCHES.get(name, ""), True):
                found.append(_one(name, about))
    if not found:
        raise ConfigError("`monitors` switches nothing on; `module` is one.")
    return tuple(found)


def _one(name: str, about: Mapping[str, Any]) -> Wanted:
    known = (*_ALWAYS, *_OF_MONITOR[name])
    for key in about:
        if key not in known:
            raise ConfigError(f"`{key}` is no key of the monitor `{name}`.{closest(key, known)}")
    ops = about.get("ops", list(OPS))
    ops = _texts("ops", [ops] if isinstance(ops, str) else ops)
    for op in ops:
        if op not in OPS:
            raise ConfigError(f"`{op}` is no quantity.{closest(op, OPS)} Known: {', '.join(OPS)}.")
    targets = _texts("targets", about.get("targets", []))
    return Wanted(name, ops or OPS, targets, bool(about.get("monitor_mbs_grad")))


def _texts(name: str, value: Any) -> tuple[str, ...]:
    fits = isinstance(value, (list, tuple, Mapping)) and all(isinstance(v, str) for v in value)
    if not fits:
        raise ConfigError(f"`{name}` is {value!r}; give a list of texts.")
    return tuple(value)


def _folder(value: Any) -> Path:
    if not isinstance(value, (str, os.PathLike)) or "\0" in os.fspath(value):
        raise ConfigError(f"`output_dir` is {value!r}; give the name of a folder.")
    return Path(value)


def _batches(monitors: Any) -> int:
    about = monitors.get("weight_grad", {})
    given = {name: about.get(name) for name in ("micro_batch_number", "grad_acc_steps")}
    return next((micro_batches(value, name) for name, value in given.items() if value), 0)


def _ranks(value: Any) -> tuple[int, ...]:
    ranks = [value] if type(value) is int else value
    if not isinstance(ranks, list) or not all(type(each) is int for each in ranks):
        raise ConfigError(f"`rank` is {value!r}; give a number or a list of numbers.")
    return tuple(ranks)
