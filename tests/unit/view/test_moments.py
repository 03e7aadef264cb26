"""A moment is what a live view showed then: compared with frames that one really made."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings

from probe_nb.view import moments
from probe_nb.view.frame import COLUMNS, FrameBuilder
from tests.unit.view.make_runs import Book, hundred_layers
from tests.unit.view.test_frame import decode, records


def read(data: bytes) -> tuple[list[float], list[int], list[dict]]:
    """Read moments by their description alone."""
    magic, version, number, rows, *zeros = struct.unpack_from("<8I", data)
    assert (magic, version, zeros) == (0x31424E50, 3, [0, 0, 0, 0])
    steps = np.frombuffer(data, "<f8", number, 32).tolist()
    at = 32 + 8 * number
    places = np.frombuffer(data, "<u4", rows, at).tolist()
    at += -(-4 * rows // 8) * 8
    frames = []
    for _ in range(number):
        _, _, mine, columns, spark, entries, *_ = struct.unpack_from("<8I", data, at)
        assert (mine, spark) == (rows, 0)
        blocks = (8 * columns * rows, 4 * (rows + 1), 2 * entries, 4 * entries)
        end = at + 32 + sum(-(-size // 8) * 8 for size in blocks)
        frames.append(decode(data[at:end]))
        at = end
    assert at == len(data)
    return steps, places, frames


def histogram(frame: dict, row: int) -> tuple[list, list]:
    cut = slice(frame["offsets"][row], frame["offsets"][row + 1])
    return frame["bins"][cut].tolist(), frame["counts"][cut].tolist()


def assert_same(moment: dict, places: list[int], live: dict) -> None:
    """A moment has of its rows what the live frame had, and nothing of rows that came later."""
    for at, row in enumerate(places):
        known = row < len(live["order"])
        for name in COLUMNS:
            np.testing.assert_equal(moment[name][at], live[name][row] if known else np.nan, name)
        assert histogram(moment, at) == (histogram(live, row) if known else ([], []))


def grown(steps: int, script) -> tuple[Book, dict[int, dict]]:
    """Let a run grow step by step under a live view; return what it showed after each."""
    book = Book()
    live = FrameBuilder(book.columns, book.info, live=True)
    shown = {}
    for step in range(steps):
        script(book, step)
        book.flush()
        shown[step] = decode(live.update()[2])
    return book, shown


def layers(book: Book, step: int) -> None:
    """Twelve layers; the sixth overflows from step 7 on, and one of them comes in step 3."""
    random = np.random.default_rng(step)
    for layer in range(12):
        if layer == 9 and step < 3:
            continue
        values = random.normal(size=16) * 10.0**layer * (1e5 if step > 20 else 1)
        if layer >= 6 and step >= 7:
            values[:layer] = np.inf if layer == 6 else np.nan
        if layer == 2 and step % 5 == 4:
            values[:] = 0
        book.add(f"layers.{layer}", values, step=step, dtype="float16")
        if layer % 2:
            book.add(f"layers.{layer}", values / 3, "grad_output", step=step)


def test_each_step_of_a_run_is_what_a_live_view_showed_at_its_end():
    book, shown = grown(30, layers)
    builder = FrameBuilder(book.columns, book.info)
    builder.update()
    steps, places, frames = read(moments.whole(builder))
    assert steps == [float(step) for step in range(30)]
    assert places == list(range(18))
    for step, frame in enumerate(frames):
        assert_same(frame, places, shown[step])
    first = [np.nanmax(frame["first_bad_step"]) for frame in frames]
    assert first[6:9] == [-1, 7, 7]
    assert len({frame["badges"].tobytes() for frame in frames}) > 3  # they differ as they should


@settings(max_examples=40, deadline=None)
@given(records)
def test_whatever_is_recorded_moments_are_what_was_shown(script):
    book = Book()
    live = FrameBuilder(book.columns, book.info, live=True)
    shown, step = {}, 0
    for module, role, ahead, numbers, status, _ in script:
        if ahead > 36:
            book.flush()
            shown[step] = decode(live.update()[2]) if len(book.columns) else None
            step += ahead
        book.add(f"m{module}", numbers, role, step=step, status=status)
    book.flush()
    shown[step] = decode(live.update()[2])
    builder = FrameBuilder(book.columns, book.info)
    builder.update()
    steps, places, frames = read(moments.whole(builder))
    assert steps == [s for s, frame in shown.items() if frame is not None]
    for step, frame in zip(steps, frames, strict=True):
        assert_same(frame, places, shown[step])


@pytest.mark.parametrize(("most", "bad"), [(4, 50), (5, 1), (9, 0), (16, 57), (30, 118)])
def test_few_moments_are_spread_evenly_and_have_the_first_bad_step_and_the_one_before(most, bad):
    run = hundred_layers(steps=120, bad_step=bad)
    builder = FrameBuilder(run.columns, run.info)
    builder.update()
    found = moments.moments(builder, np.arange(3), most).steps.tolist()
    assert len(found) <= most
    assert {max(bad - 1, 0), bad, 119} <= set(found)
    if most > 4:
        assert max(np.diff([0, *found])) <= 2 * 120 / (most - 3)


def test_a_budget_holds_and_the_worst_rows_stay():
    book, shown = grown(30, layers)
    builder = FrameBuilder(book.columns, book.info)
    builder.update()
    whole = len(moments.whole(builder))
    for budget in (whole, whole // 2, whole // 4, whole // 10, 2000):
        data = moments.whole(builder, budget)
        assert len(data) <= budget
        steps, places, frames = read(data)
        assert len(steps) >= 1
        for step, frame in zip(steps, frames, strict=True):
            assert_same(frame, places, shown[step])
        if places:
            assert builder.verdict().site in places


def test_late_records_show_when_they_came():
    book = Book().add("a", [1.0], step=0).flush().add("a", [2.0], step=1)
    book.add("b", [np.nan], step=0).flush().add("a", [3.0], step=2)
    builder = FrameBuilder(book.run().columns, book.info)
    builder.update()
    steps, _, frames = read(moments.whole(builder))
    assert steps == [0, 1, 2]
    assert [f["first_bad_step"][1] for f in frames[1:]] == [0, 0]
    assert np.isnan(frames[0]["first_bad_step"][1])


def test_what_was_moved_to_disk_is_read_too():
    shown = grown(30, layers)[1]
    small = Book()
    small.columns.budget = 20_000
    for step in range(30):
        layers(small, step)
        small.flush()
    assert small.columns.spilled
    builder = FrameBuilder(small.columns, small.info)
    builder.update()
    steps, places, frames = read(moments.whole(builder))
    assert len(steps) == 30
    for step, frame in enumerate(frames):
        assert_same(frame, places, shown[step])


def test_a_run_of_nothing_has_no_moments():
    book = Book()
    builder = FrameBuilder(book.columns, book.info)
    builder.update()
    assert read(moments.whole(builder)) == ([], [], [])
