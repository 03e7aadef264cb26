"""Every prefix of msProbe's names is that of its package: one call of each, by the table."""

from __future__ import annotations

import sys
import types

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

import probe_nb as probe
from tests.models import no_faults

X = torch.tensor([[1.0, -2.0], [3.0, 4.0]])


def lstm():
    return torch.nn.LSTM(2, 2)(X)


PLAIN = [
    ("Tensor", "torch.Tensor", lambda: X.add(1), "Tensor.add"),
    ("Torch", "torch", lambda: torch.matmul(X, X), "Torch.matmul"),
    ("Functional", "torch.nn.functional", lambda: F.relu(X), "Functional.relu"),
    ("VF", "torch._VF", lstm, "VF.lstm"),
    ("Aten", "torch.ops.aten", lambda: torch.ops.aten.relu(X), "Aten.relu"),
]


@pytest.mark.parametrize(("prefix", "package", "call", "name"), PLAIN)
def test_the_functions_of_a_package_have_its_prefix(prefix, package, call, name):
    with no_faults(), probe.watch(level="api", apis="all", live=False) as run:
        call()
    assert name in run.df["api"].tolist()
    assert name.startswith(f"{prefix}.")


def seen(call, name):
    """Watch one call; return its rows by role and leaf: the largest number, or the status."""
    with no_faults(), probe.watch(level="api", live=False) as run:
        call()
    rows = run.frame(api=name)
    values = rows["max"].astype(object).where(rows["status"] == "ok", rows["status"].astype(object))
    return dict(zip(zip(rows["role"], rows["leaf"], strict=True), values, strict=True))


def test_operators_of_npu_have_its_prefix():
    with torch.library._scoped_library("npu", "FRAGMENT") as library:
        library.define("npu_doubled(Tensor x) -> Tensor")
        library.impl("npu_doubled", lambda x: x * 2, "CompositeExplicitAutograd")
        found = seen(lambda: torch.ops.npu.npu_doubled(X), "NPU.npu_doubled")
    assert found == {("input", "0"): 4.0, ("output", "0"): 8.0}


def test_operators_of_mindspeed_have_its_prefix(monkeypatch):
    place = types.ModuleType("mindspeed.ops.gmm")
    place.npu_gmm = types.FunctionType((lambda a, b: a @ b).__code__, vars(place), "npu_gmm")
    for name, module in (
        ("mindspeed", types.ModuleType("mindspeed")),
        ("mindspeed.ops", types.ModuleType("mindspeed.ops")),
        ("mindspeed.ops.gmm", place),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    before = place.npu_gmm
    found = seen(lambda: place.npu_gmm(X, X), "MindSpeed.npu_gmm")
    assert found == {("input", "0"): 4.0, ("input", "1"): 4.0, ("output", "0"): 15.0}
    assert place.npu_gmm is before


def test_collectives_have_the_prefix_of_their_package():
    hook = sys.excepthook
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        given = X.clone()
        found = seen(lambda: dist.all_reduce(given), "Distributed.all_reduce")
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook  # torch leaves its own
    assert found == {("input", "0"): 4.0, ("output", "0"): 4.0}


def test_kernels_of_triton_have_its_prefix(monkeypatch):
    import triton
    import triton.language as tl

    @triton.jit
    def doubled(x, out, n: tl.constexpr):
        at = tl.arange(0, n)
        tl.store(out + at, tl.load(x + at) * 2)

    def on_the_host(self, x, out, *, n, grid, warmup):
        """Stand for the device, which is not there."""
        out.copy_(x.view(-1) * 2)

    kernels = triton.runtime.jit.JITFunction
    monkeypatch.setattr(kernels, "run", on_the_host)
    out = torch.zeros(4)
    found = seen(lambda: doubled[(1,)](X, out, n=4), "Triton.doubled")
    assert found == {
        ("input", "0"): 4.0,
        ("input", "1"): 0.0,
        ("output", "0.0"): 4.0,
        ("output", "0.1"): 8.0,
    }
    assert kernels.run is on_the_host


def test_a_function_of_the_users_has_the_prefix_it_is_given_or_that_of_its_package():
    mine = types.ModuleType("mine")
    mine.halved = lambda x: x / 2
    with probe.watch(level="api", live=False) as run:
        run.register_custom_api(mine, "halved")
        mine.halved(X)
        run.restore_custom_api(mine, "halved")
        run.register_custom_api(mine, "halved", "Ours")
        mine.halved(X)
    assert [each for each in run.frame(role="output")["api"] if "." in each][-2:] == [
        "mine.halved",
        "Ours.halved",
    ]
