"""The advice where finite numbers may have passed the end of their dtype."""

import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.analysis.narrow import passed


class Between(nn.Module):
    """Two layers, and code between them."""

    def __init__(self, dtype, code):
        super().__init__()
        self.a, self.b = (nn.Linear(2, 2, bias=False, dtype=dtype) for _ in range(2))
        for each in (self.a, self.b):
            nn.init.constant_(each.weight, 1.0)
        self.code = code

    def forward(self, x):
        return self.b(self.code(self.a(x)))


def product(x):
    return x @ x


def advice(model, x, level="module"):
    with probe.watch(model, level=level, live=False) as run, torch.no_grad():
        model(x)
    found = run.first_nonfinite()
    return found.sentence, found.advice


@pytest.mark.parametrize(
    ("dtype", "size", "end"),
    [(torch.float16, 400.0, "65504"), (torch.bfloat16, 2.0**66, "3.39e+38")],
)
def test_a_product_that_is_too_large_is_told_with_the_end_of_its_dtype(dtype, size, end):
    x = torch.full((2, 2), size, dtype=dtype)
    said, what = advice(Between(dtype, product), x)
    assert said.startswith("+Inf first appeared at step 0 between a (output finite) and b")
    assert f"{str(dtype)[6:]} ends at {end}, and values up to" in what
    assert what.endswith('`level="mix"` names the function.')
    said, what = advice(Between(dtype, product), x, level="mix")
    assert "Tensor.__matmul__ (forward output)" in said
    assert f"ends at {end}" in what
    assert "mix" not in what


def test_small_values_have_not_passed_the_end_of_their_dtype():
    _, what = advice(
        Between(torch.float16, lambda x: x / 0), torch.full((2, 2), 0.01, dtype=torch.float16)
    )
    assert "ends at" not in what
    assert what.endswith('`level="mix"` names the function.')


def test_float32_ends_too_far_away_to_be_named():
    _, what = advice(Between(torch.float32, product), torch.full((2, 2), 2.0**66))
    assert "ends at" not in what


@pytest.mark.parametrize(
    "name", ["float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]
)
def test_the_ends_are_those_of_torch(name):
    limit = torch.finfo(getattr(torch, name)).max
    assert passed(["float32", name], limit).startswith(f"{name} ends at {limit:g},")
    assert passed([name], limit**0.5 / 33) == ""


def test_a_gradient_that_a_hook_spoils_is_advised_to_look_at_hooks():
    model = nn.Linear(2, 2)
    model.weight.register_hook(lambda grad: grad * float("nan"))
    with probe.watch(model, live=False) as run:
        model(torch.ones(1, 2)).sum().backward()
    assert "hooks on its gradient (`register_hook`)" in run.first_nonfinite().advice
