"""Take checksums and save values on the simulated NPU, and print what was seen as JSON.

Run as a script in a process of its own: `python -m tests.device.on_npu_summed`.
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

DEVICES = ("cpu", "npu")
assert npu.module  # importing it makes the device


class Net(nn.Module):
    """Saves what lies between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu_(self.a(x))
        probe.save({"h": h, "n": 3}, "saved")
        return self.b(h)


def trained(device: str, checksum: str | None) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with probe.watch(model, optimizer=optimizer, checksum=checksum, live=False) as run:
        for step in range(2):
            x = torch.linspace(-1, 1, 12).reshape(3, 4).to(device) * (step + 1)
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    df = run.df
    names = ("step", "module", "api", "direction", "role", "leaf", "checksum")
    rows = zip(
        *(df[name].astype(object).where(df[name].notna(), None) for name in names), strict=True
    )
    return {
        "rows": sorted(([str(row[0]), *row[1:]] for row in rows), key=str),
        "values": [[v.site.api, v.site.leaf, v.value] for v in run.value_table],
        "bits": [p.detach().cpu().reshape(-1).tolist() for p in model.parameters()],
        "devices": sorted(set(map(str, df["device"]))),
    }


def main() -> None:
    warnings.simplefilter("error")
    kinds = (None, "crc32", "xor")
    told = {f"{d} {kind}": trained(d, kind) for d in DEVICES for kind in kinds}
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
