"""Random programs over tensors: what a wish asks for, and what of it autograd allows.

A program is a list of operations on numbered slots. `plan` drops the wishes that autograd would
refuse. `machines` runs what is left twice: with real tensors, modules, views and writes, and as
pure values, so that `torch.autograd.grad` says what each call was sent and what it sent back.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

ROWS = 4


class Kind(NamedTuple):
    """What an operation does to storages.

    `gives` says of each result what it is: `new`, `one` (new, a single row), `view` (a new view
    of all of the first argument), `head` and `tail` (views of a part), `base` (a new storage, of
    which `head2` is a view), `kept` (a view of a new storage), or the number of an argument.
    """

    gives: tuple[str, ...] = ("new",)
    two: bool = False
    """Takes two arguments with the same number of rows."""
    writes: bool = False
    """Writes its first argument."""
    saves: tuple[int, ...] = ()
    """The arguments that autograd keeps, so that nobody may write them any more."""
    keeps: bool = False
    """Autograd keeps the results, or refuses to have them written."""
    seals: bool = False
    """Nobody may write the first argument any more: autograd refuses it for these views."""
    bare: bool = False
    """An operation of the caller itself; the others are calls of modules."""


KINDS = {
    "linear": Kind(saves=(0,)),
    "frozen": Kind(saves=(0,)),
    "tanh": Kind(keeps=True),
    "relu_": Kind(("0",), writes=True, keeps=True),
    "twice": Kind(),
    "mix": Kind(two=True),
    "keywords": Kind(two=True),
    "gate": Kind(two=True, saves=(0, 1)),
    "addto": Kind(("0",), two=True, writes=True),
    "identity": Kind(("0",)),
    "passes": Kind(("0", "new")),
    "head": Kind(("head",)),
    "tail": Kind(("tail",)),
    "cut": Kind(("head", "tail"), seals=True),
    "largest": Kind(("one",)),
    "lstm": Kind(("new", "one", "one"), saves=(0,), keeps=True),
    "loose": Kind(),
    "custom": Kind(("new", "new"), two=True, saves=(0, 1)),
    "dirty": Kind(("0",), writes=True),
    "alias": Kind(("view",), seals=True),
    "buffered": Kind(("kept",)),
    "stale": Kind(("base", "head2")),
    "as_dict": Kind(("new", "new")),
    "as_data": Kind(("new", "0", "new")),
    "as_named": Kind(("new", "new")),
    "as_model": Kind(("new", "head")),
    "scale_": Kind(("0",), writes=True, bare=True),
    "iadd": Kind(("0",), two=True, writes=True, bare=True),
    "add": Kind(two=True, bare=True),
    "slice": Kind(("head",), bare=True),
}
"""`block` is not among them: it is a module whose forward is a program of its own."""

_CUTS = ("head", "tail", "view")
OFTEN = ("head", "tail", "slice", "relu_", "addto", "dirty", "scale_", "iadd", "stale")
"""Views and writes, where the traps are, are drawn more often."""


class Op(NamedTuple):
    """One operation; `body` is the program of a block."""

    kind: str
    i: int = 0
    j: int = 0
    body: tuple[Op, ...] = ()
    form: str = "tuple"
    """How a block packs its results."""
    grad: bool = True
    """Whether a block runs with grad enabled."""


@dataclass
class Store:
    """What is known of a storage."""

    sealed: bool = False
    written: bool = False
    viewed: bool = False


@dataclass(frozen=True)
class Slot:
    """A tensor: in which storage, and with how many rows."""

    store: int
    rows: int
    cut_off: bool = False
    """A view made without grad of what may require it: torch sends no gradient through it."""


@dataclass
class Plan:
    """The operations that are left, and what is known of the storages."""

    ops: tuple[Op, ...] = ()
    stores: list[Store] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    """How often each kind, and each trap, is in it."""

    def fresh(self, rows: int, *, sealed: bool = False) -> Slot:
        """Return a slot in a new storage."""
        self.stores.append(Store(sealed))
        return Slot(len(self.stores) - 1, rows)


def plan(wishes: list[Op]) -> Plan:
    """Keep the operations that autograd allows."""
    done = Plan()
    slots = [done.fresh(ROWS, sealed=True), done.fresh(ROWS)]
    done.ops = _kept(done, wishes, slots, frozenset(), grad=True, depth=0)
    return done


def _kept(
    done: Plan, wishes, slots: list[Slot], crowded: frozenset[int], *, grad: bool, depth: int
) -> tuple[Op, ...]:
    """Keep the allowed ones of a body and append what they give to its slots.

    `crowded` are storages that came in by two arguments: who writes there cannot be told.
    """
    kept = []
    for wish in wishes:
        op = wish._replace(i=wish.i % len(slots), j=wish.j % len(slots))
        a, b = slots[op.i], slots[op.j]
        if op.kind == "block":
            if grad and (a.cut_off or b.cut_off):
                continue
            op = _block(done, op, slots, crowded, grad=grad, depth=depth)
        elif _allowed(done, KINDS[op.kind], a, b, crowded, grad=grad):
            _count(done, op, a, b, depth)
            slots += _account(done, KINDS[op.kind], a, b, grad=grad)
        else:
            continue
        kept.append(op)
    return tuple(kept)


def _allowed(done: Plan, kind: Kind, a: Slot, b: Slot, crowded, *, grad: bool) -> bool:
    if kind.two and a.rows != b.rows:
        return False
    if grad and (a.cut_off or (kind.two and b.cut_off)):
        return False
    if kind.writes and (done.stores[a.store].sealed or a.store in crowded or not grad):
        return False
    if kind.writes and kind.two and a.store == b.store:
        return False
    return a.rows > 1 or not {"head", "tail"} & set(kind.gives)


def _account(done: Plan, kind: Kind, a: Slot, b: Slot, *, grad: bool) -> list[Slot]:
    for place in kind.saves:
        done.stores[(a, b)[place].store].sealed = True
    store = done.stores[a.store]
    store.written |= kind.writes
    store.viewed |= bool(set(_CUTS) & set(kind.gives))
    store.sealed |= kind.seals
    made: list[Slot] = []
    for what in kind.gives:
        slot = _made(done, what, a, made)
        made.append(replace(slot, cut_off=slot.cut_off or (not grad and what in _CUTS)))
    for slot in made:
        done.stores[slot.store].sealed |= kind.keeps or not grad
    return made


def _made(done: Plan, what: str, a: Slot, made: list[Slot]) -> Slot:
    if what in ("0", "view"):
        return a
    if what in ("head", "tail"):
        return Slot(a.store, a.rows // 2 if what == "head" else a.rows - a.rows // 2)
    if what == "head2":
        return Slot(made[0].store, max(a.rows // 2, 1))
    slot = done.fresh(1 if what == "one" else a.rows)
    if what in ("base", "kept"):
        done.stores[slot.store].written = done.stores[slot.store].viewed = True
    return slot


def _block(done: Plan, op: Op, slots: list[Slot], crowded, *, grad: bool, depth: int) -> Op:
    a, b = slots[op.i], slots[op.j]
    if a.store == b.store:
        crowded |= {a.store}
    inner = [a, b]
    grad = grad and op.grad
    body = _kept(done, op.body, inner, crowded, grad=grad, depth=depth + 1)
    slots += chosen(inner)
    done.seen[f"block as {op.form}"] += 1
    done.seen["block without grad"] += not grad
    done.seen["block in a block"] += depth > 0
    done.seen["argument handed on"] += chosen(inner)[1] in (a, b)
    return op._replace(body=body)


def chosen(slots: list) -> tuple:
    """Return the slots that a body gives out: the last and the one in the middle."""
    return slots[-1], slots[len(slots) // 2]


def _count(done: Plan, op: Op, a: Slot, b: Slot, depth: int) -> None:
    kind, store = KINDS[op.kind], done.stores[a.store]
    done.seen[op.kind] += 1
    done.seen["one tensor twice"] += kind.two and op.i == op.j
    done.seen["two views of one storage"] += kind.two and op.i != op.j and a.store == b.store
    done.seen["write with views about"] += kind.writes and store.viewed
    done.seen["write inside a block"] += kind.writes and depth > 0
    done.seen["read of a written view"] += not kind.writes and store.viewed and store.written
    done.seen["view of a written storage"] += store.written and bool(set(_CUTS) & set(kind.gives))


TRAPS = (
    "block without grad",
    "block in a block",
    "argument handed on",
    "one tensor twice",
    "two views of one storage",
    "write with views about",
    "write inside a block",
    "read of a written view",
    "view of a written storage",
)
FORMS = ("tuple", "list", "dict", "data", "named", "model")


def draw(seed: int) -> list[Op]:
    """Return the wishes of one random program.

    Hypothesis is not used: in 400 programs that it drew, most kinds came up fewer than eight times
    as operations that autograd allows.
    """
    chance = random.Random(seed)
    return [_drawn(chance, 0) for _ in range(chance.randint(1, 12))]


def _drawn(chance: random.Random, depth: int) -> Op:
    i, j = chance.randrange(12), chance.randrange(12)
    if depth < 2 and chance.random() < 0.3:
        body = tuple(_drawn(chance, depth + 1) for _ in range(chance.randint(1, 5)))
        return Op("block", i, j, body, chance.choice(FORMS), chance.random() < 0.75)
    return Op(chance.choice((*KINDS, *OFTEN)), i, j)


_REFUSED = "a leaf Variable that requires grad is being used in an in-place operation"
"""Torch says so of a view made before its base required grad: two programs in ten thousand."""


def sweep(examine: Callable[[list[Op]], None], examples: int) -> None:
    """Examine many programs; of one that fails, show the smallest that fails alike."""
    for seed in range(examples):
        wishes = draw(seed)
        try:
            examine(wishes)
        except Exception as error:
            if _REFUSED in str(error):
                continue
            wishes = _smallest(examine, wishes, type(error))
            raise AssertionError(f"program {seed}, as small as it goes: {wishes}") from error


def _smallest(examine, wishes: list[Op], error: type[Exception]) -> list[Op]:
    for fewer in _smaller(wishes):
        try:
            examine(fewer)
        except error:  # noqa: PERF203 - it fails alike
            return _smallest(examine, fewer, error)
        except Exception:
            continue
    return wishes


def _smaller(wishes) -> Iterator[list[Op]]:
    """Yield the programs that are one step simpler."""
    for place, op in enumerate(wishes):
        before, after = list(wishes[:place]), list(wishes[place + 1 :])
        yield before + after
        if op.kind == "block":
            yield [*before, *op.body, *after]
            for body in _smaller(op.body):
                yield [*before, op._replace(body=tuple(body)), *after]
        for simple in (op._replace(i=0), op._replace(j=0), op._replace(grad=True)):
            if simple != op:
                yield [*before, simple, *after]
