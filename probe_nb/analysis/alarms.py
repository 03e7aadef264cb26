"""Which single records are alarming, and which only look it.

Three things look like a fault and are none:

* -Inf alone in an *input* whose call gave out nothing worse, and in an *output*: attention masks
  and log-probabilities are made of it. Where it does harm, `origins` says so.
* The lowest finite number of a dtype in forward values whose positive side is nowhere near the
  limit: the other way of writing a mask (`torch.finfo(dtype).min`).
* A non-finite gradient under a `GradScaler`: it probes the range on purpose, skips that step and
  halves the scale. Steps of that kind are counted apart (`ScalerSteps`).
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.grouping import together
from probe_nb.analysis.thresholds import DEFAULTS
from probe_nb.store.table import Arrays
from probe_nb.terms import DIRECTIONS, ROLES

LIMITS: Final[dict[str, tuple[int, int, float]]] = {
    "float64": (-1074, 1023, 1.7976931348623157e308),
    "float32": (-149, 127, 3.4028234663852886e38),
    "bfloat16": (-133, 127, 3.3895313892515355e38),
    "float16": (-24, 15, 65504.0),
    "float8_e5m2": (-16, 15, 57344.0),
    "float8_e4m3fn": (-9, 8, 448.0),
}
"""Exponents of the smallest subnormal and of the largest number, and the largest number itself."""

HEADROOM: Final = DEFAULTS.overflow_headroom
"""Overflow risk: above this share of the dtype's largest number, so two doublings from infinity.

`GradScaler` doubles its scale as it grows, and a sum of four such values overflows. (Mixed
precision training asks for scaled values below the largest number at all times: Micikevicius et
al., ICLR 2018, section 3.2.) The float8 types are left out: their scaling recipes place the largest
value at the limit on purpose.
"""

KINDS: Final = ("nan", "posinf", "neginf", "bad", "saturated", "risk")
"""`bad` is any of the first three."""

_INPUT: Final = ROLES.index("input")
_OUTPUT: Final = ROLES.index("output")
_BUFFER: Final = ROLES.index("buffer")
_FORWARD: Final = DIRECTIONS.index("forward")
_BACKWARD: Final = DIRECTIONS.index("backward")
_RANGED: Final = np.isin(ROLES, ("output", "grad_output", "grad_input", "param_grad"))
"""Roles whose range is judged; an input was an output before, and masks come in as inputs."""


@dataclass(frozen=True)
class Found:
    """What `find` says of a block, one value per record.

    Attributes:
        bad_count: Non-finite elements, -1 where nothing was counted.
        quiet: Non-finite on purpose.
        loud: Non-finite and not on purpose.
        scaled: A gradient that was measured under a loss scale.
        of_kind: The alarming records of each kind.
    """

    bad_count: NDArray[np.int64]
    quiet: NDArray[np.bool_]
    loud: NDArray[np.bool_]
    scaled: NDArray[np.bool_]
    of_kind: dict[str, NDArray[np.intp]]


def find(
    block: Arrays,
    role: NDArray[np.int8],
    direction: NDArray[np.int8],
    module: NDArray[np.int32],
    limits: NDArray[np.float64],
    *,
    headroom: float = HEADROOM,
) -> Found:
    """Judge each record of a block by itself and by the other records of its call.

    Args:
        block: Records.
        role: Code of each site.
        direction: Code of each site.
        module: Number of the module of each site.
        limits: Largest finite value, one per dtype code.
        headroom: Share of the largest value from which on overflow is a risk.
    """
    site = together(block["site"])
    nan, pos, neg = (np.maximum(block[f"{n}_count"], 0) for n in ("nan", "posinf", "neginf"))
    bad_count = np.where(block["nan_count"] < 0, -1, nan + pos + neg)
    bad = bad_count > 0
    scaled = (direction[site] != _FORWARD) & ~np.isnan(block["loss_scale"])
    quiet = np.zeros(len(bad), np.bool_)
    saturated, risk = _range(block, limits, headroom, direction[site] == _BACKWARD)
    if not (bad | saturated | risk).any():
        return Found(bad_count, quiet, bad, scaled, dict.fromkeys(KINDS, np.flatnonzero(bad)))
    if bad.any():
        quiet = _masks(block, role[site], module[site], bad, bad & (nan + pos == 0))
    loud = bad & ~quiet
    alarm = loud & ~scaled
    ranged = _RANGED[role[site]] & ~scaled
    of_kind = {
        "nan": alarm & (nan > 0),
        "posinf": alarm & (pos > 0) & (nan == 0),
        "neginf": alarm & (nan + pos == 0),
        "bad": alarm,
        "saturated": saturated & ranged,
        "risk": risk & ranged & ~saturated,
    }
    rows = {kind: np.flatnonzero(mask) for kind, mask in of_kind.items()}
    return Found(bad_count, quiet, loud, scaled, rows)


def _masks(
    block: Arrays,
    role: NDArray[np.int8],
    module: NDArray[np.int32],
    bad: NDArray[np.bool_],
    only_neginf: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Tell which values hold -Inf and nothing worse, and did no harm to their call's output.

    Where -Inf in an output did harm, `origins` knows: it may be in another call.
    """
    masks = only_neginf & (role == _INPUT)
    harmed = np.flatnonzero(bad & ~only_neginf & (role == _OUTPUT))
    if masks.any() and len(harmed):
        call = _calls(block, module)
        masks &= ~np.isin(call, call[harmed])
    masks |= only_neginf & (role == _OUTPUT)
    masks |= (role == _BUFFER) & (block["nan_count"] <= 0)  # bounds that nothing has reached yet
    found: NDArray[np.bool_] = masks & bad
    return found


def _calls(block: Arrays, module: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return one number per record that is the same for the records of one call."""
    number = module.astype(np.int64)
    for name in ("rank", "step", "micro_step", "call"):
        values = block[name].astype(np.int64)
        lowest = int(values.min())
        number = number * (int(values.max()) - lowest + 1) + (values - lowest)
    return number


def _range(
    block: Arrays, limits: NDArray[np.float64], headroom: float, backward: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Tell which records reach the largest number of their dtype, and which come near."""
    near = (headroom * limits)[block["dtype"]]
    at_limit, close = block["at_max_count"] > 0, block["absmax"] >= near
    if not (at_limit | close).any():
        return at_limit, close
    limit = limits[block["dtype"]]
    mask = at_limit & ~backward & (block["min"] <= -limit) & ~(block["max"] >= near)
    narrow = limit < LIMITS["float8_e5m2"][2] + 1
    saturated = at_limit & (~mask | narrow)
    return saturated, close & ~mask & ~narrow


class Scaled(Protocol):
    """Which records of a block were measured under a loss scale, and which are not finite."""

    @property
    def scaled(self) -> NDArray[np.bool_]:
        """Gradients that were measured under a loss scale."""

    @property
    def loud(self) -> NDArray[np.bool_]:
        """What is not finite."""


@dataclass(frozen=True, order=True)
class Overflow:
    """The first gradient of a step that was not finite under a loss scale."""

    order: int
    row: int
    site: int
    scale: float


@dataclass
class ScalerSteps:
    """The steps whose gradients were measured under a loss scale.

    Steps may come in pieces, and overlap: none is good or bad for certain before it is old.

    Attributes:
        last: The last of them, -1 if there is none.
        overflowed: Those with a non-finite gradient, rising.
        first: Where the first of these is not finite.
    """

    last: int = -1
    overflowed: list[int] = field(default_factory=list)
    first: Overflow | None = None
    _recent: dict[int, Overflow | None] = field(default_factory=dict)
    _old: tuple[int, int, Overflow | None] = (-1, 0, None)  # the last one, the streak up to it

    @property
    def streak(self) -> int:
        """How many of them in a row, up to the last one, overflowed."""
        return self._streak()[0]

    @property
    def row(self) -> int:
        """The first non-finite gradient of the streak, -1 if there is none."""
        first = self._streak()[1]
        return -1 if first is None else first.row

    @property
    def site(self) -> int:
        """Its site."""
        first = self._streak()[1]
        return -1 if first is None else first.site

    @property
    def scale(self) -> float:
        """Its loss scale."""
        first = self._streak()[1]
        return np.nan if first is None else first.scale

    def add(self, block: Arrays, found: Scaled, first_row: int) -> None:
        """Take in the scaled gradients of a block."""
        rows = np.flatnonzero(found.scaled)
        step: Any = block["step"]
        bad = rows[found.loud[rows]]
        bad = bad[np.lexsort((block["order"][bad], step[bad]))]
        steps, where = np.unique(step[bad], return_index=True)
        firsts = {
            each: Overflow(
                int(block["order"][row]),
                first_row + row,
                int(block["site"][row]),
                float(block["loss_scale"][row]),
            )
            for each, row in zip(steps.tolist(), bad[where].tolist(), strict=True)
        }
        for each in np.unique(step[rows]).tolist():
            self._take(each, firsts.get(each))

    def _take(self, step: int, found: Overflow | None) -> None:
        if step <= self._old[0]:
            return
        known = self._recent.get(step)
        both = [each for each in (known, found) if each is not None]
        self._recent[step] = min(both, default=None)
        if known is None and found is not None:
            insort(self.overflowed, step)
        if found is not None and self.overflowed[0] == step:
            self.first = self._recent[step]
        self.last = max(self.last, step)
        if len(self._recent) > _OPEN:
            oldest = min(self._recent)
            _, streak, first = self._old
            gone = self._recent.pop(oldest)
            self._old = (oldest, streak + 1, first or gone) if gone else (oldest, 0, None)

    def _streak(self) -> tuple[int, Overflow | None]:
        streak, first = 0, None
        for step in sorted(self._recent, reverse=True):
            if self._recent[step] is None:
                return streak, first
            streak, first = streak + 1, self._recent[step]
        return self._old[1] + streak, self._old[2] or first


_OPEN: Final = 32
"""Scaled steps of which a piece may still come."""
