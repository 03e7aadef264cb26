"""torchlens: a trace of each step, with gradients, kept as whole tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.watching import Watching

DISTRIBUTION = "torchlens"
HOW = "`tl.trace(model, x)` with `save_grads`, `log_backward(loss)` and `tl.save`, in each step"
NOTEBOOK = ""
_TOLD: Final = "told.txt"
_ASKED: Final = 5
"""Traces that are asked where a NaN was born: all of those in the programs that have one."""


@contextlib.contextmanager
def watch(model: Any, optimizer: Any, folder: Path) -> Iterator[Watching]:
    """Trace each forward in place of the call, and let the trace run the backward."""
    del optimizer
    import torchlens as tl

    traces: list[Any] = []

    def forward(*given: Any) -> Any:
        options = tl.options.CaptureOptions(save_grads=True)
        traces.append(tl.trace(model, list(given), capture=options))
        return traces[-1][traces[-1].output_layers[0]].out

    def backward(loss: Any) -> None:
        traces[-1].log_backward(loss)

    def after() -> None:
        tl.save(traces[-1], str(folder / f"trace{len(traces):03}"))

    yield Watching(forward, backward, after)
    told = [line for trace in traces[:_ASKED] for line in _born(trace)]
    (folder / _TOLD).write_text("\n".join(told), encoding="utf-8")


def _born(trace: Any) -> Iterator[str]:
    """Ask its two reports, the forward's and the backward's."""
    import torchlens as tl

    forward = tl.debug.nan_report(trace)
    if forward.found:
        yield f"forward: {forward.origin_label} in {forward.module_address}"
    try:
        backward = tl.debug.bisect_nan_backward(trace)
    except Exception as error:
        yield f"backward: error: {type(error).__name__}: {error}"
        return
    if backward.birth is not None:
        yield f"backward: {backward.birth.grad_fn_label} in {backward.birth.module}"


def _loaded(folder: Path) -> Iterator[Any]:
    import torchlens as tl

    for path in sorted(folder.glob("trace*")):
        yield tl.load(str(path))


def numbers(folder: Path) -> Iterator[tuple[str, float]]:
    """Read the tensors, and take their numbers: a whole tensor holds them all."""
    import torch

    for trace in _loaded(folder):
        for label in trace.layer_labels:
            for op in trace[label].ops:
                words = f"{label} {getattr(op, 'modules', '')}"
                for kind in ("out", "grad"):
                    value = getattr(op, kind, None)
                    if isinstance(value, torch.Tensor):
                        yield from _numbers(f"{words} {kind}", value)
        for parameter in trace.params:
            for kind in ("value", "grad"):
                value = getattr(parameter, kind, None)
                if isinstance(value, torch.Tensor):
                    yield from _numbers(f"{parameter.address} {kind}", value)


def _numbers(words: str, value: Any) -> Iterator[tuple[str, float]]:
    value = value.detach().double()
    finite = value[value.isfinite()]
    if finite.numel():
        yield f"{words} min", finite.min().item()
        yield f"{words} max", finite.max().item()
    yield f"{words} nan", value.isnan().sum().item()
    yield f"{words} inf", value.isinf().sum().item()


def birth(folder: Path, phase: str) -> str:
    """Return what it said when the traces were at hand: of a backward it tells nothing later."""
    told = (folder / _TOLD).read_text(encoding="utf-8").splitlines()
    head = f"{phase}: "
    return "\n".join(each.removeprefix(head) for each in told if each.startswith(head))
