"""The Triton kernel: right in the interpreter, and machine code for GPUs that are not here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

COMPILED = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
import triton
from probe_nb.stats.kernels import gpu_code as code
names = dict(x_ptr="*{kind}", row_ptr="*i32", n="i32", largest="i32", tiny="i32")
names |= dict(block="constexpr", bfloat16="constexpr")
fixed = dict(block=code.BLOCK, bfloat16="{kind}" == "i16")
source = ASTSource(fn=code.summarize, signature=names, constexprs=fixed)
made = triton.compile(source, target=GPUTarget("cuda", {arch}, 32))
assert len(made.asm["cubin"]) > 1000
"""


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def seen():
    return json.loads(run("-m", "tests.device.on_triton"))


def test_the_numbers_are_those_of_numpy(seen):
    assert (seen["faults 0"], seen["faults 1"]) == ({}, {})


def test_it_serves_what_it_says_and_leaves_the_rest(seen):
    assert seen["launched 0"] == seen["launched 1"] == [20, 3]


def test_rows_go_on_when_a_buffer_is_full(seen):
    assert seen["more than a buffer"] == [float(i) for i in range(260)]


@pytest.mark.parametrize(("kind", "arch"), [("fp32", 80), ("i16", 90)])
def test_it_compiles_for_gpus(kind, arch):
    run("-c", COMPILED.format(kind=kind, arch=arch))


def test_without_triton_the_operators_of_torch_serve():
    run(
        "-c",
        """
import sys, threading
sys.modules["triton"] = None
import torch
from probe_nb.stats.kernels import gpu
t = torch.ones(3)
assert not gpu.serves(t)
[thread.join() for thread in threading.enumerate() if thread is not threading.current_thread()]
assert gpu._states == {torch.float32: "off"}
assert gpu.Rows(t.device).reduce(t) is None
""",
    )
