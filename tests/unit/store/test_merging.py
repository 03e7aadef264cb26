"""The runs of several processes, laid together as one."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.errors import ConfigError, ProbeWarning, RunFormatError, SelectionError
from probe_nb.run import merge
from probe_nb.store import merging
from tests.models import no_faults

DATA = ["step", "micro_step", "call", "module", "role", "leaf", "shape", "mean", "l2"]


def watched(rank=None, *, steps=3, extra=False, world=None, scale=1.0, **options):
    """Return a run as one process of several would leave it."""
    layers = [nn.Linear(3, 4), nn.ReLU(), *([nn.Tanh(), nn.Linear(4, 4)] if extra else [])]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with no_faults(), probe.watch(model, optimizer=optimizer, live=False, **options) as run:
        for step in range(steps):
            model(torch.full((2, 3), scale * (step + 1))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    run.info.rank, run.info.world = rank, world
    return run


def own(frame, rank):
    return frame[frame["rank"] == rank]


def test_rows_of_every_rank_are_all_there_in_their_order():
    runs = [watched(0), watched(1, extra=True, steps=5), watched(2, steps=1)]
    merged = merge(runs)
    assert len(merged) == sum(map(len, runs))
    for rank, run in enumerate(runs):
        mine = own(merged.df, rank)
        assert mine["order"].is_monotonic_increasing
        pd.testing.assert_frame_equal(
            mine[DATA].astype(dict.fromkeys(DATA[3:7], str)).reset_index(drop=True),
            run.df.sort_values("order")[DATA]
            .astype(dict.fromkeys(DATA[3:7], str))
            .reset_index(drop=True),
        )


def test_order_is_one_line_through_all_ranks_step_by_step():
    merged = merge([watched(0), watched(1, extra=True)])
    frame = merged.df
    assert frame["order"].tolist() == list(range(len(frame)))
    assert frame["step"].is_monotonic_increasing
    first = frame[frame["step"] == 1]
    assert first["rank"].head(6).tolist() == [0, 1, 0, 1, 0, 1]


def test_a_gradient_of_an_earlier_step_stays_where_its_rank_had_it():
    def late(rank):
        model = nn.Linear(2, 1)
        with probe.watch(model, live=False, roles="output,grad_output") as run:
            first = model(torch.ones(1, 2)).sum()
            run.step()
            second = model(torch.ones(1, 2)).sum()
            first.backward()
            second.backward()
        run.info.rank = rank
        return run

    runs = [late(0), late(1)]
    steps = runs[0].df.sort_values("order")["step"].tolist()
    assert steps != sorted(steps)  # else this holds nothing
    merged = merge(runs)
    assert own(merged.df, 0)["step"].tolist() == steps == own(merged.df, 1)["step"].tolist()


def test_histograms_follow_their_rows():
    runs = [watched(0, scale=1.0), watched(1, scale=1024.0)]
    merged = merge(runs)
    for rank, run in enumerate(runs):
        mine = merged.histogram("(root)", "input", 2, rank=rank)
        assert mine == run.histogram("(root)", "input", 2)
        assert mine.total == 6
        assert np.flatnonzero(mine.bins).size or len(mine.bins) == 1


def test_what_exceeds_the_memory_goes_to_disk_and_nothing_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(merging, "_BLOCK", 100)
    runs = [watched(rank, steps=20) for rank in range(2)]
    for run in runs:
        run.save(tmp_path / "job")
    small = probe.load(tmp_path / "job", memory="16KiB")
    whole = probe.load(tmp_path / "job")
    assert small.columns.spilled > 500
    assert small.df["order"].tolist() == list(range(len(whole)))
    pd.testing.assert_frame_equal(small.frame(), whole.df)


def test_calls_of_each_rank_keep_their_parents():
    merged = merge([watched(0, level="mix"), watched(1, level="mix")])
    calls = merged.calls()
    assert set(calls["rank"]) == {0, 1}
    for rank in (0, 1):
        mine = calls[(calls["rank"] == rank) & (calls["api"] == "Functional.linear")]
        parents = calls.loc[mine["parent"].astype(int)]
        assert set(parents["rank"]) == {rank}
        assert set(parents["module"]) == {"0"}


def test_values_say_before_which_row_they_came():
    def saved(rank):
        model = nn.Linear(2, 1)
        with probe.watch(model, live=False, roles="output") as run:
            model(torch.ones(1, 2))
            probe.save(rank * 10 + 1, "number")
            model(torch.ones(1, 2))
        run.info.rank = rank
        return run

    runs = [saved(0), saved(1)]
    merged = merge(runs)
    found = merged.values()
    assert found[["rank", "value"]].values.tolist() == [[0, 1], [1, 11]]
    for rank, run in enumerate(runs):
        place = run.df["order"].searchsorted(run.values()["order"].iloc[0])
        mine = own(merged.df, rank)["order"].tolist()
        assert found["order"].iloc[rank] == mine[place]


def test_kept_tensors_are_asked_for_by_rank(tmp_path):
    for rank in range(2):
        watched(rank, scale=10.0**rank, keep="(root)").save(tmp_path / "job")
    run = probe.load(tmp_path / "job")
    assert run.tensor("(root)", step=1, rank=0).tolist() == [[2.0] * 3] * 2
    assert run.tensor("(root)", step=1, rank=1).tolist() == [[20.0] * 3] * 2
    with pytest.raises(SelectionError, match=r"several ranks; give `rank=`, one of \[0, 1\]"):
        run.tensor("(root)", step=1)
    again = probe.load(run.save(tmp_path / "all.parquet"))
    assert again.tensor("(root)", step=1, rank=1).tolist() == [[20.0] * 3] * 2
    assert set(again.kept()["rank"]) == {0, 1}


def test_a_merged_run_is_saved_and_loaded_as_it_is(tmp_path):
    merged = merge([watched(0, level="mix"), watched(3, level="mix")])
    again = probe.load(merged.save(tmp_path / "all.parquet"))
    pd.testing.assert_frame_equal(again.df, merged.df)
    pd.testing.assert_frame_equal(again.calls(), merged.calls())
    assert again.info == merged.info
    assert [*again.info.processes] == ["0", "3"]


def test_merged_runs_can_be_merged_again():
    twice = merge([merge([watched(0), watched(2)]), watched(1)])
    assert sorted(twice.info.processes) == ["0", "1", "2"]
    assert set(twice.df["rank"]) == {0, 1, 2}


# -- one statistic, rank by rank -------------------------------------------------------------------


def test_history_and_inputs_of_one_rank_are_its_own():
    merged = merge([watched(0, scale=1.0), watched(1, scale=100.0)])
    assert merged.history("(root)", "input", "max", rank=0).tolist() == [1.0, 2.0, 3.0]
    assert merged.history("(root)", "input", "max", rank=1).tolist() == [100.0, 200.0, 300.0]
    assert merged.history("(root)", "input", "max").tolist() == [100.0, 200.0, 300.0]
    assert merged.history("(root)", "input", "mean").tolist() == [50.5, 101.0, 151.5]
    assert merged.inputs("(root)", 2, rank=1)["max"].tolist() == [300.0]
    assert len(merged.frame(rank=1, role="input", module="(root)")) == 3
    with pytest.raises(SelectionError, match=r"of rank 7\. Its ranks are 0, 1"):
        merged.history("(root)", "input", rank=7)


def test_ranks_are_drawn_side_by_side():
    import matplotlib as mpl

    mpl.use("agg")
    runs = [watched(rank, scale=float(rank + 1)) for rank in range(11)]
    merged = merge(runs)
    ax = merged.plot.trend("(root)", "input", "max", rank="*")
    assert [line.get_label() for line in ax.lines[:11]] == [f"(root) rank {n}" for n in range(11)]
    for rank in range(11):
        assert ax.lines[rank].get_ydata().tolist() == [rank + 1.0, 2 * rank + 2.0, 3 * rank + 3.0]
    ax = merged.plot.trend("(root)", "input", "max", rank=[0, 10])
    assert [line.get_label() for line in ax.lines[:2]] == ["(root) rank 0", "(root) rank 10"]
    ax = merged.plot.trend("(root)", "input", "max", rank=3)
    assert ax.lines[0].get_ydata().tolist() == [4.0, 8.0, 12.0]
    cells = merged.plot.heatmap("max", "input", "(root)", rank="*").images[0].get_array()
    assert cells.shape == (11, 3)
    assert cells[10].tolist() == [11.0, 22.0, 33.0]


# -- where NaN was born -----------------------------------------------------------------------------


def poisoned(rank, when, *, extra=False):
    """Return a run in which NaN comes out of a module in one step; None for never."""

    class Layer(nn.Module):
        def forward(self, x):
            return x * (float("nan") if self.bad else 1.0)

    layer = Layer()
    model = nn.Sequential(*[nn.Identity() for _ in range(8 if extra else 1)], layer)
    with probe.watch(model, live=False) as run:
        for step in range(5):
            layer.bad = step == when
            model(torch.ones(2, 2))
    run.info.rank = rank
    return run


@pytest.mark.parametrize("long", [0, 1])
def test_nan_was_born_in_the_rank_whose_step_was_first(long):
    runs = [poisoned(0, 3, extra=long == 0), poisoned(1, 2, extra=long == 1)]
    found = merge(runs).first_nonfinite()
    assert (found.rank, found.step) == (1, 2)
    assert found.sentence.startswith("NaN first appeared at step 2 on rank 1 in ")
    assert set(found.rows["rank"]) == {1}
    assert "NaN first appeared at step 2 on rank 1" in merge(runs).findings()["sentence"].iloc[0]


def test_in_the_same_step_the_rank_that_had_come_less_far_is_the_first():
    runs = [poisoned(0, 2, extra=True), poisoned(1, 2)]
    assert merge(runs).first_nonfinite().rank == 1


def test_of_one_rank_alone_no_rank_is_named():
    found = merge([poisoned(4, 1)]).first_nonfinite()
    assert found.rank == 4
    assert "rank" not in found.sentence


# -- folders ------------------------------------------------------------------------------------------


def test_each_process_writes_a_file_of_its_own_into_the_folder(tmp_path):
    runs = [watched(0), watched(1)]
    assert runs[0].save(f"{tmp_path}/job/") == tmp_path / "job" / "rank0.parquet"
    assert runs[1].save(tmp_path / "job") == tmp_path / "job" / "rank1.parquet"
    assert runs[1].save(tmp_path / "by-name-{rank}.parquet") == tmp_path / "by-name-1.parquet"
    pd.testing.assert_frame_equal(probe.load(tmp_path / "job").df, merge(runs).df)


def test_a_path_without_an_ending_is_a_folder_only_where_there_are_several(tmp_path):
    assert watched(1).save(tmp_path / "job") == tmp_path / "job" / "rank1.parquet"
    assert watched(None).save(tmp_path / "alone") == tmp_path / "alone"
    assert len(probe.load(tmp_path / "alone"))


def test_who_launches_processes_tells_them_their_rank(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "5")
    path = watched(None).save(f"{tmp_path}/job/")
    assert path.name == "rank5.parquet"
    assert set(probe.load(tmp_path / "job").df["rank"]) == {5}


def test_the_run_of_another_process_is_not_overwritten(tmp_path):
    watched(0).save(tmp_path / "run.parquet")
    watched(0).save(tmp_path / "run.parquet")
    with pytest.raises(FileExistsError, match="run of rank 0, and this one is of rank 1"):
        watched(1).save(tmp_path / "run.parquet")
    with pytest.raises(ConfigError, match="asks for a rank"):
        watched(None).save(tmp_path / "run{rank}.parquet")
    assert set(probe.load(tmp_path / "run.parquet").df["rank"].isna()) == {True}


def test_a_rank_may_be_read_from_the_name_of_the_file(tmp_path):
    for number in (0, 1):
        watched(None).save(tmp_path / f"run-{number}.parquet")
    assert set(probe.load(tmp_path).df["rank"]) == {0, 1}
    watched(None).save(tmp_path / "mine.parquet")
    with pytest.raises(RunFormatError, match=r"`.*mine.parquet` does not say of which rank"):
        probe.load(tmp_path)


def test_two_of_one_rank_are_refused(tmp_path):
    watched(1).save(tmp_path / "one.parquet")
    watched(1).save(tmp_path / "two.parquet")
    with pytest.raises(
        RunFormatError, match=r"one.parquet` and `.*two.parquet` are both of rank 1"
    ):
        probe.load(tmp_path)


def test_what_an_earlier_job_left_is_told_from_this_one(tmp_path):
    watched(0, world=2).save(tmp_path / "job")
    watched(3, world=4).save(tmp_path / "job")
    with pytest.raises(
        RunFormatError, match=r"no processes of one job: .*rank0.parquet` is one of 2"
    ):
        probe.load(tmp_path / "job")


def test_missing_ranks_are_said(tmp_path):
    for rank in (0, 2):
        watched(rank, world=4).save(tmp_path / "job")
    run = probe.load(tmp_path / "job")
    assert run.info.notices == ["Of 4 processes 2 are here; ranks 1 and 3 are missing."]
    assert "ranks 1 and 3 are missing" in repr(run)


def test_a_damaged_file_is_left_out_and_that_is_said(tmp_path):
    for rank in (0, 1, 2):
        watched(rank, world=3).save(tmp_path / "job")
    path = tmp_path / "job" / "rank1.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.warns(ProbeWarning, match="one file was left out"):
        run = probe.load(tmp_path / "job")
    assert set(run.df["rank"]) == {0, 2}
    assert "rank1.parquet` is not a saved run" in run.info.notices[0]
    assert "rank 1 is missing" in run.info.notices[1]


def test_a_folder_of_which_nothing_can_be_read_is_no_run(tmp_path):
    (tmp_path / "rank0.parquet").write_bytes(b"nothing")
    with pytest.raises(RunFormatError, match=r"Nothing in .* can be read"):
        probe.load(tmp_path)


def test_a_run_of_a_newer_version_is_left_out_and_that_is_said(tmp_path):
    for rank in (0, 1):
        watched(rank).save(tmp_path / "job")
    path = tmp_path / "job" / "rank1.parquet"
    table = pq.read_table(path)
    about = json.loads(table.schema.metadata[b"probe_nb"]) | {"version": 99}
    pq.write_table(table.replace_schema_metadata({"probe_nb": json.dumps(about)}), path)
    with pytest.warns(ProbeWarning, match="is a run of format 99"):
        assert set(probe.load(tmp_path / "job").df["rank"]) == {0}


def test_what_differs_between_processes_is_said():
    runs = [watched(0), watched(1), watched(2, steps=2, roles="input")]
    runs[1].info.versions["torch"] = "1.0"
    runs[2].info.notices.append("something happened")
    runs[2].info.ended = "interrupted"
    notices = "\n".join(merge(runs).info.notices)
    assert "Ranks differ in the version of torch: " in notices
    assert "1.0 on rank 1" in notices
    assert (
        "Ranks differ in how the watch ended: finished on ranks 0 and 1, interrupted on rank 2."
        in notices
    )
    assert "the number of steps: 3 on ranks 0 and 1, 2 on rank 2" in notices
    assert "`roles=`" in notices
    assert "Rank 2: something happened" in notices
    assert merge(runs).info.ended == "interrupted"
    assert merge(runs).info.processes["2"]["ended"] == "interrupted"


def test_runs_begun_hours_apart_are_asked_about():
    runs = [watched(0), watched(1)]
    runs[0].info.created = "2020-01-01T00:00:00+00:00"
    runs[1].info.created = "2020-01-01T03:00:00+00:00"
    assert merge(runs).info.notices == ["The runs were begun 3.0 hours apart: are they of one job?"]


# -- what is the matter with it --------------------------------------------------------------------


def job(rates, *, start=(0.0, 0.0)):
    """Return the run of two processes that are fed alike and step by so much, by rank."""
    runs = []
    for rank in range(2):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        nn.init.constant_(model.bias, start[rank])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with probe.watch(model, optimizer=optimizer, live=False) as run:
            for step in range(4):
                model(torch.full((2, 3), step + 1.0)).sum().backward()
                optimizer.param_groups[0]["lr"] = rates[rank][step]
                optimizer.step()
                optimizer.zero_grad()
        run.info.rank = rank
        runs.append(run)
    return merge(runs)


def test_parameters_that_part_are_an_error_of_the_whole_run():
    found = job([[0.1] * 4, [0.1, 0.1, 0.2, 0.1]]).findings()
    found = found[found["kind"] == "drift"]
    assert found[["severity", "step"]].values.tolist() == [["error", 2]]
    assert "differ after the optimizer step of step 2" in found["sentence"].item()


def test_equal_parameters_and_those_that_differ_from_the_start_are_none():
    same, apart = job([[0.1] * 4] * 2), job([[0.1] * 4] * 2, start=(0.0, 1.0))
    assert "drift" not in same.findings()["kind"].tolist()
    assert "drift" not in apart.findings()["kind"].tolist()
    assert probe.compare_ranks(same).fine
    said = probe.compare_ranks(apart)
    assert not said.fine
    assert said.df["severity"].tolist()[0] == "warning"
    assert probe.compare_ranks(apart, ignore="*").fine


def test_one_bit_of_one_element_is_seen():
    merged = job([[0.1] * 4] * 2, start=(1.0, float(np.nextafter(np.float32(1), np.float32(2)))))
    found = probe.compare_ranks(merged).df.iloc[0]
    assert (found["kind"], found["step"]) == ("drift", 0)
    assert found["detail"].startswith("1 parameter: bias")


def test_a_run_of_one_rank_has_nobody_to_compare_with():
    with pytest.raises(SelectionError, match=r"all of rank 3\. Save each process"):
        probe.compare_ranks(merge([watched(3)]))
    with pytest.raises(ConfigError, match="above 1"):
        probe.compare_ranks(merge([watched(0), watched(1)]), outlier=0.5)


def test_the_ranks_that_a_comparison_lacks_are_named():
    with pytest.raises(SelectionError, match=r"rank 1, and ranks 0 and 2 of 3 missing\. Save"):
        probe.compare_ranks(merge([watched(1, world=3)]))


def test_a_rank_that_ends_early_is_named():
    found = probe.compare_ranks(merge([watched(0, steps=4), watched(1, steps=2)])).df
    stopped = found[found["kind"] == "stopped"]
    assert stopped["sentence"].tolist() == ["Rank 1 ends at step 1, others go on to step 3"]


def test_two_ranks_can_be_laid_side_by_side():
    said = probe.compare_ranks(job([[0.1] * 4, [0.2] * 4]))
    assert said.pair(0, 1).first_divergence().step <= 1


def test_what_is_shown_is_escaped():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_module("<b>", nn.Linear(2, 1))

        def forward(self, x):
            return self.get_submodule("<b>")(x)

    runs = []
    for rank in range(2):
        model = Odd()
        with probe.watch(model, live=False) as run:
            model(torch.ones(1, 2))
        run.info.rank = rank
        runs.append(run)
    page = probe.compare_ranks(merge(runs))._repr_html_()
    assert "&lt;b&gt;.weight" in page
    assert "<b>.weight" not in page


@pytest.mark.parametrize(
    ("name", "factor", "seen"),
    [
        ("mean", 1 + 1e-9, False),
        ("std", 1 + 1e-9, False),
        ("l2", 1 + 1e-9, False),
        ("l2", 1 + 1e-3, True),
        ("std", 1 + 1e-3, True),
        ("max", 1 + 1e-7, True),
        ("min", 1 + 1e-7, True),
    ],
)
def test_the_order_of_a_sum_is_no_drift_and_another_number_is(name, factor, seen):
    merged = job([[0.1] * 4] * 2)
    for block in merged.columns._blocks:
        rows = block.columns["rank"] == 1
        block.columns[name] = np.where(rows, factor * block.columns[name], block.columns[name])
    kinds = probe.compare_ranks(merged).df["kind"].tolist()
    assert ("drift" in kinds) is seen


def test_a_merged_table_may_take_what_those_of_its_members_may_and_no_more():
    runs = [watched(rank) for rank in range(3)]
    merged = merge(runs)
    for name in ("call_table", "value_table"):
        budgets = [getattr(run, name).budget for run in runs]
        assert getattr(merged, name).budget == sum(budgets) > 0
    for run in runs:
        run.call_table.budget = 32 * 4
    with pytest.warns(ProbeWarning, match="calls took"):
        cut = merge(runs)
    assert len(cut.call_table) == 12 < len(merged.call_table)
    runs[1].call_table.budget = None
    assert merge(runs).call_table.budget is None
