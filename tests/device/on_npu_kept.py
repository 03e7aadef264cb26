"""Train on the simulated NPU while tensors are kept, and print what was seen as JSON.

Run as a script in a process of its own: `python -m tests.device.on_npu_kept`.
"""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import probe_nb as probe
from tests.device import simulated_npu as npu

STEPS = 3
ROLES = ("input", "output", "param", "grad_output", "param_grad")
_empty = torch.empty


def empty(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
    """Give memory that the device reaches, where it is asked for."""
    t = _empty(*size, **options)
    if pin_memory:
        npu.pinned.add(t.data_ptr())
    return t


@contextlib.contextmanager
def pinning() -> Iterator[None]:
    """Let the device have events and copy on the side."""
    npu.module.Event = npu.Event
    torch.empty = empty
    try:
        yield
    finally:
        torch.empty = _empty
        del npu.module.Event


def trained(device: str, *, keep: bool, after: Any = lambda: None) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    keeping = probe.Keep("*", roles=ROLES, memory=None) if keep else None
    waits = 0
    with probe.watch(model, optimizer=optimizer, keep=keeping, live=False) as run:
        for step in range(STEPS):
            x = torch.linspace(-1, 1, 12).reshape(3, 4).to(device) * (step + 1)
            before = len(npu.waits)
            loss = model(x).square().mean()
            loss.backward()
            waits += len(npu.waits) - before
            optimizer.step()
            optimizer.zero_grad()
            after()
        at_the_end = len(npu.waits)
    bits = [p.detach().cpu().reshape(-1).tolist() for p in model.parameters()]
    return {"run": run, "waits": waits, "at the end": npu.waits[at_the_end:], "bits": bits}


def tensors(run: probe.Run) -> list[Any]:
    found = []
    for row in run.kept().itertuples():
        there = None
        if row.status == "kept":
            where = {"call": row.call, "leaf": row.leaf, "direction": row.direction}
            there = run.tensor(row.module, row.role, row.step, **where).tolist()
        found.append([row.module, row.direction, row.role, row.leaf, row.step, row.status, there])
    return found


def story(*, arriving: bool) -> dict[str, Any]:
    with pinning():
        watched = trained("npu", keep=True, after=npu.arrive if arriving else lambda: None)
    return {
        "tensors": tensors(watched["run"]),
        "waits": watched["waits"],
        "at the end": watched["at the end"],
        "bits": watched["bits"],
    }


def main() -> None:
    warnings.simplefilter("error")
    bare = trained("npu", keep=False)
    unpinned = trained("npu", keep=True)
    told = {
        "bare": {"waits": bare["waits"], "bits": bare["bits"]},
        "cpu": tensors(trained("cpu", keep=True)["run"]),
        "arriving": story(arriving=True),
        "late": story(arriving=False),
        "unpinned": {
            "waits": unpinned["waits"],
            "bits": unpinned["bits"],
            "statuses": sorted(set(unpinned["run"].kept()["status"])),
        },
    }
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
