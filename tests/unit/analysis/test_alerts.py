"""Rules of the user's own: what they may say, and what they find."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.analysis.alert_rules import Alerts, checked
from probe_nb.errors import ConfigError
from tests.models import no_faults
from tests.unit.analysis.test_rules import normal
from tests.unit.view.make_runs import Book, info


def alerted(book, **rules):
    book.info = info(config={"alerts": rules})
    return book.run()


class TestQueries:
    @pytest.mark.parametrize(
        "query",
        [
            "absmax > 1e4",
            "role == 'output' and absmax > 1e4",
            "not (nan_count == 0) or posinf_count > 0",
            "module in ['a', 'b'] & (step % 2 == 0)",
            "10 < absmax <= 20",
            "std / absmax < 1e-3",
            "training",
            "step not in (1, 2)",
            "dtype == 'float16' and -min > max",
        ],
    )
    def test_comparisons_of_columns_are_taken(self, query):
        checked({"rule": query})

    @pytest.mark.parametrize(
        ("query", "words"),
        [
            ("absmax > @limit", "Variables"),
            ("absmax.max() > 1", "no calls, attributes or variables"),
            ("absmax.__class__ == 1", "no calls, attributes or variables"),
            ("print(1)", "no calls, attributes or variables"),
            ("__import__('os').system('true')", "no calls, attributes or variables"),
            ("[x for x in step]", "no calls, attributes or variables"),
            ("(lambda: 1)", "no calls, attributes or variables"),
            ("module['a'] == 1", "no calls, attributes or variables"),
            ("f'{step}' == '1'", "no calls, attributes or variables"),
            ("2 ** 99999999999 > absmax", "not allowed"),
            ("`absmax` > 1", "is no expression"),
            ("absmax > 1; step", "is no expression"),
            ("step = 3", "is no expression"),
            ("absmx > 1", "The closest are `absmax`"),
            ("role == output", "Text stands in quotes"),
            ("absmax + 1", "gives numbers"),
            ("role > 3", "cannot be asked"),
            ("absmax > 'large'", "cannot be asked"),
        ],
    )
    def test_all_else_is_refused_in_words(self, query, words):
        with pytest.raises(ConfigError, match=words) as caught:
            checked({"my rule": query})
        assert "`my rule`" in str(caught.value)

    def test_a_mistake_is_told_when_the_watch_opens_and_nothing_is_left_open(self):
        model = nn.Linear(2, 2)
        with pytest.raises(ConfigError, match="absmx"):
            probe.watch(model, alerts={"rule": "absmx > 1"}).__enter__()
        assert probe.stop() is None


class TestFindings:
    def test_the_first_record_that_passes_is_named(self):
        book = Book()
        for step in range(6):
            book.add("a", normal(), step=step).add("b", normal(5.0 + 10 * step), step=step)
        run = alerted(book, large="role == 'output' and absmax > 40")
        df = run.df
        expected = df[(df["role"] == "output") & (df["absmax"] > 40)]
        found = run.findings().iloc[0]
        assert (found["kind"], found["severity"], found["module"]) == ("alert", "warning", "b")
        assert found["step"] == expected["step"].min()
        assert found["rows"] == expected.index.tolist()
        assert found["value"] == len(expected)
        assert found["sentence"].startswith("Alert `large` at step ")

    def test_a_number_that_is_absent_passes_nothing(self):
        book = Book().add("a", [], status="meta").add("b", [1.0])
        found = alerted(book, rule="not absmax > 5", other="absmax <= 5").findings()
        assert found["module"].tolist() == ["b", "b"]

    def test_a_rule_that_nothing_passes_is_silent(self):
        assert alerted(Book().add("a", [1.0]), rule="absmax > 5").findings().empty

    def test_it_does_not_matter_in_how_many_pieces_records_came(self):
        asked = []
        for every in (1, 4, 100):
            book, alerts = Book(), Alerts({"rule": "absmax > 40 and step > 3"})
            for step in range(20):
                book.add("a", normal(3.0 * step), step=step).add("b", normal(9.0), step=step)
                if step % every == 0:
                    alerts.read(book.flush().columns)
            passed = alerts.read(book.flush().columns)["rule"]
            asked.append((passed.count, passed.first, passed.rows, passed.sites))
        assert asked[0] == asked[1] == asked[2]
        df = book.run().df
        assert asked[0][0] == int(((df["absmax"] > 40) & (df["step"] > 3)).sum())

    def test_an_alert_outlives_the_file(self, tmp_path):
        model = nn.Linear(2, 2)
        with no_faults(), probe.watch(model, live=False, alerts={"any": "absmax >= 0"}) as run:
            model(torch.ones(1, 2))
        loaded = probe.load(run.save(tmp_path / "run.probe"))
        pd.testing.assert_frame_equal(loaded.findings(), run.findings())
        assert loaded.findings()["kind"].tolist() == ["alert"]

    def test_a_nan_does_not_silence_an_alert(self):
        book = Book().add("a", [np.nan, 1.0]).add("b", [100.0], step=1)
        assert alerted(book, large="absmax > 50").findings()["kind"].tolist() == [
            "non_finite",
            "alert",
        ]
