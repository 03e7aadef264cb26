"""A watch on an NVIDIA GPU: the same bits, the right numbers, and no wait inside a step."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.stats.summary import Reducer
from tests import oracle
from tests.measuring import drained

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here"),
]


@contextmanager
def waiting_forbidden():
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(inplace=True), nn.Linear(64, 3)).cuda()


def trained(*, watched: bool):
    model = net()
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(0)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    watch = probe.watch(model, optimizer=optimizer) if watched else None
    run = watch.__enter__() if watch else None
    for _ in range(3):
        out = model(x)  # the drain of the step before waits here, once
        with waiting_forbidden():
            out.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    if watch:
        watch.__exit__(None, None, None)
    return [out.detach(), *model.state_dict().values()], run


def test_training_is_the_same_bit_for_bit_and_no_hook_waits():
    bare, _ = trained(watched=False)
    watched, run = trained(watched=True)
    assert all(torch.equal(a, b) for a, b in zip(bare, watched, strict=True))
    assert set(run.df["device"].astype(str)) == {"cuda:0"}
    assert set(run.df["status"].astype(str)) == {"ok"}


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool),
        *(torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64),
    ],
)
@pytest.mark.parametrize("deterministic", [False, True])
def test_the_numbers_of_a_tensor_on_the_gpu_are_numpy_s(dtype, deterministic):
    x = torch.randn(1_100_000, generator=torch.Generator().manual_seed(0)) * 3
    if dtype == torch.complex64:
        x = torch.complex(x.abs(), torch.zeros_like(x))  # a modulus without rounding
    t = (x > 0) if dtype == torch.bool else x.to(dtype)
    if dtype.is_floating_point:
        t[:3] = torch.tensor([float("nan"), 0.0, 1.0]).to(dtype)
    reducer = Reducer()
    torch.use_deterministic_algorithms(deterministic)
    try:
        on_gpu = t.cuda()
        with waiting_forbidden():
            reducer.see(on_gpu, once=True)
        numbers = drained(reducer)[0]
    finally:
        torch.use_deterministic_algorithms(False)
    assert not oracle.faults(oracle.expected(t), *numbers)


def test_the_self_check_passes_on_the_gpu():
    report = probe.self_check("cuda")
    assert report.ok, repr(report)
    outcomes = {(each.check, each.subject): each.outcome for each in report.checks}
    assert outcomes["waits", "3 steps of the MLP"] == "passed"
    assert "skipped" not in {v for (check, _), v in outcomes.items() if check == "numbers"}


def test_what_is_added_to_the_memory_of_the_gpu_is_bounded():
    t = torch.randn(2**24, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    reducer = Reducer()
    reducer.see(t, once=True)
    assert torch.cuda.max_memory_allocated() - before < 64 * 2**20
    reducer.drain()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("own_stream", [False, True])
def test_tensors_are_kept_without_a_wait_in_the_order_of_the_stream(own_stream):
    model = net()
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    keep = probe.Keep("*", roles="input,output,grad_output,param_grad")
    xs = [torch.randn(16, 32).cuda() for _ in range(3)]
    want, size = [], 4_000_000
    for x in xs:
        with torch.no_grad():
            want.append(model[0](x).cpu())
    torch.cuda.synchronize()
    with probe.watch(model, keep=keep) as run, torch.cuda.stream(stream):
        for x in xs:
            busy = torch.randn(size, device="cuda")  # the device is behind when the hook runs
            out = model(x)  # the drain of the step before may wait here
            with waiting_forbidden():
                out.square().sum().backward()
                busy.mul_(2.0)
                x.zero_()
    assert set(run.kept()["status"]) == {"kept"}
    for step, first in enumerate(want):  # what the module after it then overwrote
        assert torch.equal(run.tensor("0", "output", step), first)
        assert run.tensor("0", "param_grad", step, leaf="weight").abs().sum() > 0
