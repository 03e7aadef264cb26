"""torchlens: a trace of each step, with gradients, kept as whole tensors."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.watching import Watching

DISTRIBUTION = "torchlens"
HOW = "`tl.trace(model, x)` with `save_grads`, `log_backward(loss)` and `tl.save`, in each step"
NOTEBOOK = ""


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
        traces[-1].cleanup()

    yield Watching(forward, backward, after)


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


def birth(folder: Path) -> str:
    """Ask its two reports for each saved trace, the forward's and the backward's."""
    import torchlens as tl

    told = []
    warnings.simplefilter("ignore")
    for trace in _loaded(folder):
        forward = tl.debug.nan_report(trace)
        if forward.found:
            told.append(f"{forward.origin_label} in {forward.module_address}")
        with contextlib.suppress(Exception):
            backward = tl.debug.bisect_nan_backward(trace)
            if backward.birth is not None:
                told.append(f"{backward.birth.grad_fn_label} in {backward.birth.module}")
    return "\n".join(told)
