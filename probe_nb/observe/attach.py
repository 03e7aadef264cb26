"""What of ours is on torch while a session is open, put there and taken away in one place.

A Ctrl-C may come between any two instructions. So what is taken away is found by what it is, not
by a list that the interrupt may have kept from being complete, and taking away can be repeated.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer

from probe_nb.observe.compiled import Uncompiled
from probe_nb.observe.functions import Functions
from probe_nb.observe.gradients import Gradients
from probe_nb.observe.modules import ModuleHooks
from probe_nb.observe.optimizers import OptimizerHook
from probe_nb.observe.parameters import Parameters
from probe_nb.observe.steps_taken import StepsTaken

_TABLES = (
    torch_module._global_forward_pre_hooks,
    torch_module._global_forward_hooks,
    torch_optimizer._global_optimizer_pre_hooks,
    torch_optimizer._global_optimizer_post_hooks,
)


class Attachment:
    """The hooks of one session."""

    def __init__(
        self,
        modules: ModuleHooks,
        gradients: Gradients,
        parameters: Parameters,
        *,
        optimizer: OptimizerHook,
        steps: StepsTaken,
        functions: Functions | None = None,
        uncompiled: Uncompiled | None = None,
    ) -> None:
        """Hold what is to be attached; nothing is attached before `attach`."""
        self._functions = functions
        self._uncompiled = uncompiled
        self._modules = modules
        self._gradients = gradients
        self._parameters = parameters
        self._optimizer = optimizer
        self._steps = steps
        self._filters: list[Any] = []
        self._mark = f"(?#{id(self)})"  # each session its own filter: equal ones would be merged

    def attach(self, watched: list[nn.Module]) -> None:
        """Register every hook; whatever stops it half-way, none is left."""
        try:
            self._quiet_about_global_hooks()
            if self._uncompiled is not None:
                self._uncompiled.open()
            if self._steps.watches:
                torch_optimizer.register_optimizer_step_pre_hook(self._steps.before)
                torch_optimizer.register_optimizer_step_post_hook(self._steps.after)
            torch_optimizer.register_optimizer_step_post_hook(self._optimizer.after)
            self._modules.prepare(watched)
            if self._functions is not None:
                place = self._functions.place
                torch_module.register_module_forward_pre_hook(place.before)
                torch_module.register_module_forward_hook(place.after, always_call=True)
            torch_module.register_module_forward_pre_hook(self._modules.before)
            torch_module.register_module_forward_hook(self._modules.after, always_call=True)
            if self._functions is not None:
                self._functions.open()
        except BaseException:
            self.release(watched)
            raise

    def release(self, watched: list[nn.Module]) -> None:
        """Take everything away; may be repeated, and repeats itself after an interrupt."""
        try:
            self._release(watched)
        except BaseException:
            self._release(watched)
            raise

    def _release(self, watched: list[nn.Module]) -> None:
        ours: list[Any] = [self._modules, self._optimizer, self._steps]
        if self._functions is not None:
            self._functions.close()
            ours.append(self._functions.place)
        for table in _TABLES:
            for key, hook in list(table.items()):
                if getattr(hook, "__self__", None) in ours:
                    torch_module._global_forward_hooks_always_called.pop(key, None)
                    table.pop(key, None)  # last: until then the hook is found again
        if self._uncompiled is not None:
            self._uncompiled.close()
        self._steps.close()
        self._modules.close()
        self._gradients.close()
        self._parameters.close(watched)
        for filters in (*self._filters, warnings.filters):  # two lists, in a `catch_warnings`
            for each in list(filters):
                if getattr(each[1], "pattern", "").endswith(self._mark):
                    filters.remove(each)

    def _quiet_about_global_hooks(self) -> None:
        """Keep one warning of torch's from the user while our hooks are there.

        Every call of a compiled module says that process-wide hooks fire once more for it. Ours
        do not: the wrapper that torch.compile makes is not watched.
        """
        self._filters = [warnings.filters]
        message = f"Using `torch.compile\\(module\\)` when there are{self._mark}"
        warnings.filterwarnings("ignore", message=message)
