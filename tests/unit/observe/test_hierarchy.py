"""What ran inside what, against nesting that is written down by hand or seen by other means."""

from __future__ import annotations

import threading
import types
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import probe_nb as probe
from tests.models import no_faults

if TYPE_CHECKING:
    pass

Row = tuple[str, int, int | None]
"""What was called, for which time, and the place in the list of what is around."""


class Block(nn.Module):
    """Adds what its two parts make to what it is fed."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.fc(x)) + x


def rows(run: probe.Run, **chosen: Any) -> list[Row]:
    """Return the calls of a run in their order; a function is `module:Functional.relu`."""
    frame = run.calls()
    for name, value in chosen.items():
        frame = frame[frame[name] == value]
    first = frame.index[0] if len(frame) else 0
    names = [f"{r.module}:{r.api}" if r.api else str(r.module) for r in frame.itertuples()]
    parents = [None if each is None else each - first for each in plain(frame["parent"])]
    return list(zip(names, frame["call"].tolist(), parents, strict=True))


def test_functions_lie_in_modules_and_modules_in_modules() -> None:
    """The whole table of a small model at mixed level, by hand."""
    model = nn.Sequential(Block(), nn.Linear(4, 2))
    x = torch.ones(3, 4)
    with no_faults(), probe.watch(model, level="mix") as run:
        F.mse_loss(model(x), torch.zeros(3, 2).add(1)).backward()
    assert rows(run) == [
        ("", 0, None),
        ("0", 0, 0),
        ("0.fc", 0, 1),
        ("0.fc:Functional.linear", 0, 2),
        ("0.act", 0, 1),
        ("0.act:Functional.relu", 0, 4),
        ("0:Tensor.__add__", 0, 1),
        ("1", 0, 0),
        ("1:Functional.linear", 1, 7),
        (":Tensor.add", 0, None),
        (":Functional.mse_loss", 0, None),
    ]
    frame = run.calls()
    assert frame["type"].tolist()[:4] == ["Sequential", "Block", "Linear", "Linear"]
    assert frame["model"].tolist()[-3:] == ["model", "", ""]
    assert frame["rank"].isna().all()
    assert frame["stack"].isna().all()


def test_modules_are_there_at_every_level_that_records_calls() -> None:
    """Also where they have no rows of their own, and whatever is chosen: they are around."""
    model = nn.Sequential(Block(), nn.Linear(4, 2))
    modules = [("", 0, None), ("0", 0, 0), ("0.fc", 0, 1), ("0.act", 0, 1), ("1", 0, 0)]
    for options in ({}, {"select": "0.act"}, {"roles": "param"}, {"structure": True}):
        with no_faults(), probe.watch(model, **options) as run:
            model(torch.ones(3, 4))
        assert rows(run) == modules, options
    with no_faults(), probe.watch(model, level="api", select="0.act") as run:
        model(torch.ones(3, 4))
    assert rows(run) == [*modules[:4], ("0.act:Functional.relu", 0, 3), ("1", 0, 0)]


class Shared(nn.Module):
    """Calls one module from inside of another, which its path does not tell."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.outer = nn.Sequential()
        self.outer.forward = lambda x: self.inner(x) * 2  # type: ignore[method-assign]

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x))


def test_who_calls_is_around_whatever_the_paths_say() -> None:
    """A module that another calls lies in it, not in the one that owns it."""
    model = Shared()
    with no_faults(), probe.watch(model) as run:
        model(torch.ones(1, 4))
    assert rows(run) == [("", 0, None), ("inner", 0, 0), ("outer", 0, 0), ("inner", 1, 2)]


class Deep(nn.Module):
    """Calls itself."""

    def forward(self, x: Tensor, depth: int = 2) -> Tensor:
        return self(x, depth - 1) + 1 if depth else x * 2


def test_a_module_that_calls_itself_lies_in_itself() -> None:
    """Each call in the one that made it."""
    model = Deep()
    with no_faults(), probe.watch(model, level="mix") as run:
        model(torch.ones(1))
    assert rows(run) == [
        ("", 0, None),
        ("", 1, 0),
        ("", 2, 1),
        (":Tensor.__mul__", 0, 2),
        (":Tensor.__add__", 0, 1),
        (":Tensor.__add__", 1, 0),
    ]


class Raises(nn.Module):
    """Raises at its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.bad = nn.Linear(3, 3)
        self.good = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        try:
            x = self.bad(x)
        except RuntimeError:
            x = torch.relu(x)
        return self.good(x)


def test_what_follows_an_exception_does_not_lie_in_what_raised() -> None:
    """Neither where the model catches it, nor in the next step, nor after an interrupt."""
    model = Raises()
    with no_faults(), probe.watch(model, level="mix") as run:
        for _ in range(2):
            model(torch.ones(1, 4))
    expected = [
        ("", 0, None),
        ("bad", 0, 0),
        ("bad:Functional.linear", 0, 1),
        (":Torch.relu", 0, 0),
        ("good", 0, 0),
        ("good:Functional.linear", 1, 4),
    ]
    assert rows(run, step=0) == expected
    assert rows(run, step=1) == expected

    class Interrupted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyboardInterrupt

    model = nn.Sequential(Interrupted())
    with no_faults(), probe.watch(model, level="mix") as run:
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(1))
        torch.relu(torch.ones(1).add(1))
    assert rows(run) == [
        ("", 0, None),
        ("0", 0, 0),
        (":Tensor.add", 0, None),
        (":Torch.relu", 0, None),
    ]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("level", ["module", "mix"])
def test_what_checkpointing_repeats_is_no_call(level: str, reentrant: bool) -> None:
    """The table is that of the forward, whether or not a backward ran."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()
            self.head = nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(checkpoint(self.block, x, use_reentrant=reentrant))

    model = Net()
    found = []
    for trains in (False, True):
        x = torch.ones(2, 4, requires_grad=True)
        with no_faults(), probe.watch(model, level=level) as run:
            out = model(x)
            if trains:
                torch.autograd.backward(out, torch.ones_like(out).detach())
        found.append([row for row in rows(run) if "Torch." not in row[0]])
    assert found[0] == found[1]
    assert [row for row in found[1] if ":" not in row[0]][:4] == [
        ("", 0, None),
        ("block", 0, 0),
        ("block.fc", 0, 1),
        ("block.act", 0, 1),
    ]


def test_threads_do_not_lie_in_one_another() -> None:
    """Two threads run one model at the same time: each call lies in one of its own thread."""
    model = nn.Sequential(Block(), Block())
    barrier = threading.Barrier(2)

    def run_model() -> None:
        for _ in range(20):
            barrier.wait()
            model(torch.ones(3, 4))

    with no_faults(), probe.watch(model, micro_batches=1000) as run:
        threads = [threading.Thread(target=run_model) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = rows(run)
    assert len(found) == 40 * 7
    parts: dict[int | None, list[str]] = {}
    for name, _, parent in found:
        parts.setdefault(parent, []).append(name)
    roots = [place for place, row in enumerate(found) if row[0] == ""]
    assert parts[None] == [""] * 40
    for root in roots:
        assert parts[root] == ["0", "1"]
    for place, (name, _, _) in enumerate(found):
        if name in ("0", "1"):
            assert parts[place] == [f"{name}.fc", f"{name}.act"]


def test_what_a_registered_function_calls_lies_in_it() -> None:
    """Modules do; functions that it calls are part of it. What follows does not, if it raised."""
    model = nn.Sequential(nn.Linear(4, 4))
    mine = types.SimpleNamespace(__name__="mine")

    def twice(x: Tensor, *, fails: bool = False) -> Tensor:
        y = model[0](model(x)).relu()
        if fails:
            raise ValueError
        return y

    mine.twice = twice
    with no_faults(), probe.watch(model, level="mix") as run:
        run.register_custom_api(mine, "twice")
        mine.twice(torch.ones(1, 4))
        with pytest.raises(ValueError, match=r"^$"):
            mine.twice(torch.ones(1, 4), fails=True)
        model(torch.ones(1, 4))
    found = rows(run)
    first = [
        (":mine.twice", 0, None),
        ("", 0, 0),
        ("0", 0, 1),
        ("0", 0, 0),
    ]
    assert [row for row in found if "Torch." not in row[0]][:4] == first
    around = dict(enumerate(found))
    last = [row for row in found if row[0] == ""][-1]
    assert last[2] is None
    assert [around[row[2]][0] for row in found if row[0] == "0"] == ["", ":mine.twice"] * 2 + [""]


def test_steps_that_are_not_recorded_have_no_calls() -> None:
    """Nor has what `run.only` silences; what it records alone lies in nothing that is silent."""
    model = nn.Sequential(Block(), nn.Linear(4, 2))
    with no_faults(), probe.watch(model, steps="1", level="mix") as run:
        for _ in range(3):
            model(torch.ones(1, 4))
    assert set(run.calls()["step"]) == {1}
    assert len(run.calls()) == 9
    with no_faults(), probe.watch(model, level="mix") as run:
        model(torch.ones(1, 4))
        with run.only(model[0], "Mine"):
            model(torch.ones(1, 4))
        model(torch.ones(1, 4))
    assert rows(run, step=1) == [("Mine", 0, None)]
    assert len(rows(run, step=2)) == 9


def plain(column: Any) -> list[int | None]:
    return [
        None if missing else int(each) for each, missing in zip(column, column.isna(), strict=True)
    ]
