"""Every operator in float64 on the CPU, whatever the code around asks for; with noise on request.

Rounding is imitated operator by operator, in the directions that a generator of our own draws
(Monte Carlo arithmetic: Parker, "Monte Carlo Arithmetic: exploiting randomness in floating-point
arithmetic", UCLA CSD-970002, 1997). With u, the unit roundoff of the format, and k terms in the
sum behind an element, a result is off by u + d, d = sqrt(k) min(u, u of float32): the bound of
`analysis.compare.rounding`, with its sources. Operands of products are off by d too, since sums
whose terms cancel are no more exact than their terms; those of other operators that add, such as
a softmax, by the unit roundoff of float32 at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from probe_nb.analysis.compare.rounding import UNITS

_WIDER: Final = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
    torch.float8_e4m3fn: torch.float64,
    torch.float8_e4m3fnuz: torch.float64,
    torch.float8_e5m2: torch.float64,
    torch.float8_e5m2fnuz: torch.float64,
}
_SINGLE: Final = UNITS["float32"]

_PRODUCTS: Final = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot"), 0),
    **dict.fromkeys(("addmm", "baddbmm", "addbmm", "addmv"), 1),
}
"""Operators that multiply and add, and the place of the operand whose last dimension is summed."""

_CONVOLUTIONS: Final = {"convolution": 1, "_convolution": 1, "convolution_backward": 2}
"""The same, and the place of the weight."""

_BASIC: Final = frozenset(
    (
        *("add", "sub", "mul", "div", "rsub", "sqrt", "square", "_to_copy", "addcmul", "addcdiv"),
        *("lerp", "reciprocal", "add_", "sub_", "mul_", "div_", "sqrt_", "addcmul_", "addcdiv_"),
    )
)
"""Pointwise operators that are rounded once; others are functions."""

_FUNCTION: Final = 4.0
"""Units of float32 that the value of a function may be off by."""

_ONE_BY_ONE: Final = (
    *("pad", "pool", "upsample", "scatter", "index_add", "index_put", "embedding_dense_backward"),
    *("grid_sampler", "col2im", "cumsum", "cumprod"),
)
"""Parts of the names of operators that add in the format itself, one term after the other."""

_FEWEST: Final = 4
"""Terms that these add at least where anything is added."""

_EXACT: Final = frozenset(
    (
        *("clone", "copy_", "copy", "cat", "stack", "index", "index_select", "gather", "where"),
        *("masked_fill", "masked_fill_", "embedding", "relu", "relu_", "abs", "neg", "max", "min"),
        *("amax", "amin", "maximum", "minimum", "clamp", "clamp_", "clamp_min", "clamp_max"),
        *("hardtanh", "hardtanh_", "max_pool2d_with_indices", "max_pool3d_with_indices", "topk"),
        *("sort", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "fill_"),
        *("zero_", "empty", "empty_like", "new_empty", "new_zeros", "new_ones", "new_full"),
        *("constant_pad_nd", "flip", "roll", "repeat", "tril", "triu", "index_put_", "index_put"),
        *("scatter", "scatter_", "slice_scatter", "select_scatter", "lift_fresh", "threshold"),
        *("lift_fresh_copy", "_local_scalar_dense", "sign", "round", "floor", "ceil", "trunc"),
        *("arange", "scalar_tensor", "unbind", "split", "masked_select", "nonzero", "one_hot"),
        *("empty_strided", "new_empty_strided", "threshold_backward", "set_", "resize_", "eye"),
        *("slice_backward", "select_backward", "view_as_complex", "view_as_real", "complex"),
        *("conj_physical", "real", "imag", "_conj_physical", "unfold", "im2col", "tile"),
    )
)
"""Operators that choose and move, and round nothing."""


class Unanswerable(Exception):  # noqa: N818 - it is no error: there is no truth to be had
    """What float64 on the CPU says cannot be found out; the text says why."""


class Wide(TorchDispatchMode):
    """Runs what is called inside of it in float64 on the CPU.

    Attributes:
        drawn: Names of the operators that drew random numbers.
    """

    def __init__(self, noise: Noise | None = None) -> None:
        """Compute exactly, or with noise."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._noise = noise
        self.drawn: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run one operator."""
        name = func._schema.name.rpartition("::")[2]  # noqa: SLF001 - torch has no other name
        if func is torch.ops.aten.view.dtype and not _same_kind(*args):
            raise Unanswerable("it reads the bits of its numbers, which float64 has not")
        if torch.Tag.nondeterministic_seeded in func.tags and name not in self.drawn:
            self.drawn.append(name)
        rounds = name not in _EXACT and not func.is_view
        if name == "_to_copy":
            rounds = _narrows(args[0], (kwargs or {}).get("dtype"))
        args, kwargs = tree_map(_wide, args), tree_map(_wide, kwargs or {})
        if self._noise is None or not rounds:
            return tree_map(_wide, func(*args, **kwargs))
        return self._noise.around(func, name, args, kwargs)


class Noise:
    """Rounds as a format does, in directions of its own.

    Attributes:
        unit: The unit roundoff of the format.
        narrowed: Operands of products are rounded to it first, as autocast does.
    """

    def __init__(self, unit: float, seed: int, *, narrowed: bool) -> None:
        """Draw the directions from a generator of this seed."""
        self.unit, self.narrowed = unit, narrowed
        self._inner = min(unit, _SINGLE)
        self._generator = torch.Generator("cpu").manual_seed(seed)

    def around(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Run an operator whose operands and result are off by as much as rounding explains."""
        before, added = self._sizes(func, name, args)
        moved = args
        if before and not func._schema.is_mutable:  # noqa: SLF001
            moved = tree_map(lambda each: self.off(each, before), args)
        given = {id(each) for each in args if isinstance(each, Tensor)}
        try:
            result = tree_map(_wide, func(*moved, **kwargs))
        except RuntimeError:  # it wants a probability, which may not be above 1
            result = tree_map(_wide, func(*args, **kwargs))

        def written(value: Any) -> Any:
            if not _is_float(value) or bool(((value == 0) | (value == 1)).all()):
                return value  # flags are exact
            rounded = self.off(value, self.unit + added(value))
            return value.copy_(rounded) if id(value) in given else rounded

        return tree_map(written, result)

    def _sizes(self, func: Any, name: str, args: Any) -> tuple[float, Callable[[Tensor], float]]:
        """Return how far operands are off, and what adding costs a result beside one rounding."""
        terms = _terms(name, args)
        if terms is not None:
            summed = math.sqrt(terms) * self._inner
            return summed + (self.unit if self.narrowed else 0.0), lambda _: summed
        if _is_pointwise(func, name):
            more = 0.0 if name in _BASIC else _FUNCTION * self._inner
            return 0.0, lambda _: more
        largest = max((each for each in args if _is_float(each)), key=Tensor.numel, default=None)
        if any(part in name for part in _ONE_BY_ONE):
            return self._inner, lambda v: self.unit * math.sqrt(max(_FEWEST, _folded(largest, v)))
        return self._inner, lambda v: self._inner * math.sqrt(_behind(largest, v))

    def off(self, value: Any, size: float) -> Any:
        """Return a tensor with every element larger or smaller by this part of itself."""
        if not _is_float(value):
            return value
        signs = torch.empty(value.shape, dtype=torch.float64)
        signs.bernoulli_(generator=self._generator).mul_(2 * size).add_(1 - size)
        return value * signs


def widened(value: Tensor) -> Tensor:
    """Return a tensor on the CPU, in float64 (complex128) if it has broken numbers.

    Raises:
        Unanswerable: It has no plain elements.
    """
    if value.device.type == "meta":
        raise Unanswerable("a tensor of it has no values")
    if value.is_quantized or value.is_sparse or value.layout != torch.strided:
        raise Unanswerable("it has a tensor that is quantised or sparse")
    return value.to("cpu").to(_WIDER.get(value.dtype, value.dtype))


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor):
        if value.dtype in _WIDER or value.device.type not in ("cpu", "meta"):
            return widened(value)
        return value
    if isinstance(value, torch.dtype):
        return _WIDER.get(value, value)
    if isinstance(value, torch.device) and value.type != "meta":
        return torch.device("cpu")
    return value


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _narrows(value: Any, dtype: Any) -> bool:
    """Tell whether a conversion rounds, on a device as in the replay of it."""
    return dtype in _WIDER and isinstance(value, Tensor)


def _same_kind(value: Tensor, dtype: torch.dtype) -> bool:
    return _WIDER.get(dtype, dtype) == value.dtype or dtype == value.dtype


def _is_pointwise(func: Any, name: str) -> bool:
    return torch.Tag.pointwise in func.tags or name == "_to_copy"


def _terms(name: str, args: Any) -> int | None:
    """Return how many products are added up for one element, None if the operator is no product."""
    if name in _PRODUCTS:
        return int(args[_PRODUCTS[name]].shape[-1])
    if name in _CONVOLUTIONS:
        weight = args[_CONVOLUTIONS[name]]
        return int(weight.numel() // max(1, min(weight.shape[:2])))
    return None


def _folded(largest: Tensor | None, result: Tensor) -> int:
    """Return how many elements of the largest operand there are for each of the result."""
    return 1 if largest is None else max(1, largest.numel() // max(1, result.numel()))


def _behind(largest: Tensor | None, result: Tensor) -> int:
    """Return the same, or the longest dimension, along which a norm or a softmax may add."""
    return max(_folded(largest, result), *(() if largest is None else largest.shape), 1)
