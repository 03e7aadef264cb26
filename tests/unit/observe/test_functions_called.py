import dis

import pytest
import torch
import torch.nn.functional as F

import probe_nb as probe
from probe_nb.observe.functions_called import Form, form_at


def given(act):
    """Return the leaves of all that the one function is given that `act` calls."""
    with probe.watch(level="api", apis="all", values=True, roles="input,output") as run:
        act()
    rows = run.frame(role="input")["leaf"].astype(str).tolist()
    values = run.values()
    held = values["leaf"][values["role"] == "input"].astype(str)
    return sorted(rows), sorted(held)


X, IDS, W = torch.randn(2, 3, 4), torch.tensor([1, 2]), torch.ones(4, 3)
A, B, ONES, NORM = torch.randn(2, 3), torch.tensor([0, 1]), torch.ones(4), torch.nn.LayerNorm(4)


@pytest.mark.parametrize(
    ("act", "tensors", "others"),
    [
        (lambda: F.embedding(IDS, W, None, None, 2.0), ["0", "1"], ["2", "3", "4"]),
        (lambda: F.embedding(IDS, W), ["0", "1"], []),
        (lambda: F.embedding(IDS, weight=W, sparse=False), ["0", "kwargs.weight"], ["kwargs.sparse"]),
        (lambda: F.embedding(weight=W, input=IDS), ["kwargs.input", "kwargs.weight"], []),
        (lambda: F.cross_entropy(A, B, reduction="sum"), ["0", "1"], ["kwargs.reduction"]),
        (lambda: F.relu(X, True), ["0"], ["1"]),
        (lambda: F.relu(X), ["0"], []),
        (lambda: F.max_pool1d(X, 2), ["0"], ["1"]),
        (lambda: F.max_pool1d(X, kernel_size=2), ["0"], ["kwargs.kernel_size"]),
        (lambda: F.layer_norm(X, [4], ONES, eps=1e-3), ["0", "2"], ["1.0", "kwargs.eps"]),
    ],
)  # fmt: skip
def test_a_function_is_given_what_its_caller_wrote(act, tensors, others):
    assert given(act) == (tensors, others)


def test_what_layers_give_by_place_has_a_place():
    assert given(lambda: NORM(X))[0] == ["0", "2", "3"]


def test_where_arguments_are_unpacked_they_are_as_torch_sorts_them():
    pair = [IDS, W]
    tensors, others = given(lambda: F.embedding(*pair))
    assert tensors == ["0", "1"]
    assert "kwargs.padding_idx" in others


def test_how_a_call_is_written_is_read_from_its_instruction():
    def forms(text):
        code = compile(text, "", "eval")
        found = (form_at(code, each.offset) for each in dis.get_instructions(code))
        return [form for form in found if form is not None][-1:]

    assert forms("f(1, 2)") == [Form(2, ())]
    assert forms("f(1, a=2, b=3)") == [Form(1, ("a", "b"))]
    assert forms("f()") == [Form(0, ())]
    assert forms("f(*x)") == []
    assert forms("f(**x)") == []
    assert forms("x + 1") == []


def test_running_statistics_are_those_before_each_call():
    norm = torch.nn.BatchNorm1d(1, momentum=1.0)
    with probe.watch(level="api", apis="Functional.batch_norm", roles="input") as run:
        for mean in (2.0, 7.0, 1.0):
            norm(torch.full((4, 1), mean))
    seen = run.frame(leaf="1")  # they were 0 at first, and then what the call before had seen
    assert seen["mean"].tolist() == [0.0, 2.0, 7.0]
