"""Files of a run that somebody removed: what is missing is said, and the rest is shown."""

from __future__ import annotations

import shutil

import pytest

from probe_nb.run import Run
from probe_nb.store.columns import Columns
from tests import records

LAST = 9
NAN = {"nan_count": 3}


def spilled(nan_at=None):
    """Return a run of ten steps; all but the last are on disk, a file each."""
    columns = Columns(budget=1)
    for step in range(LAST + 1):
        row = {"step": step, "max": step + 0.5, "absmax": step + 0.5, "numel": 4}
        b = row | {"module": "b"} | (NAN if step == nan_at else {})
        records.append(columns, [row | {"module": "a"}, b])
    assert columns.spilled == 2 * LAST
    return Run(records.info(ended="finished"), columns)


def files(run):
    return [part.path for part in run.columns._blocks if hasattr(part, "path")]


def shown(run):
    """Return the run as a text and as a page; long notices are wrapped."""
    bundle = run._repr_mimebundle_()
    return [" ".join(text.split()) for text in (repr(run), *bundle.values())]


@pytest.mark.parametrize("seen_before", [False, True])
def test_a_run_whose_folder_is_gone_says_so_and_shows_the_rest(seen_before):
    run = spilled(nan_at=LAST)
    if seen_before:
        repr(run)
    shutil.rmtree(files(run)[0].parent)
    for text in shown(run):
        assert "18 records of steps 0 to 8 are gone: somebody removed" in text
        assert "· 1 step · 2 modules · 2 records · finished" in text
        assert "NaN first appeared at step 9 in b (forward output)" in text
        assert "3 NaN of 4 elements" in text


@pytest.mark.parametrize("removed", [0, 2, 4, 8])
def test_what_lies_in_the_other_files_is_found_under_its_own_row(removed):
    run = spilled(nan_at=6)
    files(run)[removed].unlink()
    for text in shown(run):
        assert f"2 records of step {removed} are gone" in text
        assert "NaN first appeared at step 6 in b (forward output)" in text
        assert "3 NaN of 4 elements" in text


def test_a_finding_whose_records_are_gone_is_not_shown_from_memory():
    run = spilled(nan_at=3)
    assert "NaN first appeared at step 3" in repr(run)
    files(run)[3].unlink()
    for text in shown(run):
        assert "2 records of step 3 are gone" in text
        assert "NaN first appeared" not in text


def test_nothing_is_said_while_all_is_there():
    assert not any("are gone" in text for text in shown(spilled()))


@pytest.mark.parametrize(
    "ask",
    [
        lambda run, _: run.frame(module="a"),
        lambda run, _: run.frame(step=2),
        lambda run, _: run.history("a"),
        lambda run, _: run.histogram("a", step=2),
        lambda run, _: run.coverage(),
        lambda run, path: run.save(path / "run"),
    ],
    ids=["frame", "step", "history", "histogram", "coverage", "save"],
)
def test_a_question_that_needs_what_is_gone_is_refused_in_words(ask, tmp_path):
    run = spilled()
    path = files(run)[2]
    path.unlink()
    with pytest.raises(FileNotFoundError, match="2 records of step 2 are gone") as refused:
        ask(run, tmp_path)
    assert f"`{path}`" in str(refused.value)
    assert "run.save(path)" in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_a_question_that_does_not_need_it_is_answered():
    run = spilled()
    files(run)[2].unlink()
    assert run.frame(step=[1, 3, 9])["max"].tolist() == [1.5, 1.5, 3.5, 3.5, 9.5, 9.5]
    assert len(run) == 20


def test_recording_goes_on_in_a_new_folder():
    run = spilled()
    old = files(run)[0].parent
    shutil.rmtree(old)
    for step in (10, 11, 12):
        records.append(run.columns, [{"step": step, "max": step + 0.5}])
    (new,) = {path.parent for path in files(run)[LAST:]}
    assert new != old
    assert run.columns.spilled == 20 + 2
    assert run.frame(step=range(9, 13))["max"].tolist() == [9.5, 9.5, 10.5, 11.5, 12.5]
    assert any(f"`{new}`" in notice for notice in run.columns.notices)
