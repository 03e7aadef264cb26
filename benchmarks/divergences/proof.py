"""Where two programs really part: what plain hooks see, compared bit by bit.

Both sides of a planted case run on one machine with the same random numbers, so whatever is not
planted is the same to the last bit. The first tensor that is not, in the order of execution, is
what the tool has to lead to. It is found here without the tool.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

from benchmarks.divergences.case import Program

_PHASE: Final = {"grad": "backward", "update": "optimizer"}


@dataclass(frozen=True)
class Seen:
    """One tensor: where it was seen, and what its bytes add up to."""

    what: str
    module: str
    bits: tuple[Any, ...]

    @property
    def phase(self) -> str:
        """The phase that it belongs to."""
        return _PHASE.get(
            self.what, "forward" if self.what in ("buffer", "input", "output") else "fed"
        )


@dataclass
class Trace:
    """All that was seen, in order."""

    seen: list[Seen] = field(default_factory=list)

    def note(self, what: str, module: str, value: Tensor) -> None:
        """Write a tensor down."""
        data = value.detach().contiguous().cpu()
        raw = data.view(-1).view(dtype=torch.uint8).numpy().tobytes() if data.numel() else b""
        self.seen.append(Seen(what, module, (tuple(data.shape), str(data.dtype), zlib.crc32(raw))))


def traced(program: Program) -> Trace:
    """Run a program under plain hooks."""
    trace = Trace()
    names = dict(program.model.named_modules())
    for name, module in names.items():
        for leaf in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            trace.note("begins", name, leaf)
    hooks = [hook for name, module in names.items() for hook in _hooks(trace, name, module)]
    if program.optimizer is not None:
        hooks.append(program.optimizer.register_step_post_hook(lambda *_: _moved(trace, names)))
    try:
        program.run()
    finally:
        for hook in hooks:
            hook.remove()
    return trace


def parted(one: Trace, other: Trace) -> Seen | None:
    """Return what differs first, as it was seen in the first; None if nothing does."""
    for left, right in zip(one.seen, other.seen, strict=False):
        if left != right:
            return left
    return None


def _moved(trace: Trace, names: dict[str, nn.Module]) -> None:
    for name, module in names.items():
        for parameter in module.parameters(recurse=False):
            trace.note("update", name, parameter)


def _hooks(trace: Trace, name: str, module: nn.Module) -> Iterator[Any]:
    def before(_: nn.Module, args: Any, kwargs: Any) -> None:
        for buffer in module.buffers(recurse=False):
            trace.note("buffer", name, buffer)
        for value in _tensors([args, kwargs]):
            trace.note("input", name, value)

    def after(_: nn.Module, __: Any, out: Any) -> None:
        for value in _tensors(out):
            trace.note("output", name, value)
            if value.requires_grad:
                value.register_hook(lambda grad: trace.note("grad", name, grad))

    yield module.register_forward_pre_hook(before, with_kwargs=True)
    yield module.register_forward_hook(after)
    for parameter in module.parameters(recurse=False):
        yield parameter.register_hook(lambda grad: trace.note("grad", name, grad))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)
