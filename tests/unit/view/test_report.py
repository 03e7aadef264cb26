from __future__ import annotations

import base64
import gzip
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import probe_nb as probe
from probe_nb.view import BUNDLE, html, report, text
from probe_nb.view.frame import FrameBuilder
from probe_nb.view.rows import ABSENT
from tests import records
from tests.unit.view.make_runs import Book, hundred_layers, info
from tests.unit.view.test_frame import decode, strict

NAN, INF = np.nan, np.inf
HOSTILE = ["x<b>bold</b>", "</script><script>alert(1)</script>", "слой", '"quoted"&amp;']

MADE_WITH = [
    (["cpu"], {"torch": "2.13.0+cpu"}, "cpu · torch 2.13.0+cpu"),
    (
        [f"cuda:{n} NVIDIA <H200>" for n in range(8)],
        {"cuda_driver": "570.86.15", "torch": "2.13.0", "cuda": "12.8"},
        "cuda:0 NVIDIA <H200> and 7 more devices · torch 2.13.0 · CUDA 12.8 · driver 570.86.15",
    ),
    (
        ["npu:0 Ascend910B3", "npu:1 Ascend910B3"],
        {"torch": "2.13.0", "torch_npu": "2.13.0", "cann": "8.5.0", "npu_driver": "1"},
        "npu:0 Ascend910B3 and 1 more device · torch 2.13.0 · torch_npu 2.13.0 · CANN 8.5.0 · driver 1",
    ),
    (["cpu"], {}, "cpu"),
]


class Reader(HTMLParser):
    """Reads the text of tags and the cells of the table, as a browser without scripts would."""

    def __init__(self, document):
        super().__init__()
        self.rows, self.tags, self.words, self.attributes, self.inside = [], [], [], {}, False
        self.feed(document)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= dict(attrs)
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")
        self.inside = self.inside or tag == "td"

    def handle_data(self, data):
        self.words.append(data)
        if self.inside:
            self.rows[-1][-1] += data.replace("\N{NO-BREAK SPACE}", " ")

    def handle_endtag(self, tag):
        self.inside = self.inside and tag != "td"


def builder_of(run):
    builder = FrameBuilder(run.columns, run.info)
    builder.update()
    return builder


def static(run):
    return html.static(builder_of(run))


@pytest.fixture
def bundle_file(tmp_path, monkeypatch):
    """A front end that was built: whatever it is, it is embedded as it is."""
    path = tmp_path / "widget.js"
    path.write_text("export default { render() {} } // </script>", encoding="utf-8")
    monkeypatch.setattr(report, "BUNDLE", path)
    report._packed_file.cache_clear()
    yield path
    report._packed_file.cache_clear()


def embedded(document):
    found = Reader(document).attributes
    state = json.loads(gzip.decompress(base64.b64decode(found["data-state"])))
    frame = decode(gzip.decompress(base64.b64decode(found["data-frame"])))
    return strict(state["sites"])["rows"], strict(state["status"]), frame


class TestTable:
    def test_the_bad_one_of_100_layers_is_in_the_first_row(self):
        rows = Reader(static(hundred_layers(bad=50))).rows
        assert rows[1][:4] == ["✕ NaN from step 1", "layers.50 Linear", "forward output", "1"]
        assert rows[1][5] == "3 NaN of 32"
        assert rows[2][:4] == ["✓ ok", "layers.50 Linear", "forward input", "1"]
        assert len(rows) == 21

    def test_what_is_left_out_is_said_in_words(self):
        assert "180 more rows (worst first); all are in run.df" in static(hundred_layers(bad=50))

    def test_the_numbers_are_those_of_the_first_bad_record(self):
        run = hundred_layers(bad=50)
        want = run.df[(run.df["module"] == "layers.50") & (run.df["nan_count"] > 0)].iloc[0]
        cells = Reader(static(run)).rows[1]
        for place, name in ((8, "min"), (9, "max"), (10, "mean"), (11, "std")):
            assert float(cells[place]) == pytest.approx(want[name], rel=1e-3)

    def test_small_numbers_are_not_rounded_to_zero(self):
        cells = Reader(static(Book().add("a", [1e-30, -3e-9]).run())).rows[1]
        assert cells[8:10] == ["-3e-09", "1e-30"]

    @pytest.mark.parametrize(("devices", "versions", "expected"), MADE_WITH)
    def test_one_line_says_on_what_a_run_was_made(self, devices, versions, expected):
        about = info(devices=devices, versions=versions | {"python": "3.11.7"})
        run = Book(info=about).add("a", [1.0]).run()
        assert expected in Reader(static(run)).words
        assert f"  {expected}" in text.summary(run).splitlines()

    def test_absent_is_not_nan_and_not_zero(self):
        cells = Reader(static(Book().add("a", [1.0], status="skipped_budget").run())).rows[1]
        assert cells[0] == f"{ABSENT} skipped_budget"
        assert cells[5:] == [ABSENT] * 7

    def test_names_are_escaped(self):
        book = Book(info=info(models={"m": "<i>Net</i>"}, notices=["<u>note</u>"]))
        book.info.unobserved = [{"module": "<s>a</s>", "reason": "<em>never</em>"}]
        for name in HOSTILE:
            book.add(name, [1.0], kind="<hr>")
        read = Reader(static(book.run()))
        assert [row[1] for row in read.rows[1:]] == [f"{name} <hr>" for name in HOSTILE]
        assert set(read.tags) <= {
            "div",
            "b",
            "table",
            "thead",
            "tbody",
            "tr",
            "td",
            "code",
            "ul",
            "li",
        }
        words = "".join(read.words)
        assert all(
            each in words for each in ("<i>Net</i>", "<u>note</u>", "<s>a</s>", "<em>never</em>")
        )

    def test_it_needs_neither_style_nor_script(self):
        document = static(hundred_layers())
        for kept in ("text-align:left", "overflow-x:auto"):  # without these it reads as well
            document = document.replace(f'style="{kept}"', "")
        assert not re.search(r"style|class=|script|color", document)

    def test_a_healthy_table_shows_outputs_in_execution_order(self):
        document = static(hundred_layers(bad=200))
        rows = Reader(document).rows
        assert [row[1] for row in rows[1:]] == [f"layers.{layer} Linear" for layer in range(20)]
        assert {row[2] for row in rows[1:]} == {"forward output"}
        assert "180 more rows (outputs first, in execution order)" in document

    def test_findings_come_before_the_rest_in_order_of_gravity(self):
        book = (
            Book().add("fine", [1.0]).add("risk", [60000.0], dtype="float16").add("inf", [INF, 1.0])
        )
        for step in range(3):
            book.add("dead", np.zeros(8), step=step)
        rows = Reader(static(book.add("nan", [NAN, 1.0], step=2).run())).rows
        assert [row[0] for row in rows[1:]] == [
            "✕ Inf from step 0",
            "✕ NaN from step 2 (follows)",
            "! overflow risk",
            "~ all zeros",
            "✓ ok",
        ]

    def test_containers_are_no_finding(self):
        missing = [
            {"model": "model", "module": "layers", "type": "ModuleList", "reason": "never called"},
            {"model": "model", "module": "head", "type": "Linear", "reason": "never called"},
        ]
        book = Book(info=info(unobserved=missing)).add("a", [1.0])
        for shown in (static(book.run()), text.summary(book.run())):
            assert "1 of 2 modules was not seen: 1 never called" in shown
            assert "run.coverage()" in shown
            assert "ModuleList" not in shown

    def test_what_became_nonfinite_stands_in_the_order_of_events(self):
        book = Book()
        for step in range(3):
            for name, born in (("a", 2), ("b", 0), ("c", 1)):
                book.add(name, [NAN if step >= born else 1.0], step=step)
        names = [row[1].split()[0] for row in Reader(static(book.run())).rows[1:]]
        assert names == ["b", "c", "a"]

    def test_bars_count_magnitudes(self):
        cells = Reader(static(Book().add("a", [1.0] * 8 + [-4.0] * 4 + [0.0]).run())).rows[1]
        assert cells[6] == "2^0 █\N{FIGURE SPACE}▄ 2^2"


class TestReport:
    def test_it_carries_the_numbers_and_the_front_end(self, bundle_file):
        run = hundred_layers(bad=50)
        document = report.bundle(run)["text/html"]
        sites, status, frame = embedded(document)
        code = gzip.decompress(base64.b64decode(Reader(document).attributes["data-code"]))
        assert code == bundle_file.read_bytes()
        assert len(sites) == 200
        assert sites[status["headline"]["row"]]["module"] == "layers.50"
        np.testing.assert_array_equal(
            frame["nan_count"], decode(builder_of(run).frame())["nan_count"]
        )

    def test_at_most_300_rows_are_embedded_the_worst_and_the_first(self, bundle_file):
        book = Book()
        for layer in range(500):
            book.add(f"l{layer}", [1.0, NAN if layer >= 450 else 2.0])
        sites, status, frame = embedded(report.bundle(book.run())["text/html"])
        names = [site["module"] for site in sites]
        assert len(names) == 300 == len(frame["order"])
        assert names[:100] == [f"l{layer}" for layer in range(100)]
        assert names[-50:] == [f"l{layer}" for layer in range(450, 500)]
        assert sites[status["headline"]["row"]]["module"] == "l450"
        assert status["truncated"] == (
            "300 of 500 rows are shown, the worst and the first ones; all are in run.df"
        )
        cut = slice(frame["offsets"][299], frame["offsets"][300])
        assert (frame["bins"][cut].tolist(), frame["counts"][cut].tolist()) == ([127], [1.0])

    def test_it_stays_under_its_limit(self, bundle_file):
        random, book = np.random.default_rng(0), Book()
        bundle_file.write_bytes(base64.b85encode(random.bytes(75_000)))
        for step in range(40):
            for layer in range(100):
                for role in ("input", "output", "grad_output"):
                    book.add(f"l{layer}", np.exp(random.normal(size=99) * 9), role, step=step)
            book.flush()
        document = report.bundle(book.run())["text/html"]
        assert len(document) < 200_000
        assert len(embedded(document)[0]) in (100, 200)

    def test_no_name_breaks_out_of_the_script(self, bundle_file):
        book = Book()
        for name in HOSTILE:
            book.add(name, [NAN, 1.0])
        document = report.bundle(book.run())["text/html"]
        read = Reader(document)
        assert read.tags.count("script") == 1
        assert [site["module"] for site in embedded(document)[0]] == HOSTILE
        assert document.count("</script") == 1

    def test_two_reports_do_not_share_a_key(self, bundle_file):
        run = hundred_layers()
        keys = [
            Reader(report.bundle(run)["text/html"]).attributes["data-probe-nb"] for _ in range(2)
        ]
        assert keys[0] != keys[1]

    def test_without_a_front_end_the_table_is_the_report(self, monkeypatch, tmp_path):
        monkeypatch.setattr(report, "BUNDLE", tmp_path / "missing.js")
        document = report.bundle(hundred_layers())["text/html"]
        assert "script" not in document
        assert "layers.50" in document

    def test_an_empty_run_says_why(self):
        found = report.bundle(
            Book(info=info(unobserved=[{"module": "a", "reason": "never called"}])).run()
        )
        assert "Nothing was recorded" in found["text/html"]
        assert "never called" in found["text/html"]
        assert "Nothing was recorded" in found["text/plain"]

    def test_the_page_is_whole(self, bundle_file):
        page = report.html_page(hundred_layers())
        assert page.startswith("<!doctype html>")
        assert '<meta charset="utf-8">' in page
        assert "layers.50" in page

    def test_the_bundle_of_a_checkout_is_where_the_package_says(self):
        assert BUNDLE.parts[-3:] == ("view", "static", "widget.js")


class TestText:
    @pytest.mark.parametrize("run", [hundred_layers(), hundred_layers(bad=200), Book().run()])
    def test_it_is_under_30_lines_of_at_most_120_characters(self, run):
        lines = text.summary(run).splitlines()
        assert len(lines) < 30
        assert max(map(len, lines)) <= 120

    def test_the_bad_layer_is_said_first_and_stands_in_the_first_row(self):
        lines = text.summary(hundred_layers(bad=50)).splitlines()
        assert lines[0] == "✕ NaN first appeared at step 1 in layers.50 (forward output)"
        table = lines[lines.index("") + 1 :]
        assert table[1].startswith("✕ NaN from step 1")
        assert "layers.50" in table[1]
        assert "190 more rows" in lines[-1]

    def test_a_tensor_is_named_whole_where_the_line_has_room(self):
        rows = [{"role": "param_grad", "leaf": leaf} for leaf in ("weight", "weight.grad.shard")]
        shown = text.summary(records.run(rows))
        assert "gradient of the parameter weight " in shown
        assert "gradient of the parameter weight.grad.shard " in shown

    def test_a_path_that_the_line_has_no_room_for_keeps_its_end(self):
        rows = [{"module": f"{'m' * 200}.last", "leaf": "n" * 200}]
        lines = text.summary(records.run(rows)).splitlines()
        (row,) = [line for line in lines if line.startswith("✓ ok")]
        assert ".last  forward output n" in row
        assert "…n" in row
        assert len(row) <= 120

    def test_a_module_of_no_watched_model_has_no_model_before_it(self):
        alone = {"model": "", "module": "MyBlock"}
        one = text.summary(records.run([alone, {"module": "inside"}]))
        assert "✓ ok     MyBlock  " in one
        assert "✓ ok     inside  " in one  # and of a single model nobody needs the name
        two = text.summary(records.run([alone, {"module": "inside"}, {"model": "b"}]))
        assert "✓ ok     MyBlock  " in two
        assert "✓ ok     model: inside  " in two

    def test_a_name_with_line_breaks_stays_on_its_line(self):
        about = info(notices=["a\nb"] * 9, unobserved=[{"module": "z", "reason": "r"}] * 9)
        run = Book(info=about).add("a\n\n\nb" * 99, [NAN, 1.0]).run()
        assert len(text.summary(run).splitlines()) < 30

    def test_repr_is_the_summary(self):
        run = hundred_layers()
        assert repr(run) == text.summary(run)


class TestAFile:
    def test_a_run_and_a_comparison_are_written_as_pages(self, tmp_path):
        run = hundred_layers()
        both = probe.compare(run, run)
        for shown, name, said in ((run, "run.html", "in layers.50"), (both, "both.html", "same")):
            path = shown.to_html(tmp_path / name)
            text = path.read_text("utf-8")
            assert path == tmp_path / name
            assert text.startswith("<!doctype html>")
            assert said in text
            assert "data-probe-nb" in text
        assert sorted(path.name for path in tmp_path.iterdir()) == ["both.html", "run.html"]

    def test_a_folder_that_is_not_there_is_named(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"There is no folder .*gone"):
            hundred_layers().to_html(tmp_path / "gone" / "run.html")
