"""Hypothesis strategies: tensors of every dtype, filled with every kind of value, laid out in every way."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import strategies as st

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
EIGHT_BITS = (
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
)
SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
COMPLEX = (torch.complex64, torch.complex128)
REAL = (*FLOATS, *EIGHT_BITS, *SIGNED, *UNSIGNED, torch.bool)
DTYPES = (*REAL, *COMPLEX)

_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_FILLS = ("bits", "normal", "huge", "tiny", "offset", "constant", "zeros", "special")


def shapes(max_side: int = 9):
    """Shapes of 0 to 4 dimensions, empty ones among them."""
    return st.lists(st.integers(0, max_side), min_size=0, max_size=4).map(tuple)


@st.composite
def tensors(draw, dtypes=DTYPES, max_side: int = 9):
    """A tensor of any dtype, fill and layout."""
    dtype = draw(st.sampled_from(dtypes))
    base = draw(filled(dtype, draw(shapes(max_side))))
    return draw(laid_out(base))


@st.composite
def filled(draw, dtype: torch.dtype, shape: tuple[int, ...]):
    """A contiguous tensor of a given dtype and shape."""
    fill = draw(st.sampled_from(_FILLS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = math.prod(shape)
    if dtype.is_complex:
        part = torch.float32 if dtype == torch.complex64 else torch.float64
        return torch.view_as_complex(_fill(fill, part, 2 * n, rng).reshape(*shape, 2))
    return _fill(fill, dtype, n, rng).reshape(shape)


def _fill(fill: str, dtype: torch.dtype, n: int, rng: np.random.Generator) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.from_numpy(rng.integers(0, 2, n).astype(bool))
    if not dtype.is_floating_point:
        return _integers(fill, dtype, n, rng)
    if fill == "bits":
        bits = _BITS[dtype.itemsize]
        raw = rng.integers(0, np.iinfo(bits).max, n, dtype=bits, endpoint=True)
        return torch.from_numpy(raw).view(dtype)
    info = torch.finfo(dtype)
    x = rng.standard_normal(n)
    if fill == "huge":
        x = np.clip(x, -1, 1) * info.max
    elif fill == "tiny":
        x = x * info.tiny
    elif fill == "offset":
        x = 1e4 + 1e-2 * x
    elif fill == "constant":
        x = np.full(n, float(rng.choice([0.1, 3.0, -1e-3])))
    elif fill == "zeros":
        x = rng.choice([0.0, -0.0, 1.0], n)
    elif fill == "special":
        edges = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -2.5]
        x = rng.choice([*edges, info.max, info.min, info.tiny, info.tiny / 2], n)
    return torch.from_numpy(np.atleast_1d(x)).to(dtype)


def _integers(fill: str, dtype: torch.dtype, n: int, rng: np.random.Generator) -> torch.Tensor:
    numpy_dtype = np.dtype(str(dtype).removeprefix("torch."))
    low, high = np.iinfo(numpy_dtype).min, np.iinfo(numpy_dtype).max
    if fill in ("huge", "special"):
        edges = np.array([low, low + 1, 0, 1, high - 1, high], dtype=numpy_dtype)
        return torch.from_numpy(rng.choice(edges, n))
    if fill != "bits":
        low, high = max(low, -100), min(high, 100)
    return torch.from_numpy(rng.integers(low, high, n, dtype=numpy_dtype, endpoint=True))


@st.composite
def laid_out(draw, base: torch.Tensor):
    """The same tensor, or a view of it, in any layout."""
    kind = draw(
        st.sampled_from(("plain", "transposed", "strided", "expanded", "overlapping", "lazy"))
    )
    if kind == "transposed" and base.dim() > 1:
        return base.permute(draw(st.permutations(range(base.dim()))))
    if kind == "strided" and base.dim():
        step, first = draw(st.integers(2, 3)), draw(st.integers(0, 1))
        dim = draw(st.integers(0, base.dim() - 1))
        return base[(*[slice(None)] * dim, slice(first, None, step))]
    if kind == "expanded":
        times = draw(st.integers(1, 5))
        return base.unsqueeze(0).expand(times, *base.shape)
    if kind == "overlapping" and base.numel() >= 4:
        flat = base.reshape(-1)
        return flat.unfold(0, draw(st.integers(2, 4)), 1)
    return _lazy(draw, base) if kind == "lazy" else base


def _lazy(draw, base: torch.Tensor) -> torch.Tensor:
    """A view whose elements are conjugated or negated only when they are read."""
    if base.is_complex():
        return base.conj() if draw(st.booleans()) else base.conj().imag
    return torch._neg_view(base) if base.dtype in FLOATS else base
