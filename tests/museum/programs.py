"""Random programs over tensors, run twice: by modules that write in place, and by a pure twin.

A program is a list of operations on numbered slots. `plan` drops what autograd forbids. The
model runs the rest with modules, views and in-place writes. The twin computes the same values
without any of them, and keeps every argument and result of every call as a tensor of its own,
so that `torch.autograd.grad` says what each call was sent and what it sent back.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor, nn

Op = tuple[str, int, int]
SAVES_INPUT = {"linear", "gate"}
SAVES_RESULT = {"tanh", "relu_"}
WRITES = ("relu_", "addto", "scale_", "iadd")
TWO = {"mix", "addto", "gate", "iadd"}
BARE = ("scale_", "iadd")
"""Operations of the parent itself; the others are calls of its children."""
CHILDREN = ("linear", "tanh", "relu_", "twice", "mix", "addto", "identity", "head", "gate")
KINDS = (*CHILDREN, *BARE, "head", "head", *WRITES)
"""What to draw from; views and writes, where the traps are, more often."""


@dataclass(frozen=True)
class Slot:
    """Where a tensor lies: which storage, which rows of it, and which Python object it is."""

    base: int
    rows: int
    thing: int


@dataclass
class Plan:
    """The operations that are left, and what is known of the storages at the end."""

    ops: list[Op] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=lambda: [Slot(0, 4, 0)])
    frozen: set[int] = field(default_factory=lambda: {0})
    written: set[int] = field(default_factory=set)
    viewed: set[int] = field(default_factory=set)

    def shaky(self, slot: Slot) -> bool:
        """Tell whether a gradient may be absent: the storage has views and was written."""
        return slot.base in self.written and slot.base in self.viewed


def plan(wishes: list[Op]) -> Plan:
    """Keep the operations that autograd allows, and number the slots they make."""
    done = Plan()
    for kind, i, j in wishes:
        a, b = done.slots[i % len(done.slots)], done.slots[j % len(done.slots)]
        if not _allowed(done, kind, a, b):
            continue
        done.ops.append((kind, i % len(done.slots), j % len(done.slots)))
        _account(done, kind, a, b)
    return done


def _allowed(done: Plan, kind: str, a: Slot, b: Slot) -> bool:
    if kind in WRITES and a.base in done.frozen:
        return False
    if kind in TWO and a.rows != b.rows:
        return False
    if kind in ("addto", "iadd") and a.base == b.base:
        return False
    return kind != "head" or a.rows == 4


def _account(done: Plan, kind: str, a: Slot, b: Slot) -> None:
    number = len(done.slots)
    if kind in SAVES_INPUT:
        done.frozen |= {a.base} | ({b.base} if kind == "gate" else set())
    if kind in WRITES:
        done.written.add(a.base)
    if kind in WRITES or kind == "identity":
        made = a
    elif kind == "head":
        done.viewed.add(a.base)
        made = Slot(a.base, 2, number)
    else:
        made = Slot(number, a.rows, number)
    if kind in SAVES_RESULT:
        done.frozen.add(made.base)
    done.slots.append(made)


class Twice(nn.Module):
    """Uses its argument twice."""

    def forward(self, x):
        return x * 2 + x


class Mix(nn.Module):
    """Joins two arguments, which may be one."""

    def forward(self, a, b):
        return a + 3 * b


class AddTo(nn.Module):
    """Writes its second argument into the first."""

    def forward(self, a, b):
        return a.add_(b, alpha=0.5)


class Gate(nn.Module):
    """Multiplies, so that autograd keeps both arguments."""

    def forward(self, a, b):
        return a * b.sigmoid()


class Head(nn.Module):
    """Gives out a view."""

    def forward(self, x):
        return x[:2]


class Program(nn.Module):
    """Runs a plan with real modules and real writes."""

    def __init__(self, todo: Plan):
        super().__init__()
        self.todo = todo
        self.parts = nn.ModuleDict(
            {
                "linear": nn.Linear(3, 3),
                "tanh": nn.Tanh(),
                "relu_": nn.ReLU(inplace=True),
                "twice": Twice(),
                "mix": Mix(),
                "addto": AddTo(),
                "identity": nn.Identity(),
                "head": Head(),
                "gate": Gate(),
            }
        ).double()

    def forward(self, x):
        slots = [x]
        for kind, i, j in self.todo.ops:
            a, b = slots[i], slots[j]
            if kind == "scale_":
                slots.append(a.mul_(0.5))
            elif kind == "iadd":
                a += b
                slots.append(a)
            else:
                slots.append(self.parts[kind](*((a, b) if kind in TWO else (a,))))
        return slots[-1], slots[len(slots) // 2]


@dataclass
class Called:
    """One call of a child in the twin: arguments and results as tensors of their own."""

    kind: str
    number: int
    inputs: dict[str, tuple[Tensor, Slot]]
    output: Tensor
    slot: Slot


class Twin:
    """Computes the same values without a write and without a view."""

    def __init__(self, model: Program, x: Tensor):
        """Run the plan of the model."""
        self.todo = model.todo
        self.parts = model.parts
        self.bases = {0: x}
        self.direct: dict[int, tuple[Tensor, Tensor]] = {}
        self.slots = [Slot(0, 4, 0)]
        self.calls: list[Called] = []
        for op in self.todo.ops:
            self._run(*op)
        self.results = [self.slots[-1], self.slots[len(self.slots) // 2]]
        self.outputs = {s.thing: self.read(s) for s in self.results}

    def read(self, slot: Slot) -> Tensor:
        """Return a slot's value; a view that nobody wrote since is read through itself."""
        base = self.bases[slot.base]
        if slot.thing in self.direct and self.direct[slot.thing][0] is base:
            return self.direct[slot.thing][1]
        return base if slot.rows == base.shape[0] else base[: slot.rows]

    def _run(self, kind: str, i: int, j: int) -> None:
        a, b = self.slots[i], self.slots[j]
        slot = replace(self.todo.slots[len(self.slots)])
        self.slots.append(slot)
        if kind == "identity":
            return
        given = {a.thing: (self._old(a) if kind in WRITES else self.read(a)).clone()}
        if kind in TWO:
            given.setdefault(b.thing, self.read(b).clone())
        value = self._value(kind, given[a.thing], given[b.thing] if kind in TWO else None)
        self._store(kind, slot, value)
        if kind in BARE:
            return
        leaves = {"0": a} if kind not in TWO else {"0+1": a} if a == b else {"0": a, "1": b}
        number = sum(call.kind == kind for call in self.calls)
        inputs = {leaf: (given[s.thing], s) for leaf, s in leaves.items()}
        self.calls.append(Called(kind, number, inputs, self.read(slot), slot))

    def _old(self, slot: Slot) -> Tensor:
        """Return a value as a write sees it: autograd has it read the whole storage."""
        base = self.bases[slot.base]
        return base if slot.rows == base.shape[0] else base[: slot.rows]

    def _store(self, kind: str, slot: Slot, value: Tensor) -> None:
        base = self.bases.get(slot.base)
        if kind == "head":
            self.direct[slot.thing] = (base, value)
        elif kind in WRITES and slot.rows != base.shape[0]:
            self.bases[slot.base] = base.slice_scatter(value, 0, 0, slot.rows)
            self.direct[slot.thing] = (self.bases[slot.base], self.bases[slot.base][: slot.rows])
        else:
            self.bases[slot.base] = value

    def _value(self, kind: str, a: Tensor, b: Tensor | None) -> Tensor:
        if kind == "scale_":
            return a * 0.5
        if kind == "iadd":
            return a + b
        if kind == "relu_":
            return a.relu()
        if kind == "addto":
            return a + 0.5 * b
        return self.parts[kind](*((a,) if b is None else (a, b)))
