from __future__ import annotations

import json
import struct
import sys
import warnings

import numpy as np
import pytest
from jupyter_client.session import json_packer

from probe_nb.errors import ProbeError, ProbeWarning
from probe_nb.view import inspector, live
from probe_nb.view.inspector import Inspector
from probe_nb.view.live import LiveView
from tests.unit.view.make_runs import Book, info
from tests.unit.view.test_frame import decode, strict

NAN, INF = np.nan, np.inf


class Clock:
    """Time that goes on when it is told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Screen:
    """What a front end is told: the first display, then the updates."""

    def __init__(self, *, breaks=()):
        self.shown, self.pages, self.breaks = [], [], breaks

    def display(self, shown, *, display_id):
        assert display_id is True
        if "display" in self.breaks:
            raise OSError("no front end")
        self.shown.append(shown)
        return self

    def update(self, shown):
        if "update" in self.breaks:
            raise OSError("the front end is gone")
        self.shown.append(shown)
        self.pages.append(shown._repr_mimebundle_()["text/html"])


class Training:
    """A run that grows, and the view of it."""

    def __init__(self, *, final="report", breaks=()):
        self.book = Book(info=info(ended="open"))
        self.run = self.book.run()
        self.clock, self.screen = Clock(), Screen(breaks=breaks)
        self.view = LiveView(self.run, final=final, clock=self.clock, display=self.screen.display)
        self.step = 0

    def train(self, seconds, values=(1.0, 2.0)):
        self.clock.now += seconds
        self.book.add("layers.0", list(values), step=self.step).flush()
        self.step += 1
        self.view.update()

    def end(self, how="finished"):
        self.run.info.ended = how
        self.view.close()


@pytest.fixture
def front_end(monkeypatch, tmp_path):
    """Count the messages of every widget."""
    sent = []
    keep = Inspector.send_state

    def count(self, key=None):
        sent.append(sorted([key] if isinstance(key, str) else key or ["all"]))
        return keep(self, key)

    monkeypatch.setattr(Inspector, "send_state", count)
    return sent


def frames(sent):
    return [keys for keys in sent if "frame" in keys]


def trend_of(widget):
    """Read a trend by its description alone: its steps, and the numbers row by row."""
    magic, version, rows, steps, *rest = struct.unpack_from("<8I", widget.trend)
    assert (magic, version, rest) == (0x31424E50, 5, [0, 0, 0, 0])
    assert len(decode(widget.frame)["spark"].tobytes()) == 0
    at, *table = np.frombuffer(widget.trend, "<f8", -1, 32).reshape(rows + 1, steps).tolist()
    return at, table


class TestPace:
    def test_at_most_four_frames_a_second_whatever_the_steps(self, front_end):
        training = Training()
        training.view.open()
        for _ in range(3000):
            training.train(0.001)
        assert 11 <= len(frames(front_end)) <= 12
        training.end()
        assert len(frames(front_end)) <= 13

    def test_the_last_frame_is_never_lost(self, front_end):
        training = Training()
        training.view.open()
        widget = training.screen.shown[0]
        training.train(1.0)
        training.train(0.01, [NAN, 5.0])
        assert decode(widget.frame)["nan_count"] == [0]
        last = []
        widget.observe(lambda change: last.append(change["new"]), "frame")
        training.end()
        assert decode(last[-1])["nan_count"] == [1]

    def test_one_message_holds_all_three_traits(self, front_end):
        training = Training()
        training.view.open()
        front_end.clear()
        training.train(1.0)
        assert front_end == [["frame", "sites", "status"]]
        training.train(1.0)
        assert front_end[1:] == [["frame", "status"]]

    def test_the_trend_is_sent_once_a_second_and_at_the_end(self, front_end):
        training = Training()
        training.view.open()
        widget, largest = training.screen.shown[0], [4.0, 1.0, INF, 2.0, 8.0]
        assert trend_of(widget) == ([], [])
        front_end.clear()
        for value in largest:
            training.train(1.0, [value, -1.0])
        assert ["trend" in keys for keys in frames(front_end)] == [False, False, False, True, False]
        assert trend_of(widget) == ([0, 1, 2, 3], [largest[:4]])
        last = []
        widget.observe(lambda change: last.append(change["new"]), "trend")
        training.end()
        assert trend_of(widget) == ([0, 1, 2, 3, 4], [largest])
        assert last == [widget.trend]

    def test_force_does_not_wait(self, front_end):
        training = Training()
        training.view.open()
        training.book.add("a", [1.0]).flush()
        training.view.update(force=True)
        assert decode(training.screen.shown[0].frame)["order"].shape == (1,)

    def test_the_fallback_is_fresh_every_half_minute(self):
        training = Training()
        training.view.open()
        for _ in range(70):
            training.train(1.0)
        assert len(training.screen.shown) == 3
        assert training.screen.shown[2] is training.screen.shown[0]
        assert ["29 steps" in training.screen.pages[0], "59 steps" in training.screen.pages[1]] == [
            True,
            True,
        ]


class TestEnd:
    def test_the_report_takes_the_place_of_the_view(self):
        training = Training()
        training.view.open()
        training.train(1.0, [NAN, 1.0])
        training.end()
        last = training.screen.shown[-1]._repr_mimebundle_()
        assert set(last) == {"text/html", "text/plain"}
        assert "NaN first appeared at step 0 in layers.0" in last["text/html"]
        assert "finished" in last["text/plain"]

    def test_the_view_of_a_magic_becomes_one_line(self):
        training = Training(final="line")
        training.view.open()
        training.train(1.0, [NAN, 1.0])
        training.end()
        assert repr(training.screen.shown[-1]).count("\n") == 0
        assert "NaN first appeared" in repr(training.screen.shown[-1])

    def test_closing_twice_shows_one_report(self):
        training = Training()
        training.view.open()
        training.end()
        training.end()
        assert len(training.screen.shown) == 2

    def test_nothing_is_sent_after_the_end(self, front_end):
        training = Training()
        training.view.open()
        training.end()
        front_end.clear()
        training.train(10.0)
        assert front_end == []

    @pytest.mark.parametrize("error", [ValueError("user bug"), KeyboardInterrupt()])
    def test_the_users_exception_passes_through_close(self, error):
        training = Training()
        training.view.open()
        with pytest.raises(type(error)) as caught:  # noqa: PT012 - as a `with` block does
            try:
                raise error
            finally:
                training.end("ValueError at step 0: user bug")
        assert caught.value is error
        assert "user bug" in repr(training.screen.shown[-1])


class TestFaults:
    def test_a_display_that_raises_costs_one_warning_and_the_view(self):
        training = Training(breaks=("display",))
        with pytest.warns(
            ProbeWarning, match="The live view is off: OSError: no front end"
        ) as caught:
            training.view.open()
        training.train(1.0)
        assert len(caught) == 1

    def test_a_front_end_that_goes_away_costs_one_warning(self):
        training = Training(breaks=("update",))
        training.view.open()
        with pytest.warns(ProbeWarning) as caught:  # noqa: PT031 - once for all of it
            training.train(31.0)
            training.train(31.0)
            training.end()
        assert len(caught) == 1

    def test_a_fault_of_the_widget_leaves_the_report(self, monkeypatch):
        training = Training()
        training.view.open()
        monkeypatch.setattr(Inspector, "refresh", lambda _self: 1 / 0)
        with pytest.warns(ProbeWarning, match="division by zero") as caught:  # noqa: PT031
            training.train(1.0)
            training.train(1.0)
            training.end()
        assert len(caught) == 1
        assert "1 module" in repr(training.screen.shown[-1])

    def test_warnings_that_are_errors_do_not_reach_the_user(self):
        training = Training(breaks=("display",))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            training.view.open()
            training.train(1.0)
            training.end()

    def test_without_the_widget_a_static_view_and_the_report_remain(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "probe_nb.view.inspector", None)
        training = Training()
        with pytest.warns(
            ProbeWarning, match="The live inspector is not available, a plain table takes its place"
        ):
            training.view.open()
        training.train(1.0)
        training.end()
        assert "Nothing recorded yet" in repr(training.screen.shown[0])
        assert "1 step" in repr(training.screen.shown[-1])

    def test_outside_a_notebook_the_summary_is_displayed_at_the_end(self, capsys):
        run = Book(info=info(ended="open")).add("a", [NAN, 1.0]).run()
        view = LiveView(run)
        view.open()
        view.update()
        view.close()
        assert "NaN first appeared" in capsys.readouterr().out

    def test_a_view_is_wanted_in_a_notebook_only_unless_asked_for(self):
        assert live.wanted(None) is False
        assert live.wanted(True) is True
        assert live.wanted(False) is False


class TestInspector:
    def run(self):
        return Book().add("a", [NAN, INF, -INF, 1.0, -0.0, 1e300]).run()

    def test_it_shows_the_run(self):
        widget = Inspector(self.run())
        assert strict(widget.sites)["rows"][0]["module"] == "a"
        assert strict(widget.status)["headline"]["kind"] == "bad"
        assert decode(widget.frame)["max"] == [1e300]

    def test_nothing_of_its_state_is_beyond_json(self):
        widget = Inspector(self.run())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            state = widget.get_state()
            for name in ("frame", "trend", "history", "picture"):
                assert isinstance(state.pop(name), bytes)
            text = json_packer(state).decode()
        strict(text)
        assert "NaN" not in json.dumps(
            {k: v for k, v in state.items() if k not in ("sites", "status", "_esm")}
        )

    def test_its_bundle_also_reads_without_widgets(self):
        data = Inspector(self.run())._repr_mimebundle_()
        assert set(data) == {"text/plain", "text/html", inspector.WIDGET_VIEW}
        assert "NaN first appeared" in data["text/html"]
        assert "NaN first appeared" in data["text/plain"]
        assert data["text/plain"].count("\n") < 30

    def test_a_missing_front_end_says_how_to_build_it(self, tmp_path, monkeypatch):
        monkeypatch.setattr(inspector, "BUNDLE", tmp_path / "widget.js")
        with pytest.raises(ProbeError, match="make dev"):
            inspector._source()

    def test_a_run_inspects_itself(self):
        run = self.run()
        assert isinstance(run.inspect(), Inspector)

    def test_two_widgets_of_one_run_are_independent(self):
        run = self.run()
        one, two = Inspector(run), Inspector(run)
        one.refresh()
        assert one.frame == two.frame
        assert one.model_id != two.model_id
