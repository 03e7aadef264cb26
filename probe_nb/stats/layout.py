"""Any strided tensor as a few flat pieces, without copying more than one piece at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


def compact(x: Tensor) -> tuple[Tensor, int]:
    """Drop dimensions of stride 0 and return the rest with the number of repetitions.

    The gradient of a sum is one number expanded to millions: it is reduced as one number.
    """
    repeats = 1
    for dim in range(x.dim() - 1, -1, -1):
        if x.stride(dim) == 0 and x.size(dim) > 1:
            repeats *= x.size(dim)
            x = x.select(dim, 0)
    return x, repeats


def pieces(x: Tensor, limit: int) -> Iterator[Tensor]:
    """Yield 1-D tensors of at most `limit` elements that hold every element of `x` once.

    Order does not matter to a statistic, so a dense tensor of any layout is read in memory order.
    """
    flat = in_memory_order(x)
    if flat is not None:
        yield from flat.split(limit) if flat.numel() > limit else (flat,)
    elif x.numel() <= limit:
        yield x.reshape(-1)
    else:
        dim = max(range(x.dim()), key=x.size)
        half = x.size(dim) // 2
        yield from pieces(x.narrow(dim, 0, half), limit)
        yield from pieces(x.narrow(dim, half, x.size(dim) - half), limit)


def in_memory_order(x: Tensor) -> Tensor | None:
    """Return a 1-D view of a dense tensor, None if its elements do not lie side by side."""
    if x.is_contiguous():
        return x.view(-1)
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return None
        expected *= size
    return torch.as_strided(x, (x.numel(),), (1,))


def runs(shape: Sequence[int], strides: Sequence[int]) -> tuple[list[tuple[int, int]], int, int]:
    """Say where the elements of a strided tensor lie, in as few dimensions as it takes.

    Returns (size, stride) of each, the widest stride first, none if all lie side by side; the
    number of elements; and how often they are repeated by dimensions of stride 0.
    """
    repeats, n = 1, 1
    merged: list[tuple[int, int]] = []
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if stride == 0:
            repeats *= size
            continue
        n *= size
        if size == 1:
            continue
        if merged and stride == merged[-1][0] * merged[-1][1]:
            merged[-1] = (merged[-1][0] * size, merged[-1][1])
        else:
            merged.append((size, stride))
    if not merged or (len(merged) == 1 and merged[0][1] == 1):
        return [], n, repeats
    return merged[::-1], n, repeats


def has_memory(x: Tensor, end: int) -> bool:
    """Tell whether there is memory for `end` elements from the first one of `x` on.

    A storage may have been let go. In a backward it is not asked for: a gradient whose storage
    was asked for is no longer added to in place.
    """
    if torch._C._current_graph_task_id() != -1:
        return x.data_ptr() != 0
    return x.untyped_storage().nbytes() >= (x.storage_offset() + end) * x.element_size()
