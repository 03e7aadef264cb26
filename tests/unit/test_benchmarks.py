import pytest

from benchmarks.step_cost import Rounds, _msprobe_rows
from benchmarks.table import END, START, Row, markdown, refresh, verdict
from benchmarks.timing import Ratio, Stopwatch, added, between, ratio


def test_a_measured_time_is_compared_with_the_mean_of_its_neighbours():
    # (1 + 3) / 2 = 2 and (3 + 5) / 2 = 4
    assert between([1.0, 3.0, 5.0], [4.0, 6.0]) == [2.0, 1.5]


def test_a_machine_that_slows_down_steadily_changes_no_ratio():
    # every run of the same work takes one second more than the one before it
    assert between([10.0, 12.0, 14.0], [11.0, 13.0]) == [1.0, 1.0]


def test_one_bare_time_too_few_is_an_error():
    with pytest.raises(ValueError, match="zip"):
        between([1.0, 1.0], [1.0, 1.0])


def test_added_time_is_compared_with_added_time():
    # we add 0.5 and 0.2 of a step, they add 2 and 0.8
    assert added([1.5, 1.2], [3.0, 1.8]) == pytest.approx([0.25, 0.25])


def test_rounds_give_median_and_range():
    assert ratio([1.4, 1.1, 9.0]) == Ratio(1.4, 1.1, 9.0, 3)


def test_the_stopwatch_runs_as_often_as_asked_and_divides():
    seen = []
    watch = Stopwatch()
    watch._now = iter((10.0, 16.0)).__next__
    assert watch.per_run(lambda: seen.append(1), 4) == 1.5
    assert len(seen) == 4


@pytest.mark.parametrize(
    ("median", "bar", "today", "words"),
    [
        (1.2, 1.2, 1.9, "meets the bar"),
        (1.21, 1.2, 1.9, "meets today's bar"),
        (1.91, 1.2, 1.9, "misses today's bar"),
        (1.21, 1.2, None, "misses the bar"),
        (1.21, None, None, "for comparison"),
    ],
)
def test_verdict(median, bar, today, words):
    assert verdict(Row("x", Ratio(median, 1.0, 2.0, 3), bar, today)) == words


def test_what_was_not_measured_shows_no_number():
    row = Row("against msProbe", None, 0.125, 0.5, "msProbe could not be installed")
    last = markdown([row]).splitlines()[-1]
    assert last == (
        "| against msProbe | 0.125 | 0.5 |  | not measured: msProbe could not be installed |"
    )


def test_a_line_of_the_table():
    rows = [Row("a", Ratio(1.1834, 1.0204, 12.5, 5), 1.2, 1.9)]
    assert markdown(rows).splitlines()[-1] == (
        "| a | 1.2 | 1.9 | 1.18 (1.020 to 12.50) | meets the bar |"
    )


def test_msprobe_rows_follow_from_both_sides():
    all_roles = "every role, exact histograms"
    found = Rounds(ours={all_roles: [1.5, 1.1, 1.3]}, theirs={"L0": [3.0, 2.0, 2.5]})
    alone, against = _msprobe_rows("tiny", "L0", found)
    assert alone.measured == Ratio(2.5, 2.0, 3.0, 3)
    # 0.5 / 2, 0.1 / 1, 0.3 / 1.5
    assert against.measured.median == pytest.approx(0.2)
    assert (against.measured.low, against.measured.high) == pytest.approx((0.1, 0.25))
    assert (against.bar, against.today) == (0.125, 0.5)


def test_msprobe_that_ended_midway_gives_no_numbers():
    found = Rounds(theirs={"L0": [3.0]}, missing={"L0": "msProbe L0 ended early"})
    assert [row.measured for row in _msprobe_rows("tiny", "L0", found)] == [None, None]


def test_refresh_replaces_what_stands_between_the_markers(tmp_path):
    path = tmp_path / "README.md"
    path.write_text(f"before\n{START}\nold\n{END}\nafter\n", encoding="utf-8")
    assert refresh(path, "new")
    assert path.read_text(encoding="utf-8") == f"before\n{START}\nnew\n{END}\nafter\n"
    assert refresh(path, "newer")
    assert path.read_text(encoding="utf-8") == f"before\n{START}\nnewer\n{END}\nafter\n"


@pytest.mark.parametrize("text", ["no markers", f"{START} but no end", f"{END} {START}"])
def test_refresh_leaves_a_file_without_markers_alone(tmp_path, text):
    path = tmp_path / "README.md"
    path.write_text(text, encoding="utf-8")
    assert not refresh(path, "new")
    assert path.read_text(encoding="utf-8") == text


def test_refresh_needs_no_file(tmp_path):
    assert not refresh(tmp_path / "README.md", "new")
    assert not (tmp_path / "README.md").exists()
