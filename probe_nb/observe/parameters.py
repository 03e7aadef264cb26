"""param_grad: what a backward adds to the gradient of a parameter."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from probe_nb.observe import graph
from probe_nb.observe.aside import aside
from probe_nb.observe.calls import Clock
from probe_nb.observe.select import Watched, own_parameters
from probe_nb.observe.shares import Hook
from probe_nb.observe.sink import Facts, Sink


class Parameters:
    """Hooks on the parameters that require grad."""

    def __init__(self, clock: Clock, sink: Sink) -> None:
        """Attach to nothing yet."""
        self._clock = clock
        self._sink = sink
        self._handles: dict[int, RemovableHandle] = {}

    def watch(self, modules: Iterable[tuple[Watched, nn.Module]]) -> None:
        """Attach to every parameter that requires grad and is not attached to yet."""
        for watched, module in modules:
            for name, parameter in own_parameters(module).items():
                if not parameter.requires_grad or is_lazy(parameter):
                    continue
                if type(parameter) is not nn.Parameter and hasattr(parameter, "_local_tensor"):
                    self._owe_sharded(watched, name, parameter)
                    continue
                handle = self._handles.get(id(parameter))
                if handle is None or handle.hooks_dict_ref() is None:
                    hook = ParameterHook(self, watched, name)
                    self._handles[id(parameter)] = parameter.register_hook(hook)

    def _owe_sharded(self, watched: Watched, name: str, parameter: Tensor) -> None:
        """Say that the gradient of a sharded parameter (DTensor) is not read: no hook sees it."""
        call = watched.parameters_call(self._clock)
        self._sink.absent(call, ("param_grad", name), Facts.of(parameter), "unsupported")

    def arrived(self, watched: Watched, name: str, g: Tensor) -> None:
        """Hand over what this backward adds to a parameter's gradient."""
        self._clock.backward_ran()
        if self._clock.recording:
            call = watched.parameters_call(self._clock)
            self._sink.tensor(call, ("param_grad", name), g, call.backward(graph.task()))

    def fault(self, watched: Watched, error: Exception) -> None:
        """Report an error of our own inside a hook."""
        self._sink.fault(watched, "backward", error)

    def close(self, watched: Iterable[nn.Module]) -> None:
        """Remove every hook, also those whose handles an interrupt kept from us."""
        for handle in self._handles.values():
            handle.remove()
        for module in watched:
            for parameter in own_parameters(module).values():
                self._clear(parameter)
        self._handles.clear()

    def _clear(self, parameter: Tensor) -> None:
        hooks = parameter._backward_hooks or {}
        for key, hook in list(hooks.items()):
            if isinstance(hook, ParameterHook) and hook.reports_to(self):
                hooks.pop(key, None)


class ParameterHook(Hook):
    """Reads what a backward adds to a parameter's gradient."""

    __slots__ = ("_name", "_parameters", "_watched")

    def __init__(self, parameters: Parameters, watched: Watched, name: str) -> None:
        """Remember the module and the parameter's name in it."""
        self._parameters, self._watched, self._name = parameters, watched, name

    def reports_to(self, parameters: Parameters) -> bool:
        """Tell whose hook this is."""
        return self._parameters is parameters

    def __call__(self, g: Tensor) -> None:
        """Run before the gradient is accumulated."""
        try:
            with aside():
                self._parameters.arrived(self._watched, self._name, g)
        except Exception as error:
            self._parameters.fault(self._watched, error)
