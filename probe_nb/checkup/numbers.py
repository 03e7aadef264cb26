"""Is every statistic of every type that the device has what numpy says of the same values?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probe_nb import devices, doors
from probe_nb.checkup import truth
from probe_nb.checkup.report import Check
from probe_nb.stats.kernels import cpu

_FLOATS: Final = (
    *(torch.float32, torch.float16, torch.bfloat16, torch.float64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64),
)
_WHOLE: Final = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
_NEED_FLOAT64: Final = (torch.float64, torch.complex64)
_COMPILED_WITHIN: Final = 30.0
"""Seconds that are waited for the compiled kernel of the CPU."""


def checks(device: torch.device) -> Iterator[Check]:
    """Hold a watch of tensors of each type against the truth."""
    if device.type == "cpu":
        _wait_for_the_compiled_kernel()
    for dtype in (*_FLOATS, *_WHOLE):
        name = str(dtype).removeprefix("torch.")
        try:
            there = {case: t.to(device) for case, t in cases(dtype)}
            exact = devices.has_float64(next(iter(there.values()))) or dtype not in _NEED_FLOAT64
        except (RuntimeError, TypeError, NotImplementedError) as error:
            yield Check("numbers", name, "skipped", f"not on this device: {error}"[:200])
            continue
        if exact:
            yield _compared(name, there)
        else:
            yield Check("numbers", name, "skipped", "the device computes it in float32")


def _wait_for_the_compiled_kernel() -> None:
    thread = cpu.warm()
    if thread is not None:
        thread.join(_COMPILED_WITHIN)


def _compared(name: str, there: dict[str, Tensor]) -> Check:
    module = nn.Identity()
    with doors.watch(module, roles="input", live=False) as run:
        for t in there.values():
            module(t)
    frame, wrong = run.df, []
    if len(frame) != len(there):
        wrong = [f"{len(frame)} records, not {len(there)}"]
    for (row, record), (case, t) in zip(frame.iterrows(), there.items(), strict=False):
        wanted = truth.of(t.cpu())
        found = wanted.faults(record, run.columns.histogram(int(str(row))))
        wrong += [f"{case}: {each}" for each in found]
    if wrong:
        return Check("numbers", name, "failed", "; ".join(wrong[:4]))
    said = f"statistics, counts and histogram of {len(there)} tensors are those of numpy"
    return Check("numbers", name, "passed", said)


def cases(dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors of one type on the host, each with what is special about it."""
    for name, values in (_of_floats(dtype) if dtype in _FLOATS else _of_whole(dtype)).items():
        yield name, _tensor(values, dtype)
    plain = np.random.default_rng(1).normal(size=(30, 40)) * 50
    t = _tensor(plain, dtype)
    yield "transposed", t.t()
    yield "every third column", t[:, ::3]
    yield "expanded", t[:1].expand(5, 40)
    yield "empty", t[:0]
    yield "one element", t[3, 4]


def _tensor(values: NDArray[np.float64], dtype: torch.dtype) -> Tensor:
    values = np.ascontiguousarray(values)
    t = torch.from_numpy(values if dtype.is_floating_point or dtype.is_complex else values.round())
    return t > 0 if dtype == torch.bool else t.to(dtype)


def _of_floats(dtype: torch.dtype) -> dict[str, NDArray[np.float64]]:
    rng: Callable[..., NDArray[np.float64]] = np.random.default_rng(0).normal
    info = torch.finfo(dtype)
    largest, tiny = float(info.max), float(info.tiny)
    return {
        "normal": rng(size=5000),
        "half zeros": np.maximum(rng(size=5000), 0),
        "1e4 +- 1e-2": 1e4 + 1e-2 * rng(size=5000),
        "1e25": 1e25 * rng(size=1000),
        "1e-25": 1e-25 * rng(size=1000),
        "the largest": np.array([largest, -largest, largest, 1.0]),
        "subnormal": tiny * np.array([1.0, 0.75, -0.5, 0.25, 0.0, -0.0]),
        "Inf and NaN": np.array([np.nan, np.inf, -np.inf, np.nan, 0.0, 2.0, -3.0]),
        "nothing finite": np.array([np.nan, np.inf, -np.inf]),
    } | ({"many": rng(size=2**20 + 3)} if dtype == torch.float32 else {})


def _of_whole(dtype: torch.dtype) -> dict[str, NDArray[np.float64]]:
    random = np.random.default_rng(0).integers(0, 100, size=3000).astype(np.float64)
    if dtype == torch.bool:
        return {"mask": random - 50}
    info = torch.iinfo(dtype)
    return {
        "ids": random,
        "signed" if info.min else "unsigned": random - (50 if info.min else 0),
        # beyond 2**53 float64 cannot say them
        "the ends": np.array([max(info.min, -(2**53)), min(info.max, 2**53), 0.0, 1.0]),
    }
