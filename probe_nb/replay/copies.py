"""A module again, in float64 on the CPU: nothing of it is shared with the one that it is made of.

Hooks stay behind, but for those of `torch.nn.utils`, which compute parameters. `deepcopy` is told
beforehand what each tensor becomes, so no copy of a parameter is ever made on the device.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn

from probe_nb.replay.wide import Unanswerable, widened

_HOOKS: Final = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs"),
    "_forward_hooks_always_called",
)
_COMPUTES: Final = "torch.nn.utils."
_CONTAINERS: Final = (list, tuple, dict)


def wide_copy(module: nn.Module) -> tuple[nn.Module, int]:
    """Return the copy, and how many hooks of the user's stayed behind.

    Raises:
        Unanswerable: It cannot be copied; the message says why.
    """
    memo: dict[int, Any] = {}
    left = 0
    for each in module.modules():
        left += _without_hooks(each, memo)
        for tensor in _tensors_of(each):
            if id(tensor) not in memo:
                memo[id(tensor)] = _copied(tensor)
    try:
        made = copy.deepcopy(module, memo)
    except Exception as error:
        raise Unanswerable(f"it cannot be copied ({type(error).__name__}: {error})") from error
    if isinstance(made, torch.jit.ScriptModule):  # it copies itself, whatever it is told
        made = made.to("cpu", torch.float64)
    return made, left


def again(module: nn.Module) -> nn.Module:
    """Return a copy of a copy, with buffers and everything else of its own but the parameters."""
    return copy.deepcopy(module, {id(p): p for p in module.parameters()})


def _without_hooks(module: nn.Module, memo: dict[int, Any]) -> int:
    left: set[int] = set()
    for name in _HOOKS:
        table = vars(module).get(name)
        if not table:
            continue
        hooks = vars(module)[name.removesuffix("_with_kwargs").removesuffix("_always_called")]
        kept = {key: hook for key, hook in hooks.items() if _computes(hook)}
        memo[id(table)] = OrderedDict((k, v) for k, v in table.items() if k in kept)
        left.update(key for key, hook in hooks.items() if key not in kept and not _is_ours(hook))
    return len(left)


def _computes(hook: Any) -> bool:
    return type(hook).__module__.startswith(_COMPUTES)


def _is_ours(hook: Any) -> bool:
    return type(hook).__module__.startswith("probe_nb.")


def _tensors_of(module: nn.Module) -> Iterator[Tensor]:
    """Yield the tensors that a module holds itself: registered ones and plain attributes."""
    for value in (*module._parameters.values(), *module._buffers.values(), *_attributes(module)):  # noqa: SLF001
        if isinstance(value, Tensor):
            yield value


def _attributes(module: nn.Module) -> Iterator[Any]:
    for name, value in vars(module).items():
        if name in ("_parameters", "_buffers", "_modules"):
            continue
        yield value
        if isinstance(value, _CONTAINERS):
            yield from value.values() if isinstance(value, dict) else value


def _copied(tensor: Tensor) -> Tensor:
    if hasattr(tensor, "device_mesh"):
        raise Unanswerable("a part of its parameters is in other processes")
    if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer) and tensor.device.type == "meta":
        raise Unanswerable("its parameters have no values")
    made = widened(tensor.detach()).clone()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made
