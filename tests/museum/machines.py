"""What random programs do, and a model that runs them.

Each operation is written once, over a machine. `Real` is torch itself; the other machine, which
computes the same values without a write and without a view, is `pure.Pure`.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tests.museum.programs import KINDS, Op, Plan, chosen


class Point(NamedTuple):
    """A named tuple of results."""

    x: Any
    y: Any


@dataclass
class Packed:
    """A dataclass of results, one of them nested."""

    first: Any
    inside: Any
    text: str = "kept"


class ModelOutput(OrderedDict):
    """A mapping whose entries are attributes too."""

    def __getattr__(self, name):
        return self[name]


class Custom(torch.autograd.Function):
    """Two arguments, three results, one of them not differentiable, one gradient not given."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        sign = a > 0
        ctx.mark_non_differentiable(sign)
        return a * b, b * 2, sign

    @staticmethod
    def backward(ctx, g, _, __):
        _, b = ctx.saved_tensors
        return g * b, None


class Doubles(torch.autograd.Function):
    """Writes its argument."""

    @staticmethod
    def forward(ctx, a):
        ctx.set_materialize_grads(False)
        ctx.mark_dirty(a)
        return a.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return None if g is None else g * 2


class Hands(torch.autograd.Function):
    """Returns its argument, which autograd makes a view of it."""

    @staticmethod
    def forward(ctx, a):
        ctx.set_materialize_grads(False)
        return a

    @staticmethod
    def backward(ctx, g):
        return None if g is None else g * 1


def _stale(m, a):
    base = m.new(m.read(a) * 1.5)
    view = m.view(base, 0, max(m.rows(base) // 2, 1))
    return m.write(base, "scale_"), view


def _buffered(m, a):
    value = m.read(a)
    buffer = m.new(value.new_zeros(2 + len(value), 3))
    m.write(m.view(buffer, 1, 1 + len(value)), "set", value)
    return m.view(buffer, 1, 1 + len(value))


def _cut(m, a, *, tail):
    middle = m.rows(a) // 2
    return m.view(a, middle, m.rows(a)) if tail else m.view(a, 0, middle)


def _largest(m, a):
    value, place = m.read(a).max(0, keepdim=True)
    return m.new(value), place


def _custom(m, a, b):
    x, y, sign = Custom.apply(m.read(a), m.read(b))
    return m.new(x), m.new(y), sign


OPS = {
    "twice": lambda m, a: m.new(m.read(a) * 2 + m.read(a)),
    "mix": lambda m, a, b: m.new(m.read(a) + 3 * m.read(b)),
    "keywords": lambda m, *, a, b: m.new(m.read(a) - 2 * m.read(b)),
    "gate": lambda m, a, b: m.new(m.read(a) * m.read(b).sigmoid()),
    "addto": lambda m, a, b: m.write(a, "addto", m.read(b)),
    "passes": lambda m, a: (a, m.new(m.read(a) * 4)),
    "head": lambda m, a: _cut(m, a, tail=False),
    "tail": lambda m, a: _cut(m, a, tail=True),
    "cut": lambda m, a: m.cut(a, m.rows(a) // 2),
    "largest": _largest,
    "loose": lambda m, a: m.new(m.look(a).detach() * 2),
    "custom": _custom,
    "dirty": lambda m, a: m.write(a, "dirty"),
    "alias": lambda m, a: m.alias(a),
    "buffered": _buffered,
    "stale": _stale,
    "as_dict": lambda m, a: {"one": m.new(m.read(a) * 2), "more": [None, m.new(-m.read(a)), 3]},
    "as_data": lambda m, a: Packed(m.new(m.read(a) * 5), {"in": a, "out": m.new(m.read(a) / 2)}),
    "as_named": lambda m, a: Point(m.new(m.read(a) * 3), (m.new(m.read(a) * 6),)),
    "as_model": lambda m, a: ModelOutput(
        logits=m.new(m.read(a) * 7), hidden=_cut(m, a, tail=False)
    ),
    "scale_": lambda m, a: m.write(a, "scale_"),
    "iadd": lambda m, a, b: m.write(a, "iadd", m.read(b)),
    "add": lambda m, a, b: m.new(m.read(a) + m.read(b)),
    "slice": lambda m, a: _cut(m, a, tail=False),
}
PACKS = {
    "tuple": lambda a, b: (a, b),
    "list": lambda a, b: [a, [b]],
    "dict": lambda a, b: {"a": a, "b": {"c": b}},
    "data": Packed,
    "named": Point,
    "model": lambda a, b: ModelOutput(a=a, b=b),
}


def perform(m, op: Op, args) -> Any:
    """Run one operation of a body on a machine and return its result."""
    given = args[:2] if op.kind == "block" or KINDS[op.kind].two else args[:1]
    if op.kind == "block":
        return m.call(op.kind, (op, *given), {})
    if KINDS[op.kind].bare:
        return OPS[op.kind](m, *given)
    if op.kind == "keywords":
        return m.call(op.kind, (), dict(zip("ab", given, strict=True)))
    return m.call(op.kind, given, {})


def body(m, ops, slots: list) -> tuple:
    """Run a body on a machine; return what it gives out."""
    for op in ops:
        found = perform(m, op, (slots[op.i], slots[op.j]))
        slots += [each for _, each in paths(found) if m.is_slot(each)]
    return chosen(slots)


def paths(value: Any, path: str = ""):
    """Yield the leaves of nested results with their places."""
    members: Any = ()
    if isinstance(value, dict):
        members = value.items()
    elif isinstance(value, Point):
        members = zip("xy", value, strict=True)
    elif isinstance(value, (tuple, list)):
        members = enumerate(value)
    elif isinstance(value, Packed):
        members = (("first", value.first), ("inside", value.inside))
    elif isinstance(value, Tensor) or hasattr(value, "memory"):
        yield path or "0", value
    for name, each in members:
        yield from paths(each, f"{path}.{name}" if path else f"{name}")


class Real:
    """Torch itself: views are views, writes are writes, calls are calls of modules."""

    def __init__(self, parts: nn.ModuleDict) -> None:
        self.parts = parts

    @staticmethod
    def is_slot(t):
        return t.is_floating_point()

    @staticmethod
    def rows(t):
        return len(t)

    @staticmethod
    def read(t):
        return t

    @staticmethod
    def look(t):
        return t

    @staticmethod
    def new(t):
        return t

    @staticmethod
    def view(t, low, high):
        return t[low:high]

    @staticmethod
    def cut(t, at):
        return t.split([at, len(t) - at])

    @staticmethod
    def alias(t):
        return Hands.apply(t)

    @staticmethod
    def write(t, how, other=None):
        if how == "iadd":
            t += other
            return t
        return {
            "scale_": lambda: t.mul_(0.5),
            "addto": lambda: t.add_(other, alpha=0.5),
            "set": lambda: t.copy_(other),
            "dirty": lambda: Doubles.apply(t),
        }[how]()

    def call(self, kind, args, kwargs):
        return self.parts[kind](*args, **kwargs)


class Does(nn.Module):
    """A module that does one operation."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def forward(self, *args, **kwargs):
        return OPS[self.kind](Real, *args, **kwargs)


class Block(nn.Module):
    """Runs a body with the modules of the program, which it does not own."""

    def __init__(self, parts):
        super().__init__()
        self.real = (Real(parts),)

    def forward(self, op, a, b):
        with contextlib.nullcontext() if op.grad else torch.no_grad():
            return PACKS[op.form](*body(self.real[0], op.body, [a, b]))


class Program(nn.Module):
    """Runs a plan with real modules and real writes."""

    def __init__(self, todo: Plan):
        super().__init__()
        self.todo = todo
        does = {k: Does(k) for k, kind in KINDS.items() if k in OPS and not kind.bare}
        torchs = {
            "linear": nn.Linear(3, 3),
            "frozen": nn.Linear(3, 3).requires_grad_(requires_grad=False),
            "tanh": nn.Tanh(),
            "relu_": nn.ReLU(inplace=True),
            "identity": nn.Identity(),
            "lstm": nn.LSTM(3, 3),
        }
        self.parts = nn.ModuleDict(does | torchs)
        self.parts["block"] = Block(self.parts)
        self.double()

    def forward(self, x, *, z):
        return body(Real(self.parts), self.todo.ops, [x, z])
