"""Run a program on the simulated NPU of the tests, and save the run.

`python -m benchmarks.divergences.npu PROGRAM KERNEL MODE PATH`; judge.py calls it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from benchmarks.divergences import models
from benchmarks.divergences.case import Program, built

_aten: Final = torch.ops.aten


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    del approximate
    return _aten.gelu(x, approximate="tanh")


def _layer_norm(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    return _aten.native_layer_norm(x, shape, weight, bias, eps * 100)


def _addmm(bias: Tensor, x: Tensor, weight: Tensor, **options: Any) -> Tensor:
    rounded = (each.bfloat16() for each in (bias, x, weight))
    return _aten.addmm(*rounded, **options).float()


def _softmax_backward(grad: Tensor, out: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    del dtype
    return out * (grad - (grad * out).mean(dim, keepdim=True))


KERNELS: Final[dict[str, tuple[str, Callable[..., Any]]]] = {
    "gelu": ("gelu", _gelu),
    "layer_norm": ("native_layer_norm", _layer_norm),
    "addmm": ("addmm", _addmm),
    "softmax_backward": ("_softmax_backward_data", _softmax_backward),
}
"""What the device computes otherwise: the operator, and what takes its place."""


def main(name: str, kernel: str, mode: str, path: str) -> None:
    """Build the program, move it to the device, and watch it there."""
    import probe_nb as probe
    from benchmarks.divergences.judge import KEEP
    from tests.device import simulated_npu

    program = built(_PROGRAMS[name])
    if kernel:
        operator, wrong = KERNELS[kernel]
        simulated_npu.SUBSTITUTES[operator] = wrong
    program.model.to("npu")
    program.optimizer = models.adam(program.model)  # its parameters are other ones now
    program.batches = [tuple(x.to("npu") for x in batch) for batch in program.batches]
    keep = KEEP if mode == "tensors" else None
    with probe.watch(program.model, optimizer=program.optimizer, keep=keep, live=False) as run:
        program.run()
    run.save(path)


_PROGRAMS: Final[dict[str, Callable[[], Program]]] = {
    "tower": models.tower,
    "sparse": models.moe,
    "tagger": models.lstm,
    "decoder": models.decoder,
}

if __name__ == "__main__":
    main(*sys.argv[1:])
