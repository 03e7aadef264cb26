"""Reduce tensors by the Triton kernel in Triton's interpreter, and print where it is wrong.

A process of its own: whether kernels are interpreted is decided when Triton is imported.
"""

from __future__ import annotations

import json
import os
import sys
import threading

os.environ["TRITON_INTERPRET"] = "1"

import torch

from probe_nb import devices
from probe_nb.stats.kernels import gpu
from probe_nb.stats.summary import Reducer
from tests import measuring, oracle

NAN, INF = float("nan"), float("inf")


def tensors() -> dict[str, torch.Tensor]:
    """Return what is reduced; the names of what the kernel leaves to others begin with `not`."""
    torch.manual_seed(0)
    some = torch.randn(5000)
    everything = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    return {
        "normal": torch.randn(1000),
        "more blocks than programs": torch.randn(4096 * 65 + 5),
        "close together": 1e4 + torch.randn(9000) * 1e-2,
        "huge": torch.full((5000,), 1e25),
        "tiny": some * 1e-25,
        "the largest": torch.tensor([torch.finfo(torch.float32).max] * 4500),
        "subnormal": torch.tensor([1e-42, -1e-42, 0.0, -0.0, 1e-45]),
        "one": torch.tensor(3.0),
        "not finite": torch.tensor([NAN, INF, -INF, 1.0, 0.0, -0.0, -NAN]),
        "no finite": torch.tensor([NAN] * 5),
        "a block without numbers": torch.cat([torch.full((4096,), INF), torch.ones(3)]),
        "every float16": everything.view(torch.float16),
        "every bfloat16": everything.view(torch.bfloat16),
        "every byte": torch.arange(256, dtype=torch.uint8),
        "signed bytes": torch.arange(-128, 128).to(torch.int8),
        "int16": torch.tensor([-(2**15), 2**15 - 1, 0, 7], dtype=torch.int16),
        "a mask": torch.rand(3000) > 0.5,
        "transposed": torch.randn(50, 60).T,
        "expanded": torch.tensor([3.0, 4.0]).unsqueeze(1).expand(2, 800),
        "an offset": torch.randn(700)[3:],
        "not float64": torch.randn(5, dtype=torch.float64),
        "not with gaps": torch.randn(60, 60)[:, 3:30],
        "not int64": torch.arange(5),
    }


def ready(everything: dict[str, torch.Tensor]) -> None:
    """Wait until the kernel serves every type that it will."""
    for t in everything.values():
        gpu.serves(t)
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join()


def main() -> None:
    """Reduce everything in one step and again in the next."""
    devices.runs_triton = lambda _: True
    devices.stream = lambda _: None  # the CPU's has no device to wait for
    everything = tensors()
    ready(everything)
    reducer, found = Reducer(), {}
    for step in range(2):
        for t in everything.values():
            reducer._on_device(t, 0)
        there = reducer._devices[torch.device("cpu")]
        launched = sum(len(waiting) for _, waiting in there.launched.values())
        found[f"launched {step}"] = [launched, len(there.eager)]
        measured = measuring.drained(reducer)
        found[f"faults {step}"] = {
            name: wrong
            for (name, t), numbers in zip(everything.items(), measured, strict=True)
            if (wrong := oracle.faults(oracle.expected(t), *numbers))
        }
    many = [torch.full((3,), float(i)) for i in range(gpu.ROWS + 4)]
    for t in many:
        reducer._on_device(t, 0)
    found["more than a buffer"] = [s["max"] for s, _, _ in measuring.drained(reducer)]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
