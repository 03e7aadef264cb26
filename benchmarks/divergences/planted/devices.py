"""One device has a kernel that computes something else: the simulated NPU of the tests."""

from __future__ import annotations

from benchmarks.divergences.case import PLANTED, Program
from benchmarks.divergences.models import decoder, lstm, tower


@PLANTED.divergence(
    "a device's GELU is that by tanh: at its first call", on=decoder, at="layers.0.act"
)
def device_gelu(program: Program) -> None:
    program.device, program.kernel = "npu", "gelu"


@PLANTED.divergence(
    "a device's layer norm has another epsilon: at its first call", on=tower, at="norm1"
)
def device_norm(program: Program) -> None:
    program.device, program.kernel = "npu", "layer_norm"


@PLANTED.divergence("a device multiplies in bfloat16: at its first product", on=tower, at="fc1")
def device_product(program: Program) -> None:
    program.device, program.kernel = "npu", "addmm"


@PLANTED.divergence(
    "a device's backward of softmax is wrong: at its first call",
    on=decoder,
    at="layers.2",
    phase="backward",
)
def device_softmax(program: Program) -> None:
    program.device, program.kernel = "npu", "softmax_backward"


@PLANTED.rounding("the simulated NPU against the CPU", on=lstm)
def device(program: Program) -> None:
    program.device = "npu"
