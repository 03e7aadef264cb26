"""Parameters and tensors of which a process holds a part: DTensor, FSDP.

Nothing here communicates: only what this process holds is looked at. torch.distributed is not
imported; what it made is known by its attributes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, cast

import torch
from torch import Tensor, nn

from probe_nb.observe.select import Watched, own_parameters

_PLAIN: Final = (torch.Tensor, nn.Parameter)


_Facts = tuple[Tensor, bool, bool, str, str, bool]
"""What `Owned` says beside the owner."""


class Owned(NamedTuple):
    """A parameter and the module it belongs to."""

    watched: Watched
    name: str
    parameter: Tensor
    hooked: bool = True
    """A hook on it sees its gradient; else its `.grad` is looked at when a backward ends."""
    looked_at: bool = False
    """Its `.grad` may change though no gradient arrives at it here."""
    suffix: str = ""
    """What a leaf says of it that torch's own types do not: `.shard`."""
    of_grad: str = ""
    """The same of its `.grad`."""
    counted: bool = True
    """Writing to its `.grad` raises the version of that."""

    @property
    def value(self) -> Tensor:
        """What this process holds of it, also while the whole is gathered for a forward."""
        local = getattr(self.parameter, "_local_shard", None) if self.suffix else None
        return self.parameter if local is None else local


def held(t: Tensor) -> tuple[Tensor, str]:
    """Return the tensor that this process holds of `t`, and the suffix of its leaf.

    The suffix is `.shard` for a part, `.partial` for a term of a sum that is still to be made,
    and empty for a whole tensor.
    """
    if type(t) in _PLAIN:
        return t, ""
    suffix = ""
    local = getattr(t, "_local_tensor", None)
    if isinstance(local, Tensor) and hasattr(t, "placements"):
        suffix, t = _suffix(t), local
    if hasattr(t, "trigger_wait") and isinstance(getattr(t, "elem", None), Tensor):
        t = t.trigger_wait()  # the communication was begun by the model itself
    return t, suffix


def _suffix(t: Any) -> str:
    spread = [p for dim, p in enumerate(t.placements) if t.device_mesh.size(dim) > 1]
    if any(p.is_partial() for p in spread):
        return ".partial"
    return "" if all(p.is_replicate() for p in spread) else ".shard"


def is_distributed(t: Tensor) -> bool:
    """Tell whether `t` is a DTensor."""
    return type(t) not in _PLAIN and hasattr(t, "_local_tensor")


def owned(everything: Iterable[Watched], *, selected: bool = True) -> Iterator[Owned]:
    """Yield the parameters of the selected modules; a shared one under each of its owners.

    FSDP takes parameters off their modules while it has gathered them. They are found where it
    keeps them.
    """
    alive = [(w, m) for w in everything if (m := w.module()) is not None]
    kept: dict[int, dict[str, _Facts]] = {}
    for watched, module in alive:
        if watched.shell is None and not hasattr(type(module), "_get_fsdp_state"):
            continue
        with contextlib.suppress(AttributeError, TypeError, ValueError):  # names private to torch
            for at, name, facts in _kept(watched, module):
                kept.setdefault(id(at), {})[name] = facts
    for watched, module in alive:
        if watched.selected or not selected:
            elsewhere = kept.get(id(module), {})
            for name, p in module._parameters.items():
                if p is not None and name not in elsewhere:
                    yield Owned(watched, name, p, type(p) in _PLAIN or not is_distributed(p))
            for name, facts in elsewhere.items():
                yield Owned(watched, name, *facts)


def _kept(watched: Watched, module: nn.Module) -> Iterator[tuple[nn.Module, str, _Facts]]:
    if hasattr(type(module), "_get_fsdp_state"):
        yield from _fsdp2(cast("Any", module)._get_fsdp_state())
    shell = None if watched.shell is None else watched.shell()
    kind = type(shell).__name__
    if kind == "FullyShardedDataParallel":
        yield from _fsdp1(shell, module)
    elif kind == "DistributedDataParallel" and shell is not None and _may_miss(shell):
        for each in module.modules():
            for name, p in own_parameters(each).items():
                yield each, name, (p, True, True, "", "", True)


def _fsdp2(state: Any) -> Iterator[tuple[nn.Module, str, _Facts]]:
    for group in state._fsdp_param_groups:
        for p in group.fsdp_params:
            facts = (p.sharded_param, False, False, "", "", True)
            info = p._module_info
            yield info.module, info.param_name, facts
            for at, name in zip(info.shared_modules, info.shared_param_names, strict=True):
                yield at, name, facts


def _fsdp1(shell: Any, module: nn.Module) -> Iterator[tuple[nn.Module, str, _Facts]]:
    handle = shell._handle
    if handle is None:
        return
    flat = handle.flat_param
    if flat._params is None:
        pairs = [(("_flat_param", module), flat)]
        sizes = [flat._local_shard.numel()]
    else:
        shared = zip(flat._shared_param_infos, flat._shared_params, strict=True)
        pairs = [*zip(flat._param_infos, flat._params, strict=True), *shared]
        sizes = [info.numel_in_shard or 0 for info in flat._shard_param_infos]
    of_grad = _part(handle, [p.grad for _, p in pairs], sizes)
    for info, p in pairs:
        suffix = ".shard" if handle.uses_sharded_strategy else ""
        yield info[1], info[0], (p, False, False, suffix, of_grad, False)


def _part(handle: Any, grads: list[Tensor | None], sizes: list[int]) -> str:
    """Tell gradients that are a process's part from whole ones, which `no_sync` accumulates.

    Of some parameter every process lacks something, so whole gradients show by their size.
    """
    if not handle.uses_sharded_strategy:
        return ""
    pairs = zip(grads, sizes, strict=False)
    whole = any(grad is not None and grad.numel() != size for grad, size in pairs)
    return "" if whole else ".shard"


def _may_miss(shell: Any) -> bool:
    """Tell whether DDP may bring gradients of other processes to a parameter unused in this."""
    return bool(shell.find_unused_parameters or shell.static_graph)
