"""The proofs that many cases share: each returns a function of what plain hooks saw."""

from __future__ import annotations

import math
from typing import Final

from benchmarks.faults.case import Proof
from benchmarks.faults.trace import Seen, Trace

_BACKWARD: Final = {"grad_output", "grad_input", "param_grad"}


def born(module: str) -> Proof:
    """Prove that the first NaN or +Inf of all came out of `module`, or of its own code."""

    def holds(trace: Trace) -> bool:
        first = trace.first_bad()
        if first is None:
            return False
        inside = first.role == "input" and first.module in trace.parents[module]
        return inside or (first.role, first.module) == ("output", module)

    return holds


def born_backward(module: str) -> Proof:
    """Prove that all was finite until the backward of `module`, or of its own code.

    Gradients that reach the module from below are finite, and the first that is not is one that it
    hands on: of its input, of its parameters, or of the output of a module inside it.
    """

    def holds(trace: Trace) -> bool:
        first = next((s for s in trace.seen if s.bad or (s.neginf and s.role in _BACKWARD)), None)
        if first is None or first.role not in _BACKWARD:
            return False
        same = [s for s in trace.seen if s.step == first.step]
        fed = [s for s in same if s.role == "grad_output" and s.module == module]
        handed = [s for s in same if _handed_on(s, module, trace.parents[module])]
        return bool(fed) and not _any_bad(fed) and _any_bad(handed)

    return holds


def _handed_on(seen: Seen, module: str, inside: list[str]) -> bool:
    if seen.role in {"grad_input", "param_grad"}:
        return seen.module == module
    return seen.role == "grad_output" and seen.module in inside


def _any_bad(seen: list[Seen]) -> bool:
    return any(s.bad or s.neginf for s in seen)


def first_is(role: str, module: str, leaf: str | None = None) -> Proof:
    """Prove that the first NaN or +Inf was seen exactly there."""

    def holds(trace: Trace) -> bool:
        first = trace.first_bad()
        found = first is not None and (first.role, first.module) == (role, module)
        return found and leaf in {None, first.leaf if first else None}

    return holds


def never_moves(*parameters: str) -> Proof:
    """Prove that these parameters, and no others, are the same before and after every step."""

    def holds(trace: Trace) -> bool:
        return {name for name, steps in trace.moved.items() if not any(steps)} == set(parameters)

    return holds


def no_gradient(*modules: str) -> Proof:
    """Prove that no parameter of these modules ever gets a gradient, and every other one does."""

    def holds(trace: Trace) -> bool:
        fed = {s.module for s in trace.rows("param_grad")}
        own = {s.module for s in trace.rows("param")}
        return own - fed == set(modules)

    return holds


def only_zeros(module: str, share: float = 1.0, *, last: int = 5) -> Proof:
    """Prove that this module's last outputs have at least this share of zeros."""

    def holds(trace: Trace) -> bool:
        found = trace.rows("output", module)[-last:]
        return bool(found) and all(s.zeros >= share for s in found)

    return holds


def finite() -> Proof:
    """Prove that there is no NaN and no Inf at all."""
    return lambda trace: trace.first_bad() is None


def moves_faster(prefix: str, times: float) -> Proof:
    """Prove that what begins so moves, in the median step, so many times faster than all else."""

    def holds(trace: Trace) -> bool:
        own = [_median(v) for k, v in trace.moved.items() if k.startswith(prefix)]
        rest = [_median(v) for k, v in trace.moved.items() if not k.startswith(prefix)]
        return _median(own) > times * _median(rest)

    return holds


def larger(module: str, than: str, times: float, *, role: str = "output") -> Proof:
    """Prove that what this module returns is so many times larger than what another does."""

    def holds(trace: Trace) -> bool:
        one, other = (_median(trace.absmax(role, name)) for name in (module, than))
        return one > times * other

    return holds


def every(*proofs: Proof) -> Proof:
    """Prove all of them."""
    return lambda trace: all(proof(trace) for proof in proofs)


def _median(values: list[float]) -> float:
    finite_ones = sorted(v for v in values if not math.isnan(v))
    return finite_ones[len(finite_ones) // 2] if finite_ones else math.nan
