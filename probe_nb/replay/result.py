"""What a replay found, in words and as a frame."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import pandas as pd

from probe_nb.analysis.words import number
from probe_nb.errors import SelectionError
from probe_nb.terms import printable, shown

WITHIN: Final = "within"
ABOVE: Final = "above"
NOT_JUDGED: Final = "not_judged"

COLUMNS: Final = (
    *("run", "role", "leaf", "verdict", "error", "bound", "ratio", "reason", "worst"),
    *("worst_bound", "mismatched", "amplification", "device", "shape", "dtype"),
)
"""The columns of `Replay.df`, in order."""

_FAR: Final = 2.0
"""From here on one run is said to be further from the truth than another."""

_TENS: Final = 10.0


@dataclass(frozen=True, repr=False)
class Replay:
    """A call that was run again in float64 on the CPU, and how far each run was from that.

    Attributes:
        model, module, type, api: What was replayed.
        step, micro_step, call: Which call of it, in each run.
        verdict: `within` if rounding explains all of every run's error; `above` if it does not;
            `not_judged` where there is no truth to go by, and `notices` say why.
        sentence: What came out.
        amplification: By how much the call enlarges a relative error of what it is given; None
            where that is not known.
        notices: What has to be known about how it was done.
        df: One row per run and tensor that was compared.
        truths: What float64 gave, by run, role and leaf; `truth()` gives one.
    """

    model: str
    module: str
    type: str
    api: str
    step: int
    micro_step: int
    call: int
    verdict: str
    sentence: str
    amplification: float | None
    notices: tuple[str, ...]
    df: pd.DataFrame
    truths: dict[tuple[str, str, str], Any]

    @property
    def name(self) -> str:
        """The path of the module, or the name of the function."""
        return self.api or shown(self.module)

    def truth(self, leaf: str | None = None, role: str = "output", run: str | None = None) -> Any:
        """Return what float64 on the CPU gave, as a tensor.

        Args:
            leaf: Its leaf path; None where there is one.
            role: `"output"` or `"grad_input"`.
            run: `"baseline"` or `"candidate"`, each of which has its own inputs; None for the
                first.

        Raises:
            SelectionError: There is none, or several.
        """
        run = run or next((key[0] for key in self.truths), "")
        found = {key[2]: each for key, each in self.truths.items() if key[:2] == (run, role)}
        if leaf is None and len(found) == 1:
            return next(iter(found.values())).clone()
        if leaf not in found:
            known = ", ".join(f"`{each}`" for each in found) or "none"
            raise SelectionError(f"There is no one {role} `{leaf}`; give `leaf=`, of {known}.")
        return found[leaf].clone()

    def __repr__(self) -> str:
        """Say what came out, in a few lines."""
        from probe_nb.view import replay

        return replay.text(self)

    def _repr_html_(self) -> str:
        """Show the same, and the tensors as a table."""
        from probe_nb.view import replay

        return replay.html(self)


@dataclass
class Side:
    """One run's part of a replay.

    Attributes:
        name: `run`, `baseline` or `candidate`.
        rows: One dict per tensor.
        truths: What float64 gave, by role and leaf.
        why_not: Why there is no verdict, "" if there is one.
        notices: What has to be known.
    """

    name: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    truths: dict[tuple[str, str], Any] = field(default_factory=dict)
    why_not: str = ""
    notices: list[str] = field(default_factory=list)

    @property
    def worst(self) -> dict[str, Any] | None:
        """The row whose error is the most times what rounding explains, of the output first."""
        judged = [row for row in self.rows if row["verdict"] != NOT_JUDGED]
        return max(judged, key=_rank, default=None)


def _rank(row: dict[str, Any]) -> tuple[bool, bool, float]:
    return row["verdict"] == ABOVE, row["role"] == "output", row["ratio"]


def told(sides: list[Side], about: dict[str, Any]) -> Replay:
    """Put together what was found of each run."""
    frame = pd.DataFrame([row for side in sides for row in side.rows], columns=list(COLUMNS))
    for name in ("error", "bound", "ratio", "worst", "worst_bound", "amplification"):
        frame[name] = frame[name].astype("Float64")
    frame["mismatched"] = frame["mismatched"].astype("Int64")
    amplified = frame.loc[frame["role"] == "output", "amplification"].dropna()
    verdicts = set(frame["verdict"])
    unknown = any(side.why_not for side in sides) or not verdicts - {NOT_JUDGED}
    verdict = ABOVE if ABOVE in verdicts else NOT_JUDGED if unknown else WITHIN
    name = about["api"] or shown(about["module"])
    common = [each for each in sides[0].notices if all(each in s.notices for s in sides)]
    own = [f"{s.name}: {each}" for s in sides for each in s.notices if each not in common]
    return Replay(
        **about,
        verdict=verdict,
        sentence=printable(sentence(sides, name)),
        amplification=float(amplified.max()) if len(amplified) else None,
        notices=tuple(map(printable, [*common, *own])),
        df=frame,
        truths={(s.name, *key): each for s in sides for key, each in s.truths.items()},
    )


def sentence(sides: list[Side], name: str) -> str:
    """Say in one sentence what came out."""
    silent = [side for side in sides if side.why_not]
    if silent:
        which = "" if len(sides) == 1 else f"of the {silent[0].name} "
        return f"no verdict {which}at {name}: {silent[0].why_not}"
    if any(side.worst is None for side in sides):
        return f"no verdict at {name}: nothing that it gave was kept and can be judged"
    if len(sides) == 1:
        return _of_one(sides[0], name)
    return _of_two(sides[0], sides[1], name)


def _of_one(side: Side, name: str) -> str:
    row = side.worst or {}
    which = "result" if row["role"] == "output" else "gradient of the input"
    on = "" if pd.isna(row["device"]) else f" on {row['device']}"
    found = "is within rounding" if row["verdict"] == WITHIN else "is not explained by rounding"
    return f"the {which} of {name}{on} {found}: {_why(row)}"


def _of_two(one: Side, other: Side, name: str) -> str:
    first, second = _matched(one, other)
    wrong = [s.name for s, row in ((one, first), (other, second)) if row["verdict"] == ABOVE]
    near, far = (one, other) if second["error"] >= first["error"] else (other, one)
    small, large = sorted((first["error"], second["error"]))
    many = large / small if small else float("inf")
    if not wrong and large == 0:
        return f"both are exact at {name}"
    if many < _FAR:
        apart = f"both are about equally far from the truth at {name}"
    elif small == 0:
        apart = f"the {near.name} is exact at {name} and the {far.name} is not"
    else:
        times = f"{float(f'{many:.2g}'):,g}" if many < _TENS else f"{float(f'{many:.2g}'):,.0f}"
        apart = (
            f"the {far.name} is {times} times further from the truth than the {near.name} at {name}"
        )
    errors = f"{number(large)} against {number(small)}"
    if not wrong:
        return f"{apart}: {errors}, and rounding explains both"
    whose = f"that of the {wrong[0]}" if len(wrong) == 1 else "either"
    return f"{apart}: {errors}, and rounding does not explain {whose}"


def _matched(one: Side, other: Side) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the worst row of both, and what the other run has at the same place."""
    rows = [row for side in (one, other) for row in [side.worst] if row is not None]
    worst = max(rows, key=_rank)
    place = worst["role"], worst["leaf"]
    found = [
        next((row for row in side.rows if (row["role"], row["leaf"]) == place), side.worst)
        for side in (one, other)
    ]
    return found[0] or {}, found[1] or {}


def _why(row: dict[str, Any]) -> str:
    if row["reason"]:
        return str(row["reason"])
    if row["error"] == 0:
        return "it is exact"
    return f"off by {number(row['error'])}, of which rounding explains {number(row['bound'])}"
