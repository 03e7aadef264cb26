"""The formulas of what is computed on request, on copies; nothing here draws random numbers.

All results are tensors of one element on the device of what they are computed of. One that is not
defined there (a row of scores that is masked altogether, probabilities that do not sum up to one)
is NaN, which the reduction counts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, Final, ParamSpec, TypeVar

import torch
from torch import Tensor

from probe_nb import devices
from probe_nb.stats.measurable import measurable, modes_off
from probe_nb.ungraded import ungraded

_SUM: Final = 1e-2
"""So far from 1 may the sum of a row of probabilities be: they may be of half precision."""

_WIDE: Final = (torch.float32, torch.float64)
_MATRIX: Final = 2


_P = ParamSpec("_P")
_T = TypeVar("_T")


def computing(
    function: Callable[Concatenate[Tensor, _P], _T],
) -> Callable[Concatenate[Tensor, _P], _T]:
    """Have a function of a tensor compute without history, casts and modes of the user's."""

    @functools.wraps(function)
    def computed(t: Tensor, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with torch._C.DisableTorchFunction(), modes_off():
            if not torch.is_autocast_enabled(t.device.type):
                return ungraded(function, t, *args, **kwargs)
            with torch.autocast(t.device.type, enabled=False):
                return ungraded(function, t, *args, **kwargs)

    return computed


@computing
def below(t: Tensor, limit: float) -> Tensor | None:
    """Return where |x| < limit; None for what cannot be measured, or has implicit zeros."""
    t, zeros, status = measurable(t)
    if status != "ok" or zeros:
        return None
    wide = t if t.dtype in _WIDE else t.to(torch.complex64 if t.is_complex() else torch.float32)
    return wide.abs() < limit


def matrix(weight: Tensor) -> Tensor | None:
    """Return a weight as a matrix of 32 bits or more, one row per output; None if it is none."""
    if weight.dim() < _MATRIX or not weight.is_floating_point():
        return None
    weight, _, status = measurable(weight)
    if status != "ok":
        return None
    return weight.reshape(weight.shape[0], -1)


@computing
def spectral(weight: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the largest singular value of a weight, and its stable rank; both in float64.

    The stable rank is ||W||_F^2 / sigma^2. Sigma^2 is the largest eigenvalue of the smaller of
    W W^T and W^T W, in float64 of W / max|W|, which neither overflows nor vanishes. None if it is
    no matrix, or not finite.
    """
    w = matrix(weight)
    if w is None or not w.numel():
        return None
    w = (w if devices.has_float64(w) else w.cpu()).to(torch.float64)
    top = w.abs().amax()
    if not bool(torch.isfinite(top)):
        return None
    if not bool(top > 0):
        return top, torch.full_like(top, torch.nan)
    w = w / top
    gram = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
    largest = torch.linalg.eigvalsh(gram)[-1]
    return top * largest.sqrt(), (w * w).sum() / largest


@computing
def router_similarity(weight: Tensor) -> Tensor | None:
    """Return the mean cosine between the weights of two experts, over all pairs.

    An expert is a row, as in the weight of a Linear layer from features to experts.
    """
    w = matrix(weight)
    if w is None or w.shape[0] < _MATRIX:
        return None
    w = torch.nn.functional.normalize(w.float(), dim=1)
    n = w.shape[0]
    return (w @ w.T).triu(1).sum() / (n * (n - 1) / 2)


@computing
def direction(grad: Tensor, momentum: Tensor) -> Tensor | None:
    """Return how far a gradient and the momentum agree in sign: 1 everywhere, 0 nowhere.

    Where one of both is 0 an element counts one half.
    """
    if grad.shape != momentum.shape or not grad.numel():
        return None
    agreeing = (grad.sign().float() * momentum.sign().float()).sum() / grad.numel()
    return (agreeing + 1) / 2


def scores(q: Tensor, k: Tensor) -> Tensor:
    """Return q k^T / sqrt(d) of queries and keys (..., s, d), in float32."""
    wide = q.to(torch.promote_types(q.dtype, torch.float32))
    scale: float = q.shape[-1] ** 0.5
    return wide @ k.to(wide.dtype).transpose(-1, -2) / scale


def causal(s: Tensor) -> Tensor:
    """Return scores of which each place sees its own and those before it."""
    seen = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).tril()
    return s.masked_fill(~seen, -torch.inf)


def entropy_of_scores(s: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean entropy of softmax(s) over its last dimension, and the mean of its maximum.

    In nats. Rows that are masked altogether (all -inf) are left out.
    """
    seen = ~(s == -torch.inf).all(-1)
    log_p = torch.log_softmax(s, -1)
    p = log_p.exp()
    terms = torch.where(p > 0, p * log_p, torch.where(p.isnan(), p, 0.0))
    rows = seen.sum()
    entropy = torch.where(seen, -terms.sum(-1), 0.0).sum() / rows
    return entropy, torch.where(seen, p.amax(-1), 0.0).sum() / rows


def entropy_of(p: Tensor, dim: int = -1) -> tuple[Tensor, Tensor]:
    """Return the same of probabilities; NaN if they are none."""
    p = p.to(torch.promote_types(p.dtype, torch.float32))
    total = p.sum(dim)
    known = (p >= 0).all() & ((total - 1).abs() < _SUM).all()
    entropy = -torch.where(p > 0, p * p.log(), 0.0).sum(dim).mean()
    largest = p.amax(dim).mean()
    return torch.where(known, entropy, torch.nan), torch.where(known, largest, torch.nan)
