"""TensorBoard: it has no hooks, so its user writes what he thought of beforehand."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.watching import Watching

DISTRIBUTION = "tensorboard"
HOW = (
    "`SummaryWriter.add_histogram` of each parameter and its gradient and `flush`, after each step"
)
NOTEBOOK = "%load_ext tensorboard\n%tensorboard --logdir {folder} --port {port} --reload_interval 1"


@contextlib.contextmanager
def watch(model: Any, optimizer: Any, folder: Path) -> Iterator[Watching]:
    """Write two histograms of each parameter."""
    del optimizer
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        steps = iter(range(10**9))

        def after() -> None:
            step = next(steps)
            for name, parameter in model.named_parameters():
                writer.add_histogram(name, parameter, step)
                if parameter.grad is not None:
                    writer.add_histogram(f"{name}.grad", parameter.grad, step)
            writer.flush()

        yield Watching(model, after=after)


def numbers(folder: Path) -> Iterator[tuple[str, float]]:
    """Read the events back with its own reader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"histograms": 0})
    events.Reload()
    for tag in events.Tags()["histograms"]:
        for event in events.Histograms(tag):
            found = event.histogram_value
            yield f"{tag} min", found.min
            yield f"{tag} max", found.max
            yield from ((f"{tag} bucket", count) for count in found.bucket)


def birth(folder: Path, phase: str) -> str:
    """There is no such question."""
    del folder, phase
    return ""
