"""Findings: ranked, one per fault, the same however they were read, and the headline's one truth."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import probe_nb as probe
from probe_nb.analysis import findings as ranked
from probe_nb.analysis.finding import KINDS, SEVERITIES
from probe_nb.analysis.tally import Tally
from probe_nb.analysis.thresholds import Thresholds
from probe_nb.analysis.verdict import Judge, verdict
from probe_nb.errors import ConfigError
from tests.models import no_faults
from tests.unit.analysis.test_rules import normal
from tests.unit.view.make_runs import Book, hundred_layers, info

NAN = np.nan


def mixed():
    """A run with an error, a warning and a note, which begin in another order."""
    book = Book()
    for step in range(12):
        book.add("", normal(60.0), "input", step=step, kind="Net")
        values = normal(40.0 if step == 6 else 1.0)
        if step == 9:
            values[0, :3] = NAN
        book.add("a", values, step=step)
        book.add("", values, step=step, kind="Net")
        book.add("a", normal(), "grad_output", step=step)
    return book


class TestRank:
    def test_errors_come_before_warnings_before_notes(self):
        found = mixed().run().findings()
        assert found["severity"].tolist() == ["error", "warning", "note"]
        assert found["kind"].tolist() == ["non_finite", "sudden_change", "input_scale"]

    def test_of_one_severity_what_began_first_comes_first(self):
        book = Book()
        for step in range(8):
            book.add("late", np.zeros(8) if step >= 4 else normal(), step=step)
            book.add("tanh", [1.0, -1.0], kind="Tanh", step=step).add("end", normal(), step=step)
        assert book.run().findings()["kind"].tolist() == ["saturated", "dead"]

    def test_what_follows_from_a_nan_is_no_finding(self):
        book = Book()
        for step in range(8):
            bad = step >= 3
            book.add("a", [NAN] * 8 if bad else normal(), step=step)
            book.add("relu", np.zeros(8) if bad else normal(), kind="ReLU", step=step)
        found = book.run().findings()
        assert found["kind"].tolist() == ["non_finite"]

    def test_what_made_values_leave_all_bounds_is_the_cause_and_an_error(self):
        book = Book()
        for step in range(10):
            scale = 1.0 if step < 6 else 1e12
            book.add("", normal(scale), "input", step=step, kind="Net")
            values = normal(scale)
            if step >= 7:
                values[0] = NAN
            book.add("a", normal(scale), "input", step=step).add("a", values, step=step)
        found = book.run().findings()
        assert found["kind"].tolist() == ["sudden_change", "non_finite"]
        assert found["severity"].tolist() == ["error", "error"]
        assert "what came of it: NaN first appeared at step 7" in found["detail"][0]

    def test_the_same_in_many_sites_is_one_finding(self):
        run = hundred_layers(bad=50)
        found = run.findings()
        assert len(found) == 1
        assert (found["module"][0], found["step"][0]) == ("layers.50", 1)


class TestFrame:
    def test_every_column_is_what_it_says(self):
        run = mixed().run()
        found = run.findings()
        assert tuple(found.columns) == ranked.COLUMNS
        assert set(found["severity"]) <= set(SEVERITIES)
        assert set(found["kind"]) <= set(KINDS)
        assert found["advice"].str.len().gt(20).all()
        for row in found.itertuples():
            named = run.df.loc[row.rows]
            assert {(row.module, row.role)} <= set(zip(named["module"], named["role"], strict=True))

    def test_a_healthy_run_has_an_empty_frame_with_the_same_columns(self):
        found = Book().add("a", normal()).run().findings()
        assert (len(found), tuple(found.columns)) == (0, ranked.COLUMNS)
        assert found["step"].dtype == np.int64

    def test_nothing_recorded_is_no_finding(self):
        assert Book(info=info()).run().findings().empty

    def test_a_frame_can_be_written_and_read(self, tmp_path):
        found = mixed().run().findings()
        found.drop(columns="rows").to_csv(tmp_path / "found.csv", index=False)
        read = pd.read_csv(tmp_path / "found.csv", keep_default_na=False)
        assert read["sentence"].tolist() == found["sentence"].tolist()

    def test_a_copy_and_a_saved_run_say_the_same(self, tmp_path):
        run = mixed().run()
        want = run.findings()
        loaded = probe.load(run.save(tmp_path / "run.probe"))
        for other in (copy.deepcopy(run), pickle.loads(pickle.dumps(run)), loaded):
            pd.testing.assert_frame_equal(other.findings(), want)


class TestThresholds:
    def test_each_can_be_changed_for_one_question(self):
        run = Book().add("a", [1.0, 30000.0], dtype="float16").run()
        assert run.findings()["kind"].tolist() == ["overflow_risk"]
        assert run.findings(overflow_headroom=0.5).empty
        assert run.findings()["kind"].tolist() == ["overflow_risk"]

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"overflow_headrom": 0.5}, "The closest are `overflow_headroom`"),
            ({"lasting": "3"}, "give a number"),
            ({"lasting": True}, "give a number"),
            ({"gain": 0}, "give a number above 0"),
            ({"gain": NAN}, "give a number above 0"),
            ({"lasting": 2.5}, "it counts, so give a whole number"),
            ({"update_steps": float("inf")}, "it counts, so give a whole number"),
        ],
    )
    def test_a_mistake_is_told(self, change, words):
        with pytest.raises(ConfigError, match=words):
            Book().add("a", [1.0]).run().findings(**change)

    def test_a_count_may_be_written_as_any_whole_number(self):
        book = Book()
        for step in range(3):
            book.add("a", np.zeros(8), step=step).add("b", normal(), step=step)
        for lasting in (3, 3.0, np.int64(3), np.float64(3)):
            assert book.run().findings(lasting=lasting)["kind"].tolist() == ["dead"]

    def test_each_is_documented_where_it_stands_and_in_the_docs(self, pytestconfig):
        page = (pytestconfig.rootpath / "docs" / "findings.md").read_text()
        source = (pytestconfig.rootpath / "probe_nb" / "analysis" / "thresholds.py").read_text()
        for each in dataclasses.fields(Thresholds):
            assert f"`{each.name}`" in page, each.name
            assert f"    {each.name}: " in source
            assert source.split(f"    {each.name}: ")[1].split("\n")[1].strip().startswith('"""')

    def test_the_docs_have_every_kind(self, pytestconfig):
        page = (pytestconfig.rootpath / "docs" / "findings.md").read_text()
        assert [kind for kind in KINDS if f"`{kind}`" not in page] == []


class TestOneTruth:
    def test_the_headline_is_the_first_finding(self):
        run = mixed().run()
        first, headline = run.findings().iloc[0], verdict(run.columns, run.info)
        assert (headline.kind, headline.sentence) == ("bad", first["sentence"])
        assert headline.detail == first["detail"]
        assert repr(run).startswith(f"✕ {first['sentence']}")

    def test_two_more_are_said_in_a_line_each(self):
        text = repr(mixed().run())
        assert "\n! (root) (forward output)" not in text
        assert "\n! a (forward output) is suddenly 40 times larger at step 6" in text
        assert "60: (root) (forward input)" not in text  # a note is no match for an error

    def test_of_more_than_three_the_number_is_said(self):
        book = Book(info=info(config={"alerts": {f"rule {n}": "absmax > 0" for n in range(5)}}))
        text = repr(book.add("a", normal()).run())
        assert text.startswith("! Alert `rule 0` at step 0 in a (forward output)")
        assert "\n! Alert `rule 1`" in text
        assert "(and 2 more: run.findings())" in text
        assert "rule 3" not in text

    def test_a_note_leaves_the_headline_fine_and_stands_under_it(self):
        book = Book().add("", normal(60.0), "input", kind="Net").add("a", normal())
        run = book.add("a", normal(), "grad_output").run()
        assert repr(run).startswith("✓ 1 step, 2 modules, no NaN or Inf")
        assert "\n· The model is fed values of size 60" in repr(run)
        assert "· The model is fed values of size 60" in run._repr_mimebundle_()["text/html"]


class TestIncremental:
    @pytest.mark.parametrize("every", [1, 3, 40])
    def test_reading_piece_by_piece_finds_the_same(self, every):
        whole, parts = many(10**6), many(every)
        want = list(Judge(read(whole)).findings(whole.info))
        tally = Tally(parts.columns)
        judge = Judge(tally)
        for rows in range(0, len(parts.columns), 7):  # asked again and again while it grows
            del rows
            tally.read()
            judge.findings(parts.info)
        got = judge.findings(parts.info)
        assert [f.sentence for f in got] == [f.sentence for f in want]
        assert [(f.kind, f.step, f.site, f.value) for f in got] == [
            (f.kind, f.step, f.site, f.value) for f in want
        ]
        assert {f.kind for f in want} >= {"sudden_change", "dead", "growing"}

    def test_asking_while_it_grows_changes_nothing_at_the_end(self):
        book, tally = Book(), None
        for step in range(60):
            book.add("a", normal(50.0 if step == 20 else 1.0), step=step).flush()
            tally = tally or Tally(book.columns)
            judge = Judge(tally)
            tally.read()
            judge.findings(book.info)
        late = Judge(read(book.run())).findings(book.info)
        assert [f.sentence for f in judge.findings(book.info)] == [f.sentence for f in late]
        assert late[0].step == 20


def read(run):
    tally = Tally(run.columns)
    tally.read()
    return tally


def many(every):
    """100 steps in which a layer grows, one jumps at step 30 and one dies at step 60."""
    book = Book()
    for step in range(100):
        book.add("big", normal(), "param", leaf="weight", step=step)
        book.add("big", normal(1.0, seed=step), "input", step=step)
        book.add("big", normal(30.0, seed=step), step=step)
        book.add("jumps", normal(80.0 if step == 30 else 1.0), step=step)
        book.add("dies", np.zeros(8) if step >= 60 else normal(), step=step)
        book.add("big", normal(), "grad_output", step=step)
        if step % every == every - 1:
            book.flush()
    return book.run()


# -- models that were really trained ----------------------------------------------------------------


class Net(nn.Module):
    """Two towers and a head; each part can be made faulty."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8))
        self.side = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 2)
        self.between = lambda x: x

    def forward(self, x):
        return self.head(self.between(self.body(x)) + self.side(x))


def trained(model, optimizer=None, steps=8, **options):
    torch.manual_seed(0)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    with no_faults(), probe.watch(model, optimizer=optimizer, live=False, **options) as run:
        for _ in range(steps):
            x = torch.randn(16, 4)
            optimizer.zero_grad()
            F.cross_entropy(model(x), (x[:, 0] > 0).long()).backward()
            optimizer.step()
    return run


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


class TestParameters:
    def test_a_healthy_net_has_no_finding(self):
        assert trained(Net()).findings().empty

    def test_what_detach_cuts_off_is_named_as_a_whole(self):
        model = Net()
        model.between = torch.Tensor.detach
        found = trained(model).findings()
        assert found["kind"].tolist() == ["unused"]
        assert (found["module"][0], found["severity"][0]) == ("body", "warning")
        assert found["sentence"][0] == "body gets no gradient (2 modules in all)"
        assert found["value"][0] == 4

    def test_a_head_that_is_never_called_is_named(self):
        model = Net()
        model.other = nn.Linear(8, 2)
        found = trained(model).findings()
        assert (found["module"].tolist(), found["kind"].tolist()) == (["other"], ["unused"])
        assert "never seen" in found["detail"][0]

    def test_an_expert_that_no_token_chose_is_a_note(self):
        class Mixture(nn.Module):
            def __init__(self):
                super().__init__()
                self.experts = nn.ModuleList(nn.Linear(4, 2) for _ in range(4))

            def forward(self, x):
                return self.experts[0](x) + self.experts[2](x)

        found = trained(Mixture()).findings()
        assert (found["kind"].tolist(), found["severity"].tolist()) == (["unused"], ["note"])

    def test_a_frozen_backbone_is_a_note(self):
        model = Net()
        model.body.requires_grad_(False)
        model.side.requires_grad_(False)
        found = trained(model).findings()
        assert (found["kind"].tolist(), found["severity"].tolist()) == (["frozen"], ["note"])

    def test_one_frozen_layer_between_its_like_is_a_warning(self):
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)), nn.Linear(4, 2))
        model[3].requires_grad_(False)
        found = trained(model).findings()
        assert (found["module"][0], found["kind"][0], found["severity"][0]) == (
            "3",
            "frozen",
            "warning",
        )

    @pytest.mark.parametrize(("held", "severity"), [(False, "note"), (True, "warning")])
    def test_features_without_grad_are_meant_so_unless_an_optimizer_holds_them(
        self, held, severity
    ):
        class Probed(Net):
            def forward(self, x):
                with torch.no_grad():
                    x = self.body(x)
                return self.head(x)

        model = Probed()
        del model.side
        trained_ones = (model if held else model.head).parameters()
        found = trained(model, torch.optim.SGD(trained_ones, 0.1)).findings()
        assert (found["kind"].tolist(), found["severity"].tolist()) == (["unused"], [severity])
        assert found["module"][0] == "body"

    def test_what_the_optimizer_does_not_hold_is_stuck(self):
        model = Net()
        rest = [p for n, p in model.named_parameters() if not n.startswith("head")]
        found = trained(model, torch.optim.SGD(rest, 0.1)).findings()
        assert (found["module"].tolist(), found["kind"].tolist()) == (["head"], ["stuck"])
        assert found["value"][0] == 0

    def test_a_group_without_a_learning_rate_is_stuck(self):
        model = Net()
        groups = [
            {"params": [p for n, p in model.named_parameters() if not n.startswith("side")]},
            {"params": model.side.parameters(), "lr": 0.0},
        ]
        found = trained(model, torch.optim.Adam(groups, 1e-3)).findings()
        assert (found["module"].tolist(), found["kind"].tolist()) == (["side"], ["stuck"])
        assert found["detail"][0].startswith("4 parameters of side.0, side.2, the same in every")

    def test_a_run_without_an_optimizer_is_not_judged_by_it(self):
        model = Net()
        with no_faults(), probe.watch(model, live=False) as run:
            for _ in range(6):
                model(torch.randn(4, 4)).sum().backward()
                run.step()
        assert "stuck" not in set(run.findings()["kind"])

    def test_gradients_that_are_never_zeroed_are_told(self):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), 1e-4)
        with no_faults(), probe.watch(model, optimizer=optimizer, live=False) as run:
            for _ in range(8):
                model(torch.ones(4, 4)).sum().backward()
                optimizer.step()
        found = run.findings()
        assert found["kind"].tolist()[0] == "not_zeroed"
        assert found["value"][0] == pytest.approx(8.0, rel=0.05)

    def test_bfloat16_weights_lose_their_updates(self):
        model = nn.Sequential(nn.Linear(4, 64), nn.Linear(64, 2)).to(torch.bfloat16)
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(p.sign() * (1 + p.abs()))
        optimizer = torch.optim.Adam(model.parameters(), 1e-4)
        with no_faults(), probe.watch(model, optimizer=optimizer, live=False) as run:
            for _ in range(8):
                x = torch.randn(16, 4, dtype=torch.bfloat16)
                optimizer.zero_grad()
                F.cross_entropy(model(x).float(), (x[:, 0] > 0).long()).backward()
                optimizer.step()
        found = run.findings()
        assert found["kind"][0] == "update_lost"
        weights = dict(model.named_parameters())
        assert set(weights) == {"0.weight", "0.bias", "1.weight", "1.bias"}
