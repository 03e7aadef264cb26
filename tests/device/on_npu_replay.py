"""Plant wrong kernels in the simulated NPU, replay what it gave, and print what was said, as JSON.

Run as a script in a process of its own: `python -m tests.device.on_npu_replay`.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import probe_nb as probe
from tests.device import simulated_npu as npu
from tests.device.on_npu_kept import pinning


def half_sum(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **_: Any) -> torch.Tensor:
    """Multiply and add in float16."""
    return (a.half() @ b.half() + bias.half()).to(a.dtype)


def no_epsilon(x: torch.Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    """Forget what is added to the variance."""
    return torch.ops.aten.native_layer_norm(x, shape, weight, bias, 0.01)


PLANTED: dict[str, tuple[str, Callable[..., Any], str]] = {
    "half": ("addmm", half_sum, "up"),
    "epsilon": ("native_layer_norm", no_epsilon, "norm"),
    "gelu": ("gelu", lambda x, **_: x * torch.sigmoid(1.702 * x), "act"),
}
"""Name of the operator, what is run in its place, and the module that uses it first."""


@contextlib.contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Have the device run something else in place of an operator."""
    if name is None:
        yield
        return
    operator, wrong, _ = PLANTED[name]
    npu.SUBSTITUTES[operator] = wrong
    try:
        yield
    finally:
        del npu.SUBSTITUTES[operator]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(32), nn.Linear(32, 64)
        self.act, self.down = nn.GELU(), nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.up(self.norm(x))))


def watched(device: str, wrong: str | None = None) -> tuple[nn.Module, probe.Run]:
    torch.manual_seed(0)
    model = Net()
    x = torch.randn(16, 32)
    with (
        planted(wrong),
        probe.watch(
            model.to(device), keep=probe.Keep("*", roles="input, output"), live=False
        ) as run,
    ):
        model(x.to(device))
    return model, run


def told(wrong: str | None) -> dict[str, Any]:
    on_cpu, baseline = watched("cpu")
    on_npu, candidate = watched("npu", wrong)
    comparison = probe.compare(baseline, candidate)
    first = comparison.first_divergence()
    replays = {name: comparison.replay(name, on_cpu) for name in ("norm", "up", "act", "down")}
    waits = len(npu.waits)
    live = candidate.replay("up", on_npu)  # its parameters come from the device
    return {
        "first": None if first is None else first.module,
        "verdicts": {name: each.df["verdict"].tolist() for name, each in replays.items()},
        "sentences": {name: each.sentence for name, each in replays.items()},
        "devices": replays["up"].df["device"].tolist(),
        "live": live.verdict,
        "copied": len(npu.waits) > waits,
        "parameters": {str(p.device) for p in on_npu.parameters()} == {"npu:0"},
    }


def main() -> None:
    with pinning():
        found = {str(name): told(name) for name in (None, *PLANTED)}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
