"""What the CPU gives is right: of no module of torch is it said that rounding does not explain it."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

import probe_nb as probe

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_modules import module_db

MODULES = {info.name: info for info in module_db}
CHOOSES_INSIDE = ("nn.FractionalMaxPool2d", "nn.FractionalMaxPool3d")


def test_the_list_is_not_empty_and_has_those_that_choose_inside():
    assert len(MODULES) > 100
    assert set(CHOOSES_INSIDE) <= set(MODULES)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(set(MODULES) - set(CHOOSES_INSIDE)))
def test_forward_and_backward_are_within_rounding(name):
    info = MODULES[name]
    dtype = torch.bfloat16 if torch.bfloat16 in info.dtypes else torch.float32
    for kind in dict.fromkeys((torch.float32, dtype)):
        torch.manual_seed(0)
        samples = info.module_inputs_func(
            info, device="cpu", dtype=kind, requires_grad=True, training=True
        )
        sample = samples[0]
        made = sample.constructor_input
        model = info.module_cls(*made.args, **made.kwargs).to(kind)
        keep = probe.Keep("*", roles="input, output, grad_output, grad_input, buffer")
        with probe.watch(model, keep=keep, values=True, live=False) as run:
            out = model(*sample.forward_input.args, **sample.forward_input.kwargs)
            ends = [out] if isinstance(out, Tensor) else list(out)
            ends = [each for each in ends if isinstance(each, Tensor) and each.requires_grad]
            if ends:
                torch.autograd.backward(ends, [torch.rand_like(each) for each in ends])
        found = run.replay("(root)", model)
        assert found.verdict == "within", found
