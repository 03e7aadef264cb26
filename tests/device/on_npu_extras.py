"""Compute extras of a training on the simulated NPU and on the CPU, and print both as JSON.

Run as a script in a process of its own: `python -m tests.device.on_npu_extras`.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import torch
from torch import nn

import probe_nb as probe
from tests.device import simulated_npu as npu

EXTRAS = {
    "spectral_norm": "fc",
    "stable_rank": "fc",
    "router_similarity": "fc",
    "expert_entropy": "fc",
    "attention_entropy:bhsd+causal": "core",
    "softmax_max:bhsd+causal": "core",
    "below:1e-1": "*",
    "state_before": "fc",
    "grad_direction": "fc",
}
assert npu.module  # importing it makes the device


class Core(nn.Module):
    """Stands for an attention that is called with queries and keys."""

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return q * k


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.core = nn.Linear(4, 6), Core()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.fc(x).reshape(1, 2, 3, 3)
        return self.core(q, q + 1)


def trained(device: str, extras: dict[str, str] | None) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    with probe.watch(model, optimizer=optimizer, extras=extras, live=False) as run:
        for step in range(2):
            x = torch.linspace(-1, 1, 12).reshape(3, 4).to(device) * (step + 1)
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    df = run.df
    df = df[(df["role"] == "state") & (df["direction"] == "forward")]
    names = ("step", "module", "leaf", "mean", "status")
    columns = (df[name].astype(object).where(df[name].notna(), None) for name in names)
    return {
        "rows": sorted(([int(row[0]), *row[1:]] for row in zip(*columns, strict=True)), key=str),
        "bits": [p.detach().cpu().reshape(-1).tolist() for p in model.parameters()],
    }


def main() -> None:
    warnings.simplefilter("error")
    told = {
        f"{device} {name}": trained(device, extras)
        for device in ("cpu", "npu")
        for name, extras in (("plain", None), ("extras", EXTRAS))
    }
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
