"""The same tensor seen twice in a step is reduced once; another tensor is never taken for it."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.stats.summary import Reducer
from tests.measuring import by_reducer, drained


@pytest.fixture
def reducer():
    return Reducer()


def maxima(reducer: Reducer) -> list[float]:
    return [statistics["max"] for statistics, _, _ in drained(reducer)]


def test_the_same_tensor_unchanged_is_reduced_once(reducer):
    t = torch.randn(8)
    first, second = reducer.see(t, once=True), reducer.see(t, once=True)
    assert (first.reused, second.reused) == (False, True)
    assert first.result == second.result
    assert len(maxima(reducer)) == 1


@pytest.mark.parametrize("same", [lambda t: t.view(8), lambda t: t[:], lambda t: t.view(2, 4)])
def test_a_view_of_the_same_elements_is_the_same_tensor(reducer, same):
    t = torch.randn(8)
    reducer.see(t, once=True)
    assert reducer.see(same(t), once=True).reused


def test_a_tensor_written_in_place_is_reduced_again(reducer):
    t = torch.zeros(8)
    reducer.see(t, once=True)
    t.add_(5)
    assert not reducer.see(t, once=True).reused
    assert maxima(reducer) == [0.0, 5.0]


def test_a_tensor_written_through_a_view_or_its_base_is_reduced_again(reducer):
    base = torch.zeros(2, 4)
    view = base[0]
    reducer.see(base, once=True)
    reducer.see(view, once=True)
    view.fill_(3)
    assert not reducer.see(base, once=True).reused
    base.fill_(4)
    assert not reducer.see(view, once=True).reused
    assert maxima(reducer) == [0.0, 0.0, 3.0, 4.0]


OTHERS = {
    "another offset": lambda t: t[1:5],
    "fewer dimensions of other strides": lambda t: t.as_strided((2, 2), (4, 1)),
    "another stride": lambda t: t.as_strided((4,), (2,)),
    "another dtype": lambda t: t.view(torch.int32),
    "negated": torch._neg_view,
    "a prefix": lambda t: t[:4],
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_elements_of_the_same_memory_are_another_tensor(reducer, case):
    t = torch.arange(8.0)
    other = OTHERS[case](t)
    reducer.see(t, once=True)
    assert not reducer.see(other, once=True).reused
    assert drained(reducer)[1] == by_reducer(other)


def test_the_same_elements_in_another_shape_are_reduced_once(reducer):
    t = torch.arange(8.0)
    reducer.see(t, once=True)
    assert reducer.see(t.view(2, 4), once=True).reused
    assert not reducer.see(t.view(2, 4).t(), once=True).reused  # nor doubted: it is read again


def test_a_conjugate_is_another_tensor_than_what_it_conjugates(reducer):
    t = torch.randn(4, dtype=torch.complex64)
    reducer.see(t, once=True)
    assert not reducer.see(t.conj(), once=True).reused


def test_a_sparse_tensor_is_not_taken_for_its_own_values(reducer):
    values = torch.ones(3)
    with torch.sparse.check_sparse_tensor_invariants():
        small = torch.sparse_csr_tensor([0, 1, 2, 3], [0, 1, 2], values, (3, 3))
        large = torch.sparse_csr_tensor([0, 1, 2, 3], [0, 1, 2], values, (3, 30))
    for t in (values, small, large):
        reducer.see(t, once=True)
    assert [counts["zero_count"] for _, counts, _ in drained(reducer)] == [0, 6, 87]


def test_memory_that_was_freed_and_given_to_another_tensor_is_not_mistaken(reducer):
    addresses, expected = set(), []
    for value in range(200):
        t = torch.full((1000,), float(value))
        addresses.add(t.data_ptr())
        assert not reducer.see(t, once=True).reused
        expected.append(float(value))
        del t
    assert len(addresses) < 200  # else the test has shown nothing
    assert maxima(reducer) == expected


def test_a_parameter_is_never_looked_up(reducer):
    p = nn.Parameter(torch.zeros(4))
    reducer.see(p, once=False)
    p.data.fill_(2)  # a write that no version shows
    assert not reducer.see(p, once=False).reused
    assert maxima(reducer) == [0.0, 2.0]


def test_inference_tensors_are_never_looked_up(reducer):
    with torch.inference_mode():
        t = torch.zeros(4)
        reducer.see(t, once=True)
        t.fill_(2)  # inference tensors have no version
        assert not reducer.see(t, once=True).reused
    assert maxima(reducer) == [0.0, 2.0]


def test_a_number_seen_is_the_number_it_was_then(reducer):
    scale = torch.tensor(65536.0)
    reducer.see(scale, once=False)
    scale.mul_(2)
    reducer.see(scale, once=False)
    assert maxima(reducer) == [65536.0, 131072.0]


@pytest.mark.parametrize("ends", [Reducer.drain, Reducer.forget])
def test_a_new_step_begins_with_nothing_seen(reducer, ends):
    t = torch.ones(4)
    reducer.see(t, once=True)
    ends(reducer)
    assert not reducer.see(t, once=True).reused


def test_without_reduce_once_every_look_is_a_reduction():
    reducer, t = Reducer(reduce_once=False), torch.zeros(4)
    reducer.see(t, once=True)
    t.data.fill_(7)
    assert not reducer.see(t, once=True).reused
    assert maxima(reducer) == [0.0, 7.0]


def test_nothing_is_kept_alive_before_or_after_the_drain(reducer):
    t = torch.randn(64)
    tensor, storage = weakref.ref(t), weakref.ref(t.untyped_storage())
    reducer.see(t, once=True)
    del t
    gc.collect()
    assert tensor() is None
    assert storage() is None


def test_the_rows_of_one_tensor_in_a_run_say_which_were_reused():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    with probe.watch(model, roles="input,output") as run:
        model(torch.randn(2, 4))
    seen = run.df[["module", "role", "reused"]].values.tolist()
    flags = {(module, role): reused for module, role, reused in seen}
    assert flags["0", "output"] != flags["1", "input"]
    assert flags["1", "output"] != flags["", "output"]


def test_with_reduce_once_off_a_write_through_data_between_two_modules_is_seen():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.ReLU()

        def forward(self, x):
            h = self.first(x)
            h.data.fill_(9.0)
            return self.second(h)

    model = Hidden()
    with probe.watch(model, roles="input,output", reduce_once=False) as run:
        model(torch.zeros(1, 3))
    assert run.frame(module="second", role="input")["max"].tolist() == [9.0]
    assert not run.df["reused"].any()


def test_a_write_is_seen_also_where_the_tensor_is_read_past_its_version(reducer):
    t = torch.ones(4)
    reducer.see(t, once=True)
    t.mul_(3)
    assert not reducer.see(t.data, once=True).reused  # its version is 0 again
    assert maxima(reducer) == [1.0, 3.0]
