"""Measuring goes on beside the user's work: under no mode of theirs, and leaving nothing behind."""

from __future__ import annotations

import threading

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from probe_nb.observe.aside import aside
from probe_nb.stats.summary import Reducer
from tests import oracle
from tests.measuring import by_reducer, drained


class Dispatched(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append(func)
        return func(*args, **(kwargs or {}))


class Overridden(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls.append(func)
        return func(*args, **(kwargs or {}))


def _sparse():
    with torch.sparse.check_sparse_tensor_invariants():
        return torch.sparse_coo_tensor([[0, 0, 1], [2, 2, 0]], [1.0, 2.0, 3.0], (3, 4))


KINDS = {
    "float": lambda: torch.randn(3),
    "strided": lambda: torch.randn(4, 70_000)[:, ::2],
    "float64 with NaN": lambda: torch.tensor([1.0, float("nan"), 0.0], dtype=torch.float64),
    "complex": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "sparse": _sparse,
    "ragged": lambda: torch.nested.nested_tensor(
        [torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged
    ),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
}


@pytest.mark.parametrize("mode", [Dispatched, Overridden])
@pytest.mark.parametrize("kind", KINDS)
def test_a_mode_of_the_user_sees_no_operator_of_ours(mode, kind):
    t = KINDS[kind]()
    with mode() as watching:
        reducer = Reducer()
        with aside():  # as hooks do
            reducer.see(t, once=True)
        reducer.drain()
    assert watching.calls == []


WORLDS = {
    "a default device": lambda: torch.device("meta"),
    "a fake tensor mode": FakeTensorMode,
    "inference mode": torch.inference_mode,
    "no grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "a dispatch mode": Dispatched,
}


@pytest.mark.parametrize("begins", WORLDS)
@pytest.mark.parametrize("measures", WORLDS)
def test_where_a_reducer_is_made_and_used_does_not_change_its_numbers(begins, measures):
    tensors = [torch.randn(5), torch.randn(70_000), torch.randn(5, dtype=torch.float64)]
    with WORLDS[begins]():
        reducer = Reducer()
    with WORLDS[measures]():
        for t in tensors:
            reducer.see(t, once=True)
        measured = drained(reducer)
    for t, numbers in zip(tensors, measured, strict=True):
        assert not oracle.faults(oracle.expected(t), *numbers)


def test_a_default_device_in_another_thread_does_not_matter_either():
    reducer, t = Reducer(), torch.randn(100)
    seen = []

    def work():
        with torch.device("meta"):
            seen.append(reducer.see(t, once=True))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [each.status for each in seen] == ["ok"]
    assert not oracle.faults(oracle.expected(t), *drained(reducer)[0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_the_default_dtype_does_not_change_a_number(dtype):
    t = torch.randn(1000)
    torch.set_default_dtype(dtype)
    try:
        measured = by_reducer(t)
    finally:
        torch.set_default_dtype(torch.float32)
    assert not oracle.faults(oracle.expected(t), *measured)


def test_under_deterministic_algorithms_everything_is_measured():
    t = torch.randn(1000)
    torch.use_deterministic_algorithms(True)
    try:
        measured = by_reducer(t)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not oracle.faults(oracle.expected(t), *measured)


def test_what_grad_mode_and_inference_mode_were_they_are_afterwards():
    reducer, t = Reducer(), torch.randn(3, requires_grad=True)
    for context in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with context():
            before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
            reducer.see(t, once=True)
            reducer.drain()
            assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before


def test_an_error_of_ours_leaves_grad_mode_and_modes_as_they_were():
    class Broken:
        device = torch.device("cpu")
        dtype = torch.float32

    with Dispatched() as mode:
        with pytest.raises((TypeError, AttributeError)):
            Reducer().see(Broken(), once=True)
        assert torch.is_grad_enabled()
        mode.calls.clear()
        torch.ones(2).add(1)
        assert mode.calls


def test_measuring_moves_neither_version_nor_graph_nor_random_state():
    t = torch.randn(1000, requires_grad=True)
    out = t * 2
    state, version, node = torch.get_rng_state(), out._version, out.grad_fn
    Reducer().see(out, once=True)
    assert (out._version, out.grad_fn) == (version, node)
    assert torch.equal(torch.get_rng_state(), state)


# -- function transforms ------------------------------------------------------------------------


def seen_inside(transform, x: torch.Tensor):
    reducer, seen = Reducer(), []

    def f(v):
        seen.append(reducer.see(v, once=True))
        return (v * v).sum()

    transform(f)(x)
    (only,) = seen
    return only, drained(reducer)


def test_under_vmap_a_tensor_is_said_to_be_vmapped():
    seen, _ = seen_inside(torch.func.vmap, torch.randn(3, 4))
    assert (seen.status, seen.result) == ("vmapped", -1)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.functionalize])
def test_under_grad_and_functionalize_the_real_numbers_are_measured(transform):
    x = torch.tensor([1.0, -3.0, 0.0])
    seen, numbers = seen_inside(transform, x)
    assert seen.status == "ok"
    assert not oracle.faults(oracle.expected(x), *numbers[0])


def test_vmap_over_grad_is_vmapped_too():
    def transform(f):
        return torch.func.vmap(torch.func.grad(f))

    seen, _ = seen_inside(transform, torch.randn(3, 4))
    assert seen.status == "vmapped"


def test_a_tensor_that_a_transform_does_not_touch_is_measured_inside_it():
    captured = torch.tensor([2.0, -5.0])
    reducer = Reducer()

    def f(v):
        reducer.see(captured, once=False)
        return v.sum()

    for transform in (torch.func.grad, torch.func.vmap):
        transform(f)(torch.randn(3, 4))
    for numbers in drained(reducer):
        assert not oracle.faults(oracle.expected(captured), *numbers)


def test_forward_mode_ad_keeps_its_tangent_and_is_measured():
    import torch.autograd.forward_ad as fw

    with fw.dual_level():
        dual = fw.make_dual(torch.ones(3), torch.full((3,), 2.0))
        reducer = Reducer()
        assert reducer.see(dual, once=True).status == "ok"
        assert fw.unpack_dual(dual).tangent.tolist() == [2.0, 2.0, 2.0]
    assert drained(reducer)[0][0]["max"] == 1.0
