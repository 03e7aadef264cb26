"""One tensor, or one value that is no tensor, as msProbe writes it."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from probe_nb.dump.writer_tree import Item
from probe_nb.store.table import ABSENT
from probe_nb.terms import COUNTS, STATISTICS

OURS: Final = "probe_nb"
"""The key of what msProbe has no word for; it passes over keys that it does not know."""

TENSOR: Final = "torch.Tensor"
SHARD: Final = "torch.distributed.tensor.DTensor"

_FOUR: Final = ("Max", "Min", "Mean", "Norm")
_COLUMNS: Final = ("max", "min", "mean", "l2")
_MEASURED: Final = ("ok", "no_finite", "has_nan", "has_inf")
_WITHOUT: Final = re.compile("u?int|float8|float4|float64|qu?int|bool")
"""Types of which msProbe measures no mean and no norm."""
_SAID: Final = (*_MEASURED, "empty")
"""What the four say by themselves."""
_NOTHING: Final = re.compile("float8|float4")
_EXACT: Final = 2**53
_LARGEST: Final = float(np.finfo(np.float32).max)
_EMPTY: Final = ("None", "object", "list", "tuple", "dict")


class Numbers(NamedTuple):
    """What a row knows of a tensor, absent numbers as None."""

    dtype: str
    shape: tuple[int, ...]
    status: str
    requires_grad: bool
    loss_scale: float | None
    checksum: str | None
    statistics: dict[str, float | None]
    counts: dict[str, int | None]


def tensor(numbers: Numbers, *, kind: str = TENSOR, task: str = "statistics") -> Item:
    """Return the entry of a tensor, without what is ours alone."""
    made = Item(type=kind, dtype=f"torch.{numbers.dtype}", shape=list(numbers.shape))
    if task == "structure":
        made["requires_grad"] = numbers.requires_grad
        return made
    checksum = numbers.checksum or ""
    alone = numbers.status == "not_asked"  # of a dump: a checksum stands there without the four
    xor = ":" in checksum or checksum.startswith("0x") or (alone and bool(checksum))
    if xor:
        made["md5"] = _xor(checksum)
    else:
        made |= zip(_FOUR, four(numbers), strict=True)
    made["requires_grad"] = numbers.requires_grad
    if checksum and not xor:
        made["md5"] = checksum
    return made


def _xor(checksum: str) -> str | float:
    """Return what msProbe has of ours; of a single number it writes the number."""
    text = checksum.partition(":")[0]
    if text.startswith("0x"):
        return text
    if text in ("True", "False"):
        return text == "True"
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    return text


def four(numbers: Numbers) -> tuple[Any, Any, Any, Any]:
    """Return Max, Min, Mean and Norm as msProbe's arithmetic would give them, were it exact."""
    dtype, status = numbers.dtype, numbers.status
    if status not in _MEASURED or _NOTHING.match(dtype):
        return None, None, None, None
    high, low, mean, norm = _spoiled(numbers)
    if dtype == "bool":
        return _truth(high), _truth(low), None, None
    if not numbers.shape and not dtype.startswith("complex"):
        value = _typed(high, dtype)
        return value, value, value, value
    if _WITHOUT.match(dtype):
        mean = norm = None
    elif dtype.startswith("complex"):
        norm = None
    return _typed(high, dtype), _typed(low, dtype), _single(mean), _single(norm)


def _single(value: float | None) -> float | None:
    """Round to single precision, in which msProbe has its means and norms.

    Written in full, each would differ in its last digits, and `msprobe compare` warns of an output
    whose norm differs ten times more than that of the input, however little that is.
    """
    if value is None or not -_LARGEST <= value <= _LARGEST:
        return value
    return float(np.float32(value))


def _spoiled(numbers: Numbers) -> tuple[Any, Any, Any, Any]:
    """Let NaN and infinities be part of the four again, scaled as they were."""
    if numbers.status == "has_nan":
        return math.nan, math.nan, math.nan, math.nan
    if numbers.status == "has_inf":
        high, low, mean, norm = (numbers.statistics[name] for name in _COLUMNS)
        return high, low, mean, norm
    nan, above, below = (
        numbers.counts[name] or 0 for name in ("nan_count", "posinf_count", "neginf_count")
    )
    if nan:
        return math.nan, math.nan, math.nan, math.nan
    found = [numbers.statistics[name] for name in _COLUMNS]
    if (scale := numbers.loss_scale) is not None:
        found = [None if each is None else each * scale for each in found]
    high, low, mean, norm = found
    if above:
        high, low, mean, norm = math.inf, math.inf if low is None else low, math.inf, math.inf
    if below:
        low, high, norm = -math.inf, -math.inf if high is None else high, math.inf
        mean = math.nan if above else -math.inf
    return high, low, mean, norm


def _truth(value: float | None) -> bool | None:
    return None if value is None or math.isnan(value) else value > 0


def _typed(value: float | None, dtype: str) -> float | int | None:
    """Return a whole number for whole types; one that a float cannot hold is not written."""
    if value is None or not dtype.startswith(("int", "uint")) or not math.isfinite(value):
        return value
    return int(value) if abs(value) < _EXACT else None


def ours(numbers: Numbers, made: Item) -> dict[str, Any]:
    """Return what a row says and msProbe's four do not."""
    found: dict[str, Any] = {}
    if "Max" not in made or numbers.status not in _SAID:
        found["status"] = numbers.status
    said = dict(zip(_COLUMNS, (made.get(name) for name in _FOUR), strict=True))
    spoiled = any(numbers.counts[name] for name in COUNTS[:3])
    for name in STATISTICS:
        value = numbers.statistics[name]
        if value is not None and (spoiled or said.get(name) is None or said[name] != value):
            found[name] = value
    found |= {name: count for name in COUNTS if (count := numbers.counts[name]) is not None}
    if numbers.loss_scale is not None:
        found["loss_scale"] = numbers.loss_scale
    return found


def value(kind: str, held: Any, path: Sequence[str]) -> Any:
    """Return the entry of a value that is no tensor."""
    if kind in _EMPTY:
        return {"dict": {}, "list": [], "tuple": []}.get(kind)
    name = path[-1] if path else ""
    if name in ("dtype", "output_dtype") and kind in ("torch.dtype", "str"):
        return Item(type="torch.dtype", value=held)
    if name == "device" and kind in ("torch.device", "str", "int"):
        return Item(type="torch.device", value=_device(held) if kind == "torch.device" else held)
    if kind in ("torch.dtype", "torch.device"):
        return {}
    if kind == "torch.memory_format":
        return Item(type=kind, format=str(held).removeprefix("torch."))
    return Item(type=kind, value=held)


def _device(text: str) -> str:
    """Return a device as msProbe writes it: with its index, also where it has none."""
    return text if ":" in text else f"{text}:None"


def there(value: float) -> float | None:
    """Return a number of a row, None if it is absent."""
    return None if value != value else value  # noqa: PLR0124 - NaN alone differs from itself


def counted(value: int) -> int | None:
    """Return a count of a row, None if it is absent."""
    return None if value == ABSENT else value
