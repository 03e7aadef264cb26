from __future__ import annotations

import json
import struct
import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe_nb.analysis import verdict as v
from probe_nb.terms import COUNTS, STATISTICS, STATUSES
from probe_nb.view.frame import COLUMNS, FrameBuilder
from tests.unit.view.make_runs import Book, hundred_layers, info

NAN, INF = np.nan, np.inf


def decode(data: bytes) -> dict:
    """Read a frame by its description alone."""
    magic, version, rows, columns, steps, entries, zero, nothing = struct.unpack_from("<8I", data)
    assert (magic, version, zero, nothing) == (0x31424E50, 1, 0, 0)
    at = 32

    def take(kind, number):
        nonlocal at
        assert at % 8 == 0
        found = np.frombuffer(data, kind, number, at)
        at += -(-found.nbytes // 8) * 8
        return found

    table = take("<f8", columns * rows).reshape(columns, rows)
    spark = take("<f8", rows * steps).reshape(rows, steps)
    offsets, bins, counts = take("<u4", rows + 1), take("<u2", entries), take("<f4", entries)
    assert at == len(data)
    assert offsets[-1] == entries
    return {
        **dict(zip(COLUMNS, table, strict=True)),
        "spark": spark,
        "offsets": offsets,
        "bins": bins,
        "counts": counts,
    }


def strict(text: str):
    def refuse(word):
        raise ValueError(word)

    return json.loads(text, parse_constant=refuse)


def expected_latest(frame, site):
    """The row of `run.df` that a site shows, found by its definition."""
    if site["direction"] == "optimizer" and site["module"].startswith("optimizer"):
        number = site["module"].partition(".")[2] or "0"
        frame = frame[frame["api"] == f"optimizer.{number}"]
        site = {**site, "module": ""}
    for name in ("module", "direction", "role", "leaf"):
        frame = frame[frame[name] == site[name]]
    rows = frame
    rows = rows[rows["step"] == rows["step"].max()]
    bad = rows[["nan_count", "posinf_count", "neginf_count"]].fillna(-1).sum(axis=1)
    return rows[bad == bad.max()].iloc[-1], rows


def check_against_df(builder, run):
    got = decode(builder.frame())
    sites = strict(builder.sites())["rows"]
    frame = run.df
    for row, site in enumerate(sites):
        want, same_step = expected_latest(frame, site)
        assert got["step"][row] == want["step"]
        assert got["calls"][row] == len(same_step)
        assert (
            got["order"][row]
            == same_step["order"].min() - frame[frame["step"] == want["step"]]["order"].min()
        )
        assert STATUSES[int(got["status"][row])] == want["status"]
        assert (site["dtype"], tuple(site["shape"])) == (want["dtype"], want["shape"])
        for name in ("numel", *STATISTICS, *COUNTS):
            value = want[name]
            absent = -1.0 if name in COUNTS else NAN
            np.testing.assert_equal(got[name][row], absent if value is pd.NA else float(value))
        check_histogram(got, row, run, want)
    return got


def check_histogram(got, row, run, want):
    cut = slice(got["offsets"][row], got["offsets"][row + 1])
    found = run.columns.histogram(int(want.name))
    assert got["bins"][cut].tolist() == ([] if found is None else found.bins.tolist())
    assert got["counts"][cut].tolist() == ([] if found is None else found.counts.tolist())


def test_the_numbers_are_those_of_the_dataframe():
    run = hundred_layers(bad=50)
    builder = FrameBuilder(run.columns, run.info)
    builder.update()
    got = check_against_df(builder, run)
    assert got["first_bad_step"].max() == 1
    np.testing.assert_array_equal(got["badges"], v.badges(run.columns))


def test_the_spark_holds_the_largest_absmax_of_each_step():
    book = (
        Book()
        .add("a", [1.0, -5.0], step=0)
        .add("a", [2.0], step=0, call=1)
        .add("a", [NAN, 9.0], step=2)
    )
    book.add("b", [7.0], step=1).add("b", [0.0, -INF], "input", step=1)
    builder = FrameBuilder(book.run().columns, book.info)
    spark = decode(builder.update()[2])["spark"]
    np.testing.assert_array_equal(spark, [[5, NAN, INF], [NAN, 7, NAN], [NAN, 0, NAN]])


def test_the_spark_keeps_the_last_steps():
    book = Book()
    builder = FrameBuilder(book.columns, book.info)
    for step in range(150):
        book.add("a", [float(step)], step=step).flush()
        builder.update()
        if step == 40:
            book.add("late", [1.0], step=40).flush()
    spark = decode(builder.update()[2])["spark"]
    np.testing.assert_array_equal(spark[0], np.arange(118, 150))
    assert np.isnan(spark[1]).all()


values = st.sampled_from(
    [0.0, -0.0, 1.0, -2.5, 1e300, -1e300, 1e-300, 5e-324, 65504.0, NAN, INF, -INF]
)
records = st.lists(
    st.tuples(
        st.integers(0, 3),  # module
        st.sampled_from(
            ["param", "output", "grad_output"]
        ),  # an input needs its output in the same block
        st.integers(0, 40),  # steps to go on, at random far apart
        st.lists(values, max_size=5),
        st.sampled_from([None, None, None, "skipped_budget"]),
        st.booleans(),  # a block ends here
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(records)
def test_reading_block_by_block_gives_what_the_dataframe_says(script):
    book = Book()
    live = FrameBuilder(book.columns, book.info)
    step = 0
    for module, role, ahead, numbers, status, ends in script:
        step += ahead if ahead > 36 else 0
        book.add(f"m{module}", numbers, role, step=step, status=status)
        if ends:
            book.flush()
            live.update()
    run = book.run()
    live.update()
    once = FrameBuilder(run.columns, run.info)
    once.update()
    assert live.frame() == once.frame()
    assert live.sites() == once.sites()
    assert strict(live.status()) == strict(once.status())
    check_against_df(once, run)


@settings(max_examples=60, deadline=None)
@given(st.lists(values, min_size=1, max_size=6))
def test_every_number_survives_bit_by_bit(numbers):
    run = Book().add("a", numbers).run()
    builder = FrameBuilder(run.columns, run.info)
    got = decode(builder.update()[2])
    for name in STATISTICS:
        assert got[name].tobytes() == run.columns.arrays()[name].tobytes()


def test_late_steps_find_their_place():
    book = (
        Book()
        .add("a", [1.0], step=5)
        .add("a", [1.0], "grad_output", step=3)
        .add("a", [2.0], step=4)
        .add("a", [3.0], step=6)
    )
    live = FrameBuilder(book.columns, book.info)
    for _ in range(4):
        row = book.rows.pop()
        kept, book.rows = book.rows, [row]
        book.flush()
        live.update()
        book.rows = kept
    np.testing.assert_array_equal(
        decode(live.frame())["spark"], [[NAN, 2, 1, 3], [1, NAN, NAN, NAN]]
    )
    assert decode(live.frame())["step"][0] == 6


def test_late_steps_may_push_all_others_out_of_the_window_at_once():
    book = Book()
    live = FrameBuilder(book.columns, book.info)
    for step in (0, 1, 2, 1000):
        book.add("a", [1.0], step=step)
    book.flush()
    live.update()
    for step in (2000, *range(10, 60)):
        book.add("a", [100.0], step=step)
    book.flush()
    live.update()
    spark = decode(live.frame())["spark"]
    np.testing.assert_array_equal(spark, [[100.0] * 30 + [1.0, 100.0]])


@pytest.mark.parametrize("steps", [1, 3])
def test_the_order_in_which_records_lie_does_not_matter(steps):
    frames = []
    for seed in (None, 0, 1):
        book = Book()
        live = FrameBuilder(book.columns, book.info)
        for begin in range(0, 12, steps):
            for step in range(begin, begin + steps):
                for layer in range(5):
                    book.add(f"l{layer}", [step + layer, -2.0, 0.0], step=step)
                    book.add(f"l{layer}", [1e5, INF if step == 4 else 1.0], "input", step=step)
            if seed is not None:
                np.random.default_rng([seed, begin]).shuffle(book.rows)
            book.flush()
            frames.append(live.update()[1:])
        check_against_df(live, book.run())
    third = len(frames) // 3
    assert frames[:third] == frames[third : 2 * third] == frames[2 * third :]


def test_sites_are_sent_only_when_they_change():
    book = Book().add("a", [1.0], step=0).flush()
    builder = FrameBuilder(book.columns, book.info)
    assert builder.update()[0] is not None
    book.add("a", [2.0], step=1).flush()
    assert builder.update()[0] is None
    book.add("a", [2.0, 1.0], step=2).flush()
    assert strict(builder.update()[0])["rows"][0]["shape"] == [2]
    book.add("b", [2.0, 1.0], step=2).flush()
    assert [row["module"] for row in strict(builder.update()[0])["rows"]] == ["a", "b"]


def test_a_run_of_nothing_is_a_frame_of_nothing():
    sites, status, frame = FrameBuilder(Book().columns, info(ended="open")).update()
    assert strict(sites) == {"version": 1, "rows": []}
    assert strict(status)["headline"]["kind"] == "empty"
    assert len(decode(frame)["spark"]) == 0


def test_the_status_says_what_the_front_end_needs():
    about = info(
        ended="open",
        notices=["cell 3 failed"],
        unobserved=[{"module": "head", "reason": "never called"}],
    )
    run = Book(info=about).add("a", [NAN, 1.0], step=57).run()
    status = strict(FrameBuilder(run.columns, run.info).update()[1])
    assert status["title"] == "model · ConvNet"
    assert (status["open"], status["step"], status["steps"], status["records"]) == (True, 57, 1, 1)
    assert status["headline"]["text"] == "NaN first appeared at step 57 in a (forward output)"
    assert status["headline"]["row"] == 0
    assert status["notices"] == ["cell 3 failed"]
    assert status["unobserved"] == [{"module": "head", "reason": "never called"}]
    assert status["stat_names"] == list(COLUMNS)
    assert status["dtype_limits"]["float16"] == [-24, 15, 65504.0]
    assert status["truncated"] is None
    held = sum(column.nbytes for column in run.columns.arrays().values())
    made = {"rows": 1, "devices": ["cpu"], "dtypes": ["float32"], "spilled": 0}
    assert status["facts"] == {**made, "memory": f"{held} bytes"}


def test_hostile_names_survive_json():
    names = ["x<b>", "</script>", 'a"b\\c', "слой\u2028", "\x00"]
    book = Book()
    for name in names:
        book.add(name, [1.0])
    assert [
        row["module"]
        for row in strict(FrameBuilder(book.run().columns, book.info).update()[0])["rows"]
    ] == names


@pytest.mark.slow
def test_an_update_of_2000_sites_takes_milliseconds():
    """A wide bound: the figure itself is for the benchmarks."""
    book = Book()
    for layer in range(1000):
        book.add(f"l{layer}", [1.0, 2.0], "input").add(f"l{layer}", [3.0, 4.0])
    block = book.flush().columns.tail(0)
    builder = FrameBuilder(book.columns, book.info)
    builder.update()
    taken = []
    for step in range(1, 21):
        later = {**block, "step": block["step"] + step, "order": block["order"] + 2000 * step}
        book.columns.append(later)
        start = time.thread_time()
        builder.update()
        taken.append(time.thread_time() - start)
    assert np.median(taken) < 0.02
