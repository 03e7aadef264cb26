"""Four small models that stand for many, and their training with and without a watch."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from probe_nb import devices, doors
from probe_nb.errors import ProbeWarning
from probe_nb.run import Run

STEPS: Final = 3
_SEED: Final = 1234


class Specimen(NamedTuple):
    """A model and the shape of what it is fed."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]


def _mlp() -> nn.Module:
    inside = (nn.Linear(16, 32), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Linear(32, 8))
    return nn.Sequential(*inside)


def _convolutions() -> nn.Module:
    first = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    return nn.Sequential(*first, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 4 * 4, 8))


def transformer(layers: int = 2, width: int = 32) -> nn.Module:
    """Return encoder layers one after the other."""
    made = [
        nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True) for _ in range(layers)
    ]
    return nn.Sequential(*made)


SPECIMENS: Final = (
    Specimen("MLP", _mlp, (6, 16)),
    Specimen("convolutions", _convolutions, (4, 3, 8, 8)),
    Specimen("transformer", transformer, (3, 10, 32)),
    Specimen("LSTM", lambda: nn.LSTM(12, 16, batch_first=True), (3, 7, 12)),
)


@dataclass
class Training:
    """What was left of a training: its tensors on the host by name, the run, what was warned of."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    run: Run | None = None
    faults: list[str] = field(default_factory=list)
    waits: int = 0

    def first_difference(self, other: Training) -> str | None:
        """Return the name of the first tensor whose bits are not those of the other training."""
        for name, mine in self.tensors.items():
            theirs = other.tensors.get(name)
            if theirs is None or not _same_bits(mine, theirs):
                return name
        return None


def trained(
    specimen: Specimen, device: torch.device, *, watched: bool, bfloat16: bool = False
) -> Training:
    """Train for `STEPS` steps, always from the same weights, inputs and random numbers."""
    with same_random_numbers(device):
        model = specimen.make().to(device)
        x = torch.randn(specimen.shape, device="cpu").to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        left = Training()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            watch = doors.watch(model, optimizer=optimizer, live=False)
            with watch if watched else contextlib.nullcontext() as left.run:
                for step in range(STEPS):
                    _step(model, x, optimizer, bfloat16=bfloat16, left=left, number=step)
        left.waits = waits_in(caught)
        left.faults = [str(w.message) for w in caught if issubclass(w.category, ProbeWarning)]
        for name, t in (*model.named_parameters(), *model.named_buffers()):
            left.tensors[f"parameter or buffer {name} at the end"] = t.detach().cpu()
        for name, where in (("the CPU", torch.device("cpu")), ("the device", device)):
            state = devices.random_state(where)
            if state is not None:
                left.tensors[f"random numbers of {name}"] = state.cpu()
        return left


def waits_in(caught: list[warnings.WarningMessage]) -> int:
    """Count the warnings with which torch tells that the host waited for a device."""
    return sum("called a synchronizing" in str(each.message) for each in caught)


def _step(
    model: nn.Module,
    x: Tensor,
    optimizer: torch.optim.Optimizer,
    *,
    bfloat16: bool,
    left: Training,
    number: int,
) -> None:
    narrow = torch.autocast(x.device.type, dtype=torch.bfloat16) if bfloat16 else None
    with narrow or contextlib.nullcontext():
        out = model(x)
        out = out[0] if isinstance(out, tuple) else out
        loss = out.float().square().mean()
    loss.backward()
    left.tensors[f"output of step {number}"] = out.detach().cpu()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            left.tensors[f"gradient of {name} in step {number}"] = parameter.grad.detach().cpu()
    optimizer.step()
    optimizer.zero_grad()


@contextlib.contextmanager
def same_random_numbers(device: torch.device) -> Iterator[None]:
    """Begin with the same random numbers each time, on the host and on the device."""
    state = devices.random_state(device)
    torch.default_generator.manual_seed(_SEED)
    try:
        yield
    finally:
        devices.set_random_state(device, state)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if (a.dtype, a.shape, a.stride()) != (b.dtype, b.shape, b.stride()):
        return False
    mine, theirs = (t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(mine, theirs)
