"""Tables inside the file of a run: whole again, or refused."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import probe_nb as probe
from probe_nb.errors import RunFormatError
from probe_nb.run import Run
from probe_nb.store import beside, files
from probe_nb.store.calls import Callee, Calls, Frame
from probe_nb.store.columns import Columns
from probe_nb.terms import RunInfo, Site

if TYPE_CHECKING:
    from pathlib import Path

FRAME = Frame("Cell In[3]", 2, "forward", "return self.fc(x)  # ümlaut")
SITE = Site("model", "fc", "Linear", "", "forward", "input", "1")


def make() -> Run:
    """Return a run of no records, with two calls and one value."""
    run = Run(RunInfo("", "", {}, 1, {}, {}, []))
    table = run.call_table
    root, fc = (table.callees.code(Callee("model", *each)) for each in (("", "Net"), ("fc", "Li")))
    around = table.add(root, 0, step=7, micro_step=1, rank=3)
    stack = table.stack((FRAME, FRAME._replace(line=9)))
    table.add(fc, 4, step=7, micro_step=1, rank=3, parent=around, stack=stack)
    run.value_table.add(SITE, "int", 5, step=7)
    return run


def rewritten(path: Path, key: str, text: bytes) -> None:
    """Replace what lies under a key of the file's metadata."""
    schema = pq.read_schema(path)
    metadata = {**pq.read_metadata(path).metadata, key.encode(): text}
    metadata.pop(b"ARROW:schema", None)
    pq.write_table(pq.read_table(path).replace_schema_metadata(metadata), path)
    assert schema.names == pq.read_schema(path).names


def test_a_table_is_the_same_after_it_was_text() -> None:
    """What is decoded is what was encoded, and the text is ASCII."""
    table = pa.table({"a": [1, None], "b": ["ü", ""]}, metadata={"x": "y"})
    text = beside.encode(table)
    assert text.isascii()
    assert beside.decode(text).equals(table, check_metadata=True)


def test_every_damaged_byte_is_noticed() -> None:
    """No byte of the text can be changed, and no end cut off, without a refusal."""
    text = beside.encode(pa.table({"a": list(range(20))}))
    for place in range(len(text)):
        changed = bytearray(text)
        changed[place] = ord("A") if changed[place] != ord("A") else ord("B")
        with pytest.raises(RunFormatError):
            beside.decode(bytes(changed))
    for end in range(len(text)):
        with pytest.raises(RunFormatError):
            beside.decode(text[:end])


def test_calls_and_values_are_saved_inside_the_file(tmp_path: Path) -> None:
    """A run that is loaded has them, name by name and number by number."""
    make().save(tmp_path / "a.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]
    run = probe.load(tmp_path / "a.parquet")
    calls = run.calls()
    assert calls["module"].tolist() == ["", "fc"]
    assert calls["type"].tolist() == ["Net", "Li"]
    assert calls["call"].tolist() == [0, 4]
    assert calls["step"].tolist() == [7, 7]
    assert calls["micro_step"].tolist() == [1, 1]
    assert calls["rank"].tolist() == [3, 3]
    assert calls["parent"].isna().tolist() == [True, False]
    assert calls["parent"][1] == 0
    assert calls["stack"].isna().tolist() == [True, False]
    assert calls["stack"][1] == (
        "File Cell In[3], line 2, in forward\n    return self.fc(x)  # ümlaut\n"
        "File Cell In[3], line 9, in forward\n    return self.fc(x)  # ümlaut"
    )
    assert run.call_table.stacks.values == [(FRAME, FRAME._replace(line=9))]
    assert [(each.site, each.value) for each in run.value_table] == [(SITE, 5)]


def test_copies_and_pickles_have_them_and_are_their_own() -> None:
    """What a copy takes in is not in the original."""
    run = make()
    for other in (copy.deepcopy(run), pickle.loads(pickle.dumps(run))):
        assert other.calls().equals(run.calls())
        other.call_table.add(0, 5, step=8)
        assert len(other.call_table) == 3
        assert len(run.call_table) == 2
        assert len(other.value_table) == 1


def test_a_file_without_tables_is_read(tmp_path: Path) -> None:
    """As an older version wrote it: there are no calls and no values."""
    path = files.save(tmp_path / "old.parquet", Columns(), make().info)
    assert list(pq.read_metadata(path).metadata) == [b"ARROW:schema", b"probe_nb"]
    run = probe.load(path)
    assert run.calls().empty
    assert len(run.value_table) == 0


@pytest.mark.parametrize("key", [beside.CALLS, beside.VALUES])
def test_a_damaged_table_is_refused_by_its_name(tmp_path: Path, key: str) -> None:
    """Whether the text or what is in it makes no sense; the message says which table."""
    for text in (b"", b"nonsense", beside.encode(pa.table({"step": [1]}))):
        path = make().save(tmp_path / "a.parquet")
        rewritten(path, key, text)
        with pytest.raises(RunFormatError, match=f"`{key}`.*damaged"):
            probe.load(path)


def test_calls_that_point_nowhere_are_refused() -> None:
    """At a callee, a stack or a call that is not there, or at one that began later."""
    sound = make().call_table.to_table()
    assert len(Calls.from_table(sound)) == 2
    for name, values in (
        ("site", [0, 2]),
        ("site", [-1, 0]),
        ("stack", [-1, 1]),
        ("stack", [-2, -1]),
        ("parent", [1, 0]),
        ("parent", [0, -1]),
        ("parent", [0, 2]),
    ):
        column = pa.array(values, sound.schema.field(name).type)
        table = sound.set_column(sound.schema.get_field_index(name), name, column)
        with pytest.raises(ValueError, match="not there"):
            Calls.from_table(table)
    nothing = pa.array([None, 0], sound.schema.field("call").type)
    with pytest.raises(ValueError, match="without a number"):
        Calls.from_table(sound.set_column(sound.schema.get_field_index("call"), "call", nothing))


def test_a_thousand_equal_steps_take_hardly_more_than_one() -> None:
    """A million calls of a model that does the same in every step fit the metadata of a file."""
    table = Calls(budget=None)
    callees = [table.callees.code(Callee("model", f"m{n}", "M")) for n in range(100)]
    for step in range(1000):
        rows: list[int] = []
        for n, callee in enumerate(callees):
            parent = rows[n // 2] if n else -1
            rows.append(table.add(callee, 0, step=step, parent=parent))
    text = beside.encode(table.to_table())
    assert len(text) < 400_000
    again = Calls.from_table(beside.decode(text))
    assert (again.columns() == table.columns()).all()
