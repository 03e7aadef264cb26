"""The table of calls: what it holds, and when it holds no more."""

from __future__ import annotations

import threading

import pytest

from probe_nb.errors import ProbeWarning
from probe_nb.store.calls import COLUMNS, Callee, Calls, Frame


def test_an_empty_table_has_its_columns() -> None:
    """So that a question about it is no error."""
    frame = Calls().frame()
    assert tuple(frame.columns) == COLUMNS
    assert frame.empty


def test_rows_refuse_to_grow_beyond_the_budget_and_say_so_once() -> None:
    """What is held stays; a call that is refused has no row that another could point at."""
    notices: list[str] = []
    table = Calls(budget=96, notices=notices)
    callee = table.callees.code(Callee("model", "", "Net"))
    assert [table.add(callee, n, step=n) for n in range(3)] == [0, 1, 2]
    with pytest.warns(ProbeWarning, match="from step 3 on") as warned:
        assert [table.add(callee, n, step=n) for n in range(3, 6)] == [-1, -1, -1]
    assert len(warned) == 1
    assert len(notices) == 1
    assert table.frame()["step"].tolist() == [0, 1, 2]


def test_distinct_stacks_count_against_the_budget() -> None:
    """A hundred bytes for each frame; equal ones are held once."""
    table = Calls(budget=1000)
    for line in range(9):
        assert table.stack((Frame("a.py", line, "f", ""),)) == line
        assert table.stack((Frame("a.py", line, "f", ""),)) == line
    assert table.add(0, 0, step=0) == 0
    table.stack((Frame("b.py", 1, "f", ""),))
    with pytest.warns(ProbeWarning, match="1 calls"):
        assert table.add(0, 0, step=0) == -1
    assert table.stack((Frame("c.py", 1, "f", ""),)) == -1


def test_threads_that_add_at_once_get_rows_of_their_own() -> None:
    """Each row is where its number says."""
    table, found = Calls(), {}

    def work(number: int) -> None:
        found[number] = [table.add(number, call, step=0) for call in range(2000)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    columns = table.columns()
    assert sorted(row for rows in found.values() for row in rows) == list(range(8000))
    for number, rows in found.items():
        assert (columns["site"][rows] == number).all()
        assert (columns["call"][rows] == range(2000)).all()


def test_taking_another_table_in_moves_its_parents_and_codes() -> None:
    """As in a run that is joined from those of several ranks."""
    one, two = Calls(), Calls()
    for rank, table in enumerate((one, two)):
        for name in ("b", "a") if rank else ("a",):
            table.callees.code(Callee("model", name, "M"))
        root = table.add(0, 0, step=0, rank=rank)
        stack = table.stack((Frame(f"{rank}.py", 1, "f", "x"),))
        table.add(len(table.callees.values) - 1, 0, step=0, rank=rank, parent=root, stack=stack)
    one.take(two)
    frame = one.frame()
    assert frame["module"].tolist() == ["a", "a", "b", "a"]
    assert frame["parent"].fillna(-1).tolist() == [-1, 0, -1, 2]
    assert frame["rank"].tolist() == [0, 0, 1, 1]
    assert frame["stack"].astype(object).fillna("").tolist() == [
        "",
        "File 0.py, line 1, in f\n    x",
        "",
        "File 1.py, line 1, in f\n    x",
    ]
