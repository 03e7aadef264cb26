"""What is computed on request beside the statistics: names, and modules it is computed of.

The option is `{name: patterns}`. Some names say more behind a colon: `below:1e-8`,
`attention_entropy:sbhd+causal`. docs/training-monitor.md has the formulas and what each costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from probe_nb import grammar
from probe_nb.errors import ConfigError, closest
from probe_nb.terms import Role

ORDERS: Final = ("bhsd", "sbhd", "bshd")
"""How the queries of an attention lie: batch, head, place in the sequence, and their numbers."""

OF_WEIGHT: Final = ("spectral_norm", "stable_rank", "router_similarity")
OF_CALL: Final = ("attention_entropy", "softmax_max", "expert_entropy")
OF_STEP: Final = ("state_before", "grad_direction")
BELOW: Final = "below"

NAMES: Final = (*OF_WEIGHT, *OF_CALL, *OF_STEP, BELOW)

_ROLES: Final[dict[str, tuple[Role, ...]]] = dict.fromkeys(OF_WEIGHT, ("param",))
"""The roles without whose rows there is nothing to compute it at."""


@dataclass(frozen=True)
class Extra:
    """One quantity, and the patterns of the modules that it is wanted of."""

    name: str
    select: tuple[str, ...]
    order: str = "bhsd"
    causal: bool = False
    limit: float = 0.0

    @property
    def text(self) -> str:
        """The name as it is written in the option and in the rows."""
        if self.name == BELOW:
            return f"{BELOW}:{self.limit!r}"
        return self.name


def as_extras(value: Any, roles: Sequence[Role]) -> tuple[Extra, ...]:
    """Check the option `extras`.

    Raises:
        ConfigError: It is no mapping of known names to patterns, or the rows that a quantity is
            computed with are not recorded.
    """
    if value is None:
        return ()
    if not isinstance(value, Mapping) or not value:
        raise ConfigError(
            f"`extras` is {value!r}; give a dict of names and patterns, such as "
            '`{"spectral_norm": "type:Linear"}`.'
        )
    made = tuple(_extra(str(key), select) for key, select in value.items())
    for each in made:
        missing = [role for role in _ROLES.get(each.name, ()) if role not in roles]
        if missing:
            raise ConfigError(
                f"`{each.name}` is computed where `{missing[0]}` is recorded; add it to `roles`."
            )
    return made


def _extra(key: str, select: Any) -> Extra:
    name, _, more = key.partition(":")
    if name not in NAMES:
        raise ConfigError(f"`{name}` is no extra.{closest(name, NAMES)} Known: {', '.join(NAMES)}.")
    patterns = grammar.words(f"extras[{key!r}]", select) or ("*",)
    if name == BELOW:
        return Extra(name, patterns, limit=_limit(more))
    if not more:
        return Extra(name, patterns)
    order, _, causal = more.partition("+")
    fits = name in OF_CALL[:2] and order in ORDERS and causal in ("", "causal")
    if not fits:
        raise ConfigError(
            f"`{key}` is not understood; behind the colon of `attention_entropy` and `softmax_max` "
            f"stands one of {', '.join(ORDERS)}, and `+causal` where each place sees only those "
            "before it."
        )
    return Extra(name, patterns, order=order, causal=bool(causal))


def _limit(text: str) -> float:
    try:
        limit = float(text)
    except ValueError:
        limit = math.nan
    if not 0 < limit < math.inf:
        raise ConfigError(f"`{BELOW}:{text}` is not understood; give a number, as in `below:1e-8`.")
    return limit
