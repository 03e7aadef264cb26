"""Rules on the numbers as they are written, and what they found.

`AnomalyTurbulence`: |x| exceeds (1 + threshold) times the running mean of |x| (weight 0.99 for what
was) of `mean` and `norm`. A NaN does not enter that mean. `AnomalyNan`: x is NaN, or |x| exceeds
the threshold.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from probe_nb.errors import ConfigError, notify
from probe_nb.exports.layout import Row

_NAMES: Final = ("AnomalyTurbulence", "AnomalyNan")
_PAST: Final = 0.99
_SMOOTH: Final = ("mean", "norm")
_NO_NUMBERS: Final = ("shape", "dtype")
_TAGS: Final = {
    "grad_unreduced": "acc_grad",
    "grad_reduced": "post_grad",
    "other": "mg_direction",
}
_MOST: Final = 10_000
"""Anomalies that are kept in memory: half a megabyte per thousand."""
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rule:
    """One rule, and the threshold that it has."""

    name: str
    threshold: float | None

    def holds(self, now: float, past: float) -> bool:
        """Tell whether a number is one to be told of."""
        if self.name == "AnomalyNan":
            above = self.threshold is not None and abs(now) > self.threshold
            return math.isnan(now) or above
        return abs(now) > past * (1 + (self.threshold or 0.0))


@dataclass(frozen=True)
class Anomaly:
    """One number that a rule holds for."""

    rank: int
    step: int
    micro_step: int
    pp_stage: int
    vpp_stage: int
    call_id: int
    tag_name: str
    message: str
    group_mates: list[int]

    @property
    def key(self) -> str:
        """Its name in the file."""
        return f"{self.tag_name}_step_{self.step}_call_{self.call_id}"


def rules_in(alert: Any) -> tuple[tuple[Rule, ...], bool]:
    """Return the rules of a configuration, and whether what they find is written.

    Raises:
        ConfigError: It is no object of `rules` and `dump`, or a rule is not known.
    """
    if not isinstance(alert, Mapping) or not isinstance(alert.get("rules") or [], list):
        raise ConfigError(f"`alert` is {alert!r}; give an object with `rules`, a list.")
    dump = alert.get("dump", False)
    if not isinstance(dump, bool):
        raise ConfigError(f"`dump` of `alert` is {dump!r}; give true or false.")
    return tuple(_rule(each) for each in alert.get("rules") or []), dump


def _rule(spec: Any) -> Rule:
    name = spec.get("rule_name") if isinstance(spec, Mapping) else None
    if name not in _NAMES:
        raise ConfigError(f"{spec!r} is no rule; `rule_name` is one of {', '.join(_NAMES)}.")
    about = spec.get("args") or {}
    if not isinstance(about, Mapping):
        raise ConfigError(f"`args` of `{name}` is {about!r}; give an object with `threshold`.")
    threshold: Any = about.get("threshold")
    fits = isinstance(threshold, (int, float)) and not isinstance(threshold, bool)
    fits = fits and (isinstance(threshold, float) or abs(threshold) < sys.float_info.max)
    if (threshold is None and name == _NAMES[0]) or (threshold is not None and not fits):
        raise ConfigError(f"`threshold` of `{name}` is {threshold!r}; give a number from 0 on.")
    if threshold is not None and not threshold >= 0:
        raise ConfigError(f"`threshold` of `{name}` is {threshold!r}; give a number from 0 on.")
    return Rule(name, threshold)


class Watcher:
    """Looks at each number as it is written."""

    def __init__(self, rules: Sequence[Rule], rank: int, folder: Path | None) -> None:
        """Write what is found below `folder`, if there is one; an earlier file is replaced."""
        self.found: list[Anomaly] = []
        self._new: list[Anomaly] = []
        self._told, self._is_empty = False, True
        self._rules, self._rank = rules, rank
        self._past: dict[tuple[str, str], float] = {}
        self._file = None if folder is None else folder / f"rank{rank}" / "anomaly.json"
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text("{}", encoding="utf-8")

    def look(
        self, tables: Mapping[str, Iterable[Row]], columns: Mapping[str, Sequence[str]]
    ) -> None:
        """Look at the rows of one step."""
        if not self._rules:
            return
        call_id = 0
        for table, rows in tables.items():
            for row in rows:
                for op, value in zip(columns[table], row.values, strict=True):
                    self._one(table, row, op, value, call_id)
                call_id += 1
        new, self._new = self._new, []
        room = _MOST - len(self.found)
        self.found += new[:room]
        if len(new) > room >= 0 and not self._told:
            self._told = True
            notify(
                f"probe_nb: more than {_MOST:,} anomalies: `monitor.anomalies` has the first of "
                "them. Give the rules a higher threshold."
            )
        if self._file is not None and new:
            self._append(self._file, {each.key: asdict(each) for each in new})

    def _one(self, table: str, row: Row, op: str, value: Any, call_id: int) -> None:
        if op in _NO_NUMBERS or not isinstance(value, (int, float)):
            return
        key = (self._tag(table, row), op)
        past = self._past.get(key, abs(value))
        for rule in self._rules:
            if rule.name == _NAMES[0] and op not in _SMOOTH:
                continue
            if rule.holds(value, past):
                self._tell(rule, row, key, (value, past), call_id)
                break
        if math.isfinite(value):
            self._past[key] = _PAST * past + (1 - _PAST) * abs(value)

    def _tell(
        self, rule: Rule, row: Row, key: tuple[str, str], numbers: tuple[float, float], call_id: int
    ) -> None:
        message = (
            f"Rule {rule.name} reports anomaly signal in {key} at step {row.step}, "
            f"current value {numbers[0]}, history mean {numbers[1]}."
        )
        _log.info("%s", message)
        mates = [self._rank]
        self._new.append(
            Anomaly(
                self._rank,
                row.step,
                row.micro_step or 0,
                0,
                row.vpp_stage,
                call_id,
                key[0],
                message,
                mates,
            )
        )

    def _tag(self, table: str, row: Row) -> str:
        micro = "" if row.micro_step is None else f":{row.micro_step}"
        return f"{row.vpp_stage}:{row.name}{micro}/rank{self._rank}/{_TAGS.get(table, table)}"

    def _append(self, path: Path, found: Mapping[str, Any]) -> None:
        """Add to the object in the file: what is there already is not written again."""
        text = json.dumps(found, indent=1)
        end = b"{}" if self._is_empty else b"\n}"
        with path.open("r+b", buffering=0) as file:
            at = file.seek(-len(end), os.SEEK_END)
            left = memoryview((text if self._is_empty else f",{text[1:]}").encode())
            try:
                while left:
                    left = left[file.write(left) :]
            except BaseException:  # no room: it is as it was
                file.seek(at)
                file.write(end)
                file.truncate()
                raise
        self._is_empty = False
