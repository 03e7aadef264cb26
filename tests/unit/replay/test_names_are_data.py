"""A run that somebody sends names functions and constants: only what computes is taken from torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from probe_nb.errors import SelectionError
from probe_nb.replay.fed import _MADE
from probe_nb.replay.functions import function_named


@pytest.mark.parametrize(
    "name",
    [
        *("Torch.load", "Torch.save", "Torch.hub.load", "Torch.ops.load_library", "Torch.compile"),
        *("Torch.from_file", "Torch.import_ir_module", "Torch.set_default_dtype", "Torch._foobar"),
        *("Functional.torch.load", "Functional.warnings.warn", "Torch.os.system", "VF.os.system"),
        *("Tensor.__class__", "Tensor.__setattr__", "Tensor.__init_subclass__"),
        *("Aten.from_file", "Aten.from_file.default", "Aten.__class__", "Aten.add.op"),
        *("Torch.", "Torch", "", "os.system"),
    ],
)
def test_what_does_not_compute_is_no_function_that_a_run_can_name(name):
    with pytest.raises(SelectionError, match="no function of torch"):
        function_named(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Functional.relu", F.relu),
        ("Functional.relu_", F.relu_),
        ("Tensor.add_", torch.Tensor.add_),
        ("Tensor.__add__", torch.Tensor.__add__),
        ("Torch.matmul", torch.matmul),
        ("Torch.exp_", torch.exp_),
        ("Torch.fft", torch.fft.fft),
        ("Torch.svd", torch.svd),
        ("VF.lstm", torch._VF.lstm),
        ("Aten.relu", torch.ops.aten.relu),
        ("Aten.relu.default", torch.ops.aten.relu.default),
    ],
)
def test_what_computes_is_found(name, expected):
    found = function_named(name)
    assert found is expected or found == expected


@pytest.mark.parametrize("text", ["torch.load", "torch.os", "torch.nope", "load", None, ["x"]])
@pytest.mark.parametrize("kind", ["torch.dtype", "torch.memory_format"])
def test_a_constant_is_of_its_kind_or_refused_in_words(kind, text):
    with pytest.raises(SelectionError, match="of torch that is here"):
        _MADE[kind](text)


def test_constants_of_torch_are_found():
    assert _MADE["torch.dtype"]("torch.bfloat16") is torch.bfloat16
    assert _MADE["torch.memory_format"]("torch.channels_last") is torch.channels_last
