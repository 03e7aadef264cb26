"""A training under DDP with a training monitor, and its local gradients by hand."""

from __future__ import annotations

import csv
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def layer() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3))


def monitored() -> dict[str, Any]:
    """Return what this process wrote of its gradients, and the norms that they really had."""
    from probe_nb.monitor import TrainerMon

    rank = dist.get_rank()
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(rank))
    alone = layer()
    alone(x).square().sum().backward()
    local = {name: p.grad.double() for name, p in alone.named_parameters()}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MONITOR_OUTPUT_DIR"] = folder
        model = DistributedDataParallel(layer())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        config = {"wg_distribution": True, "ops": ["norm"], "ndigits": 12}
        with TrainerMon(config) as monitor, TrainerMon(config | {"module_ranks": [7]}) as silent:
            monitor.set_monitor(model, optimizer)
            silent.set_monitor(model, optimizer)
            model(x).square().sum().backward()
            optimizer.step()
        written: dict[str, dict[str, float]] = {}
        for path in sorted(monitor.folder.glob("*.csv")):
            with path.open(newline="") as file:
                table = {row["name"]: float(row["norm"]) for row in csv.DictReader(file)}
            written[path.name] = table
        folders = sorted(path.name.split("-")[-2] for path in Path(folder).iterdir())
        del os.environ["MONITOR_OUTPUT_DIR"]
    return {
        "written": written,
        "mine": monitor.folder.name.split("-")[-2],
        "folders": folders,
        "local": {name: grad.norm().item() for name, grad in local.items()},
        "gradients": local,
    }
