"""The other machine for random programs: values alone, without a write and without a view.

It keeps every argument and every result of every call as a tensor of its own, so that
`torch.autograd.grad` says what each call was sent and what it sent back.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.museum.machines import OPS, PACKS, Program, body, paths


class Memory:
    """A storage: its value and how often it was written."""

    def __init__(self, value):
        self.value, self.version = value, 0


class Thing:
    """A tensor object: all of a storage, or a view of some rows of it.

    A view that nobody wrote under is read through the value it had; after a write it is read
    from its storage anew, as autograd does.
    """

    def __init__(self, memory: Memory, value: Tensor, rows: slice | None):
        self.memory, self.rows = memory, rows
        self.known, self.used = (memory.version, value), True

    @property
    def fresh(self):
        """Whether autograd has a node for what the tensor holds now."""
        return self.rows is None or (self.used and self.known[0] == self.memory.version)

    def peek(self):
        """Return the value without using it."""
        if self.rows is None:
            return self.memory.value
        if self.known[0] != self.memory.version:
            self.known, self.used = (self.memory.version, self.memory.value[self.rows]), False
        return self.known[1]

    def value(self):
        """Return the value for an operation that autograd takes note of."""
        value = self.peek()
        self.used |= torch.is_grad_enabled()
        return value

    def old(self):
        """Return the value as a write sees it: autograd has it read the whole storage."""
        return self.memory.value if self.rows is None else self.memory.value[self.rows]

    def store(self, new):
        base = self.memory.value
        if self.rows is None:
            self.memory.value = new
        else:
            self.memory.value = base.slice_scatter(new, 0, self.rows.start, self.rows.stop)
        self.memory.version += 1
        self.peek()
        self.used = True
        return self


@dataclass
class Called:
    """One call in the pure run: arguments and results as tensors of their own."""

    kind: str
    number: int
    inputs: dict[str, tuple[list[Tensor], str]]
    """Leaf -> the tensors its gradient is the sum over, and how its row may come out."""
    outputs: dict[str, tuple[Tensor, str]]


class Borrowed:
    """An argument during a call: reads and writes of the call go through copies of its own."""

    def __init__(self, thing: Thing, value: Tensor, *, alone: bool):
        self.thing, self.version = thing, thing.memory.version
        self.known, self.base = thing.known, thing.memory.value
        copy = value.clone()
        self.copies = [copy]
        if thing.rows is None:
            thing.memory.value = copy
        else:
            thing.known = (self.version, copy)
        if thing.rows is not None and alone:  # it may be written
            old = thing.old().clone()
            self.copies.append(old)
            rows = thing.rows
            thing.memory.value = self.base.slice_scatter(old, 0, rows.start, rows.stop)

    @property
    def unchanged(self):
        return self.thing.memory.version == self.version

    def give_back(self):
        if self.unchanged:
            self.thing.memory.value, self.thing.known = self.base, self.known


class Pure:
    """Computes with values alone; remembers every call."""

    def __init__(self, model: Program, x: Tensor, z: Tensor):
        self.parts = model.parts
        self.numbers: Counter[str] = Counter()
        self.calls: list[Called] = []
        self.x = self.new(x)
        self.results = body(self, model.todo.ops, [self.x, self.new(z.clone())])

    @staticmethod
    def is_slot(thing):
        return isinstance(thing, Thing)

    @staticmethod
    def rows(thing):
        return len(thing.peek())

    @staticmethod
    def read(thing):
        return thing.value()

    @staticmethod
    def look(thing):
        return thing.peek()

    @staticmethod
    def new(value):
        return Thing(Memory(value), value, None)

    @staticmethod
    def veiled(value):
        """A result that is a view of what nobody else can reach."""
        return Thing(Memory(value), value[:], slice(0, len(value)))

    @staticmethod
    def view(thing, low, high):
        start = 0 if thing.rows is None else thing.rows.start
        return Thing(thing.memory, thing.value()[low:high], slice(start + low, start + high))

    def cut(self, thing, at):
        return self.view(thing, 0, at), self.view(thing, at, self.rows(thing))

    def alias(self, thing):
        return self.view(thing, 0, self.rows(thing))

    @staticmethod
    def write(thing, how, other=None):
        old = thing.old()
        new = {
            "scale_": lambda: old * 0.5,
            "addto": lambda: old + 0.5 * other,
            "iadd": lambda: old + other,
            "set": lambda: old * 0 + other,
            "dirty": lambda: old * 2,
            "relu_": old.relu,
        }[how]()
        return thing.store(new)

    def call(self, kind, args, kwargs):
        number, self.numbers[kind] = self.numbers[kind], self.numbers[kind] + 1
        things: dict[Thing, list[str]] = {}
        for leaf, each in (*enumerate(args), *((f"kwargs.{k}", v) for k, v in kwargs.items())):
            if isinstance(each, Thing):
                things.setdefault(each, []).append(str(leaf))
        stale = {thing: not thing.fresh for thing in things}
        values = [thing.peek() for thing in things]
        pairs = zip(things, values, strict=True)
        users = Counter(thing.memory for thing in things)
        borrowed = {t: Borrowed(t, value, alone=users[t.memory] == 1) for t, value in pairs}
        result = self._result(kind, args, kwargs)
        outputs = {}
        for leaf, thing in paths(result):
            if isinstance(thing, Thing):
                through = thing in borrowed and borrowed[thing].unchanged
                verdict = "exact" if thing.fresh else "stale"
                verdict = self._handed_on(thing) if through else verdict
                outputs[leaf] = (thing.peek(), verdict)
        given = {thing for _, thing in paths(result)}
        inputs = {}
        for thing, leaves in things.items():
            each = borrowed[thing]
            verdict = "stale" if stale[thing] and not each.unchanged else "exact"
            verdict = "passthrough" if thing in given and each.unchanged else verdict
            inputs["+".join(leaves)] = (each.copies, verdict)
        self.calls.append(Called(kind, number, inputs, outputs))
        for each in reversed(borrowed.values()):
            each.give_back()
        return result

    def _handed_on(self, thing):
        """A leaf that is handed on again has a row for the last of these calls only."""
        return "passthrough or none" if thing is self.x else "passthrough"

    def _result(self, kind, args, kwargs):
        if kind == "block":
            op, *given = args
            with contextlib.nullcontext() if op.grad else torch.no_grad():
                return PACKS[op.form](*body(self, op.body, given))
        if kind in OPS:
            return OPS[kind](self, *args, **kwargs)
        if kind == "identity":
            return args[0]
        if kind == "relu_":
            return self.write(args[0], "relu_")
        found = self.parts[kind](self.read(args[0]))
        if kind == "lstm":
            out, (h, c) = found
            return self.veiled(out), (self.veiled(h), self.veiled(c))
        return self.new(found)
