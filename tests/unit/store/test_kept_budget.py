"""What does not fit is not kept, and says so; older steps make room for newer ones."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.errors import SelectionError
from probe_nb.store import listing
from probe_nb.store.keeping import Tensors
from probe_nb.store.kept import Kept


class Feeds(nn.Module):
    """Hands tensors of so many bytes to its child."""

    def __init__(self):
        super().__init__()
        self.child = nn.Identity()

    def forward(self, *sizes):
        for size in sizes:
            self.child(torch.full((size,), size, dtype=torch.uint8))


def statuses(*steps, **options):
    """Return the status of each tensor that was kept of steps with tensors of these sizes."""
    model = Feeds()
    with probe.watch(model, keep=probe.Keep("child", **options)) as run:
        for sizes in steps:
            model(*sizes)
    kept = run.kept()
    for each in kept.itertuples():
        if each.status == "kept":
            t = run.tensor("child", step=each.step, call=each.call)
            assert t.tolist() == [t.numel()] * t.numel()
        else:
            with pytest.raises(SelectionError, match=f"`child` input .*{each.status}"):
                run.tensor("child", step=each.step, call=each.call)
    return [[*kept[kept["step"] == step]["status"]] for step in range(len(steps))]


NO, ROOM = "not kept: budget", "not kept: made room"


def test_what_fits_is_kept():
    assert statuses((40, 60), memory=100) == [["kept", "kept"]]
    assert statuses((40, 61), memory=None) == [["kept", "kept"]]


def test_within_a_step_nothing_is_thrown_away_for_what_comes_later():
    assert statuses((40, 61, 60), memory=100) == [["kept", NO, "kept"]]


def test_older_steps_make_room_oldest_first_and_no_more_than_is_needed():
    assert statuses((40,), (40,), (40,), memory=100) == [[ROOM], ["kept"], ["kept"]]
    assert statuses((20, 20), (40,), (30,), memory=100) == [[ROOM, "kept"], ["kept"], ["kept"]]
    assert statuses((20, 20), (60,), (50,), memory=100) == [[ROOM] * 2, [ROOM], ["kept"]]


def test_none_is_thrown_away_for_a_tensor_that_would_not_fit_even_then():
    assert statuses((40,), (30, 80), memory=100) == [["kept"], ["kept", NO]]
    assert statuses((40,), (101,), memory=100) == [["kept"], [NO]]


def test_where_steps_were_chosen_none_makes_room_for_another():
    assert statuses((60,), (60,), (60,), memory=100, steps="0-2") == [["kept"], [NO], [NO]]


def test_tensors_that_made_room_are_gone_from_memory():
    kept = Tensors(100, makes_room=True)
    arrays = []

    def take(step):
        array = np.zeros(60, np.uint8)
        arrays.append(weakref.ref(array))
        kept.take(entry(step, 60), lambda: array)

    for step in range(3):
        take(step)
    gc.collect()
    assert [ref() is None for ref in arrays] == [True, True, False]


def entry(step, size):
    return Kept("m", "a", "forward", "input", "0", step, 0, 0, -1, "uint8", (size,), size)


def test_a_late_gradient_of_an_old_step_throws_nothing_newer_away():
    kept = Tensors(100, makes_room=True)
    for step in (1, 2, 0):  # a backward of step 0 that comes after two more forwards
        kept.take(entry(step, 50), lambda: np.zeros(50, np.uint8))
    assert [each.status for each in kept.known()] == ["kept", "kept", NO]
    kept.take(entry(3, 50), lambda: np.zeros(50, np.uint8))
    assert [each.status for each in kept.known()] == [ROOM, "kept", NO, "kept"]


def test_a_copy_that_fails_takes_no_room():
    def fails():
        raise MemoryError

    kept = Tensors(100)
    with pytest.raises(MemoryError):
        kept.take(entry(0, 100), fails)
    kept.take(entry(0, 100), lambda: np.zeros(100, np.uint8))
    assert [each.status for each in kept.known()] == ["kept"]


def test_of_very_many_that_are_not_kept_the_newest_are_listed(monkeypatch):
    monkeypatch.setattr(listing, "LISTED", 10)
    kept = Tensors(100, makes_room=True)
    for step in range(1000):
        kept.take(entry(step, 50), lambda: np.zeros(50, np.uint8))
    known = kept.known()
    assert len(known) <= 22
    assert [each.step for each in known] == [*range(known[0].step, 1000)]
    assert [each.status for each in known[-3:]] == [ROOM, "kept", "kept"]


class Coming:
    """A copy that a device is making."""

    def __init__(self, error=None):
        self.error, self.done, self.waited = error, False, False

    def is_done(self):
        return self.done

    def result(self):
        self.waited = not self.done
        if self.error is not None:
            raise self.error
        return np.full(10, 7, np.uint8)


def test_copies_are_taken_in_when_they_have_come_and_waited_for_at_the_end():
    kept, copies = Tensors(100), [Coming() for _ in range(3)]
    for step, copy in enumerate(copies):
        kept.take(entry(step, 10), lambda copy=copy: copy)
    copies[0].done = True
    assert kept.settle() == []
    assert [isinstance(each.data, np.ndarray) for each in kept.known()] == [True, False, False]
    assert kept.tensor("a", "input", **asked(step=1)).tolist() == [7] * 10
    assert kept.finish() == []
    assert [copy.waited for copy in copies] == [False, True, True]
    assert all(isinstance(each.data, np.ndarray) for each in kept.known())


def asked(**more):
    names = ("step", "call", "leaf", "micro_step", "direction", "model")
    return dict.fromkeys(names) | more


def test_a_copy_that_a_device_lost_is_not_kept_and_told_once():
    kept = Tensors(100)
    for step in range(2):
        kept.take(entry(step, 10), lambda: Coming(RuntimeError("the device fell off")))
    kept.take(entry(2, 10), Coming)
    (told,) = kept.finish()
    assert "the device fell off" in told
    assert [each.status for each in kept.known()] == ["not kept: failed"] * 2 + ["kept"]
    assert kept.finish() == []
