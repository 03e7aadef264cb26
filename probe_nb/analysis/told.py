"""A birth in words: the sentence, what speaks for it, and what to look at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from probe_nb.analysis.advice import advice_for
from probe_nb.analysis.alarms import HEADROOM, LIMITS
from probe_nb.analysis.births import Birth
from probe_nb.analysis.narrow import passed
from probe_nb.analysis.past import Past
from probe_nb.analysis.uncounted import is_uncounted, judged
from probe_nb.analysis.words import module, number, plural, tensor
from probe_nb.store.columns import Columns
from probe_nb.terms import COUNTS, STATISTICS, RunInfo, Site, shown

_COUNTED: Final = (("nan_count", "NaN"), ("posinf_count", "+Inf"), ("neginf_count", "-Inf"))
_LOOK: Final = {
    "after": "Look at the code of its forward that follows this child.",
    "before": "Look at the code of its forward that comes before this child.",
    "between": "Look at the code of its forward between the two.",
    "held": "Look at how it was made or loaded, and at the optimizer step before.",
    "fed": "Look at the batch of this step.",
    "loss": "Look at the loss, and at what else is computed from the output of the model.",
    "weight": "Look at what its forward does with this parameter, at the largest values that it "
    "was fed with, and at hooks on its gradient (`register_hook`).",
    "handed": "Look at what changes gradients after the backward: clipping, unscaling, your own "
    "code.",
    "stepped": "Look at the learning rate, at `eps`, and at the state of this parameter.",
}
_LOOK_BACK: Final = {**_LOOK, "after": _LOOK["before"], "before": _LOOK["after"], "own": ""}
_POLES: Final = (
    "Usual causes are derivatives with a pole where the value is fine: sqrt or norm at 0, acos or "
    "asin at 1, log, division, or a `torch.where` whose other branch is not finite."
)
_WRITTEN: Final = (
    "No optimizer writes buffers: a forward in train mode does, and one with NaN in its input "
    "spoils them. Look also at how it was made or loaded."
)
_SAVED: Final = "Look at the line that made it, or save what went into it too."
_ASK: Final = "step=…, module=…"
_SHOWN: Final = 4


class Words:
    """What is said of one birth."""

    def __init__(self, columns: Columns, birth: Birth, info: RunInfo | None = None) -> None:
        """Look up the records that speak for it."""
        self._columns = columns
        self._birth = birth
        self._info = info
        self._past = Past(columns, birth)
        self._one = info is None or info.rank is not None or birth.rank < 0  # of its processes
        sites = columns.tables.sites.values
        self._several = len({site.model for site in sites if site.model}) > 1
        names = ("site", "numel", "dtype", "status", *STATISTICS, *COUNTS)
        self._rows = sorted({birth.row, *birth.proof})
        self._found = judged(columns.take(self._rows, names))

    # -- what happened ----------------------------------------------------------------------------

    def sentence(self) -> str:
        """Say what appeared, when and where."""
        birth = self._birth
        seen = "was first seen" if self._past.unseen else "first appeared"
        begin = f"{birth.kind} {seen} at step {birth.step}"
        begin += "" if self._one else f" on rank {birth.rank}"
        if birth.between is None:
            return f"{begin} in {self._place(birth.site)}"
        return f"{begin} {self._between(*birth.between)}"

    def _between(self, finite: str, not_finite: str) -> str:
        birth = self._birth
        first, second, around = (shown(p) for p in (finite, not_finite, birth.at.module))
        of = f"in the {'backward' if birth.phase == 'backward' else 'forward'} of {around}"
        if birth.phase == "backward":
            return self._between_backward(first, second, of)
        if birth.why == "after":
            return f"after {first} (output {self._state(finite, 'output')}): {of}"
        if birth.why == "before":
            state = self._state(finite, "input")
            return f"before {second} (its input was not finite): {of}, whose input was {state}"
        state = self._state(finite, "output")
        return f"between {first} (output {state}) and {second} (its input was not): {of}"

    def _between_backward(self, first: str, second: str, of: str) -> str:
        if self._birth.why == "after":
            return f"after {first} (its gradient was finite): {of}"
        if self._birth.why == "before":
            return f"{of}, before {second} was reached (what arrived there was not finite)"
        return (
            f"between {first} (its gradient was finite) and {second} (the gradient that arrived "
            f"there was not): {of}"
        )

    def _place(self, site: Site) -> str:
        return f"{module(site, several=self._several)} ({tensor(site)})"

    # -- what speaks for it -----------------------------------------------------------------------

    def detail(self) -> str:
        """Say how much is not finite, what it was made from, and what could not be seen."""
        birth = self._birth
        parts = [self._counted(), *self._why()]
        if birth.between is not None and self._is_selected():
            parts.append("modules that `select` leaves out may lie in between")
        if birth.at.type:
            name = module(replace(birth.at, api=""), several=self._several)
            parts.append(f"module {name} is of class {birth.at.type}")
        return "; ".join(part for part in parts if part)

    def _why(self) -> list[str]:
        why = self._before if self._birth.why == "between" else getattr(self, f"_{self._birth.why}")
        said: list[str] = why()
        return said

    def _counted(self) -> str:
        where = self._rows.index(self._birth.row)
        found = [(int(self._found[name][where]), word) for name, word in _COUNTED]
        elements = plural(int(self._found["numel"][where]), "element")
        if is_uncounted(self._found["status"][where]):
            kinds = " and ".join(word for count, word in found if count > 0)
            return f"{kinds} among {elements}, how many is not in the dump"
        parts = [f"{count:,} {word}" for count, word in found if count > 0]
        return f"{' and '.join(parts)} of {elements}"

    def _own(self) -> list[str]:
        if self._birth.phase == "backward":
            state = self._state(self._birth.site.module, "grad_output")
            return [f"the gradient that arrived was {state}{_so(state)}"]
        state = self._state(self._birth.site.module, "input")
        said = [f"the inputs of this call were {state}{_so(state)}"]
        return said + self._turned(state)

    def _turned(self, state: str) -> list[str]:
        if self._birth.kind == "-Inf":
            return self._harmed()
        if "-Inf" not in state:
            return []
        mask = "-Inf in an input is how masks are written"
        if (came := self._birth.came) is None:
            return [mask]
        first, second = (shown(path) for path in came)
        return [f"{mask}; this one arose in the code between {first} and {second}"]

    def _harmed(self) -> list[str]:
        if self._birth.harm is None:
            return []
        site, kind = self._birth.harm
        said = "-Inf is often there on purpose, but"
        if kind == "-Inf":
            return [f"{said} this one reached a loss: {self._place(site)}"]
        return [f"{said} worse followed from this one: {kind} in {self._place(site)}"]

    def _after(self) -> list[str]:
        if self._birth.phase == "backward":
            return self._before()
        return [f"its inputs were {self._state(self._birth.at.module, 'input')}", *self._turned("")]

    def _before(self) -> list[str]:
        if self._birth.phase == "backward":
            return [f"no module computes there: it is the parent's own code, {self._mirrored()}"]
        return ["it arose in the code between modules"]

    def _mirrored(self) -> str:
        """Say where that code stands in the forward, which runs the other way."""
        assert self._birth.between is not None  # noqa: S101 - it is code between modules
        first, second = (shown(path) for path in self._birth.between)
        where = {"before": f"after {second}", "after": f"before {first}"}
        return f"in its forward {where.get(self._birth.why, f'between {second} and {first}')}"

    def _loss(self) -> list[str]:
        state = self._state(self._birth.at.module, "output")
        return [f"the output was {state}: it came from the loss, or from what else used the output"]

    def _fed(self) -> list[str]:
        if not self._is_inner():
            return ["the model was fed with it"]
        said = ["it came from code around the watched modules"]
        return said + ["modules that `select` leaves out may have made it"] * self._is_selected()

    def _is_inner(self) -> bool:
        site = self._birth.site
        return bool(site.module or site.api)

    def _is_selected(self) -> bool:
        return bool(self._info is not None and self._info.config.get("select"))

    def _weight(self) -> list[str]:
        if self._birth.site.role == "value":
            return ["it came so with the backward"]
        if self._birth.site.leaf.endswith(".grad"):
            return ["what this backward added to it was finite, or not recorded"]
        state = self._state(self._birth.site.module, "grad_output")
        return [f"the gradient that arrived at its module was {state}{_so(state)}"]

    def _handed(self) -> list[str]:
        state = self._state(self._birth.site.module, "param_grad", "backward")
        return [f"the gradient of the backward was {state}: something changed it before the step"]

    def _stepped(self) -> list[str]:
        path = self._birth.site.module
        grad = self._state(path, "param_grad", "optimizer")
        before = self._state(path, "param", "forward")
        said = [f"its gradient was {grad}", f"the parameter before the step was {before}"]
        return said + [f"{leaf} of the optimizer was not finite" for leaf in self._past.settings()]

    def _held(self) -> list[str]:
        """Say when a parameter or buffer was last finite."""
        if self._birth.site.role == "value":
            return ["it was there when this was saved: what made it was not recorded"]
        step, past = self._birth.step, self._past
        what = "buffer" if self._birth.site.role == "buffer" else "parameter"
        if past.last < 0:
            first = 0 if self._info is None else self._info.config.get("first_step", 0)
            since = "or since an optimizer step that was not recorded" * (step > first)
            said = f"the {what} held it when it was first read: it was made or loaded so"
            return [f"{said}, {since}" if since else said]
        since = f"the {what} held it before the forward, and was finite at step {past.last}"
        if past.unseen:
            were = (
                f"{plural(past.unseen, 'step')} in between {'was' if past.unseen == 1 else 'were'}"
            )
            return [f"{since}: it was written since, and {were} not recorded"]
        if what == "buffer":
            return [f"{since}: it was written since"]
        if not past.was_stepped():
            return [f"{since}: look at the last optimizer step"]
        return [f"{since}, also after its optimizer step: something else wrote to it"]

    def _state(self, path: str, role: str, direction: str | None = None) -> str:
        """Say of the proof of one module in one role whether it was finite."""
        mine = [
            place
            for place, code in enumerate(self._found["site"].tolist())
            if self._rows[place] != self._birth.row and self._is(code, path, role, direction)
        ]
        if not mine:
            return "not recorded"
        counts = {name: self._found[name][mine] for name, _ in _COUNTED}
        bad = [word for name, word in _COUNTED if (counts[name] > 0).any()]
        if bad:
            return f"not all finite ({' and '.join(bad)} in it)"
        return "not all measured" if (counts["nan_count"] < 0).any() else "finite"

    def _is(self, code: int, path: str, role: str, direction: str | None) -> bool:
        site = self._columns.tables.sites.values[code]
        return (site.module, site.role) == (path, role) and direction in (None, site.direction)

    # -- the values -------------------------------------------------------------------------------

    def values(self) -> list[str]:
        """Write down what the records that led there held: their range and dtype."""
        places = [p for p, row in enumerate(self._rows) if row != self._birth.row]
        said = [self._value(place) for place in places[:_SHOWN]]
        more = len(places) - _SHOWN
        return said + ([f"and {plural(more, 'more record')}: see `.rows`"] if more > 0 else [])

    def _value(self, place: int) -> str:
        found: Any = {name: self._found[name][place] for name in self._found}
        tables = self._columns.tables
        name = self._place(tables.sites.values[found["site"]])
        if np.isnan(found["min"]):
            none = "NaN in it" if is_uncounted(found["status"]) else "no finite numbers"
            return f"{name}: {none}"
        if is_uncounted(found["status"]):
            low, high = number(found["min"]), number(found["max"])
            return f"{name}: {low} to {high}, {tables.dtypes.values[found['dtype']]}"
        low, high, peak = (number(found[stat]) for stat in ("min", "max", "absmax"))
        return f"{name}: {low} to {high}, |max| {peak}, {tables.dtypes.values[found['dtype']]}"

    def advice(self) -> str:
        """Say what to look at."""
        birth, why = self._birth, self._birth.why
        if birth.phase == "backward":
            return f"{_LOOK_BACK[why]} {_POLES}".strip()
        if why == "own":
            asked = f'step={birth.step}, module="{birth.at.module}"'
            asked += f', api="{birth.at.api}"' if birth.at.api else ""
            asked += "" if self._one else f", rank={birth.rank}"
            general = advice_for("non_finite", birth.at.type).replace(_ASK, asked)
            return self._near_the_end() or f"{self._narrow()} {general}".strip()
        return self._special() or f"{_LOOK[why]} {self._narrow()}".strip()

    def _special(self) -> str:
        """Say what to look at where more is known than what kind of birth it is."""
        birth, why = self._birth, self._birth.why
        if self._past.unseen:
            return "Record the steps in between: `steps=` left them out, and one of them wrote it."
        if why == "held" and birth.site.role == "buffer":
            return _WRITTEN
        if why == "held" and birth.site.role == "value":
            return _SAVED
        if why == "fed" and self._is_inner():
            return "Look at what runs before this module, or watch the whole model."
        if why == "stepped" and (leaves := self._past.settings()):
            return f"Look at what sets {' and '.join(leaves)}: it was not finite."
        return ""

    def _narrow(self) -> str:
        """Say that the end of a dtype may have been passed, and how to see where."""
        birth = self._birth
        if birth.phase != "forward" or birth.kind == "-Inf":
            return ""
        own = self._rows.index(birth.row)
        dtypes = [self._columns.tables.dtypes.values[code] for code in self._found["dtype"]]
        said = passed(dtypes, np.nanmax([0.0, *np.delete(self._found["absmax"], own)]))
        level = "" if self._info is None else self._info.config.get("level", "")
        if level != "module" or not (said or birth.between):
            return said
        return f'{said} `level="mix"` names the function.'.strip()

    def _near_the_end(self) -> str:
        """Say that what the call was fed was close to the end of its range already."""
        dtypes, worst = self._columns.tables.dtypes.values, 0.0
        for place in range(len(self._rows)):
            dtype = dtypes[self._found["dtype"][place]]
            inputs = self._is(self._found["site"][place], self._birth.at.module, "input", "forward")
            if inputs and dtype in LIMITS and self._birth.kind != "-Inf":
                worst = max(worst, self._found["absmax"][place] / LIMITS[dtype][2])
        if not worst >= HEADROOM:
            return ""
        return (
            f"Its input was at {worst:.0%} of the range of its dtype: look at what made that so "
            "large, or keep this part in float32 or bfloat16."
        )


def _so(state: str) -> str:
    return ", so it was born here" if state == "finite" else ""
