"""What a newcomer reads first: sentences that stand by themselves, tables that show what they say."""

from __future__ import annotations

import itertools
import math
from html import unescape

import pandas as pd
import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.analysis.verdict import verdict
from probe_nb.dump import writer
from probe_nb.errors import FAULT, ProbeWarning, SelectionError
from probe_nb.view.text import _short
from tests import records
from tests.models import no_faults


class Cut(nn.Module):
    """Nothing comes back to `first`."""

    def __init__(self):
        super().__init__()
        self.first, self.act, self.last = nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)

    def forward(self, x):
        return self.last(self.act(self.first(x)).detach())


def trained(model, stepped, /, times=6, fed=None, **options):
    torch.manual_seed(0)
    fed = torch.randn(4, 8) if fed is None else fed
    with probe.watch(model, live=False, **options) as run:
        for _ in range(times):
            model.zero_grad()
            model(fed).square().mean().backward()
            stepped.step()
    return run


def table(run):
    """Return the rows of the table in a terminal: finding, module, tensor."""
    lines = repr(run).splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("finding "))
    places = [lines[begin].index(word) for word in ("finding", "module", "tensor", " step")]
    rows = [line for line in lines[begin + 1 :] if not line.startswith("…")]
    return [tuple(row[a:b].strip() for a, b in itertools.pairwise(places)) for row in rows]


@pytest.fixture(scope="module")
def cut():
    torch.manual_seed(0)
    model = Cut()
    return trained(model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.fixture(scope="module")
def stuck():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    return trained(model, optimizer, optimizer=optimizer)


# -- the row of what is accused says so ------------------------------------------------------------


def test_the_row_of_a_module_without_gradients_says_so(cut):
    assert repr(cut).startswith("! first gets no gradient")
    rows = table(cut)
    assert rows[0] == ("! no gradient", "first", "forward output")
    accused = {(module, tensor) for finding, module, tensor in rows if finding == "! no gradient"}
    assert accused >= {("first", "parameter weight"), ("first", "parameter bias")}
    assert {module for _, module, _ in rows if module != "first"} >= {"last"}
    assert {finding for finding, module, _ in rows if module == "last"} == {"✓ ok"}


def test_the_row_of_a_weight_that_does_not_move_says_so(stuck):
    assert table(stuck)[0] == ("! does not move", "2", "parameter weight")
    html = stuck._repr_mimebundle_()["text/html"]
    assert "!&nbsp;does&nbsp;not&nbsp;move" in html


def test_the_row_of_an_own_rule_says_so():
    model = nn.Identity()
    with probe.watch(model, live=False, alerts={"large": "max > 3"}) as run:
        for value in (1.0, 5.0, 2.0):
            model(torch.full((2,), value))
    first = next(line for line in repr(run).splitlines() if line.startswith("! alert"))
    assert first.split()[-2:] == ["5", "0"]  # the record that passed: max 5, std 0
    assert "  1  " in first


def test_every_kind_of_finding_has_a_badge_or_a_word():
    from probe_nb.analysis.finding import KINDS
    from probe_nb.view.found import NAMED

    badges = {"non_finite", "overflow_risk", "exploding", "vanishing", "dead"}
    assert set(KINDS) == badges | set(NAMED)


# -- sentences -------------------------------------------------------------------------------------


def test_an_update_larger_than_its_weight_is_said_in_times():
    rows = [
        {"module": name, "leaf": "weight", "step": step, "shape": (8, 8), "numel": 64, **of}
        for step in range(8)
        for name, ratio in (("a", 20.0), ("b", 0.001), ("c", 0.001))
        for of in (
            {"role": "param", "l2": 1.0 + step % 2, "absmax": 1.0, "requires_grad": True},
            {"role": "update", "direction": "optimizer", "l2": ratio * (1.0 + step % 2)},
        )
    ]
    (found,) = records.run(rows).findings().query("kind == 'update_ratio'").to_dict("records")
    assert found["value"] == 20
    assert found["sentence"] == "Updates of a are too large: 20 times the weight per step"


@pytest.mark.parametrize("named", [True, False])
def test_beside_a_nan_stands_the_update_that_blew_a_weight_up(named):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e12)
    run = trained(model, optimizer, times=8, **({"optimizer": optimizer} if named else {}))
    (found,) = run.findings().query("kind == 'non_finite'").to_dict("records")
    assert found["step"] < 5
    assert "the update of " in found["detail"]
    assert "times its size" in found["detail"]
    assert "update_ratio" not in set(run.findings()["kind"])  # no five steps had numbers


def test_no_update_is_named_beside_a_nan_of_its_own_making():
    model = nn.Sequential(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    fed = torch.full((4, 8), math.nan)
    found = trained(model, optimizer, times=3, fed=fed, optimizer=optimizer).findings()
    assert "the update of" not in " ".join(found["detail"])


def test_who_was_named_and_does_not_hold_a_parameter_is_told_from_a_rate_of_zero(stuck):
    assert (
        stuck.findings()["advice"].tolist()[0].startswith("No optimizer that was named holds them")
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    run = trained(model, optimizer, optimizer=optimizer)
    advice = run.findings().query("kind == 'stuck'")["advice"].item()
    assert advice == "Its group has a learning rate of 0: raise it."
    run = trained(model, optimizer)  # nothing is known of it
    advice = run.findings().query("kind == 'stuck'")["advice"].item()
    assert advice.startswith("Look whether the optimizer holds this parameter")


@pytest.mark.parametrize("level", ["module", "api"])
def test_the_rows_to_look_at_are_there_as_the_advice_spells_them(level):
    class Ratio(nn.Module):
        def forward(self, x):
            return x / x

    model = nn.Sequential(nn.Identity(), Ratio())
    with probe.watch(model, live=False, level=level) as run:
        model(torch.zeros(3))
    advice = run.first_nonfinite().advice
    assert "…" not in advice
    frame = eval(advice[advice.index("`run.") + 1 : advice.rindex("`")], {"run": run})
    assert frame["nan_count"].max() == 3
    assert set(frame["api"].astype(str)) == {"" if level == "module" else "Tensor.__truediv__"}


def test_tensors_are_named_in_the_order_of_english():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, live=False, optimizer=optimizer, roles="param, param_grad") as run:
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    words = repr(run)
    assert "parameter weight after the step" in words
    assert "gradient of weight that the optimizer saw" in words
    assert ".grad of the parameter bias" in words


# -- tables ----------------------------------------------------------------------------------------


def test_findings_print_as_sentences_and_are_a_frame(cut):
    found = cut.findings()
    text = repr(found)
    for name in ("sentence", "detail", "advice"):
        assert " ".join(found[name].item().split()) in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100
    assert isinstance(found, pd.DataFrame)
    assert type(found[["kind", "step"]]) is pd.DataFrame
    assert type(found.query("step >= 0")) is pd.DataFrame


def test_findings_in_a_notebook_are_whole_and_escaped():
    class Evil(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module("<b>x</b>", nn.Identity())

        def forward(self, x):
            return getattr(self, "<b>x</b>")(x * math.nan)

    model = Evil()
    with probe.watch(model, live=False) as run:
        model(torch.ones(2))
    html = run.findings()._repr_html_()
    assert "<b>x" not in html
    assert "&lt;b&gt;x" in html
    assert "..." not in html


def test_what_to_do_about_what_is_missing_is_shown_whole():
    model = nn.ModuleDict({"<b>": nn.Linear(2, 1), "never": nn.Linear(2, 1)})
    with probe.watch(model, live=False) as run:
        model["<b>"](torch.ones(1, 2))
    frame = run.coverage()
    page = unescape(frame._repr_html_())
    assert all(remedy in page for remedy in frame["remedy"])
    assert max(len(remedy) for remedy in frame["remedy"]) > pd.options.display.max_colwidth
    assert "<td><b>" not in frame._repr_html_()
    assert type(frame.head(1)) is pd.DataFrame
    assert repr(frame) == repr(pd.DataFrame(frame))


def test_a_healthy_run_has_nothing_found_in_words():
    model = nn.Linear(2, 1)
    with probe.watch(model, live=False) as run:
        model(torch.ones(1, 2)).sum().backward()
    assert repr(run.findings()) == "Nothing found."
    assert run.findings()._repr_html_() == "<div>Nothing found.</div>"
    assert len(run.findings()) == 0


def test_a_run_without_numbers_is_not_called_healthy(tmp_path):
    model = nn.Linear(2, 1)
    with probe.watch(model, structure=True, live=False) as shapes:
        model(torch.ones(1, 2))
    keep = probe.Keep("*", folder=tmp_path / "kept")
    with probe.watch(model, keep=keep, live=False):
        model(torch.ones(1, 2))
    with probe.watch(model, live=False) as idle:
        pass
    said = {
        "Shapes and dtypes alone were recorded": shapes,
        "No records were saved here": probe.load(tmp_path / "kept"),
        "Nothing was recorded": idle,
    }
    for words, run in said.items():
        found = run.findings()
        assert found.empty
        assert repr(found).startswith(f"Nothing could be judged. {words}")
        assert words in found._repr_html_()


def test_what_tells_rows_apart_is_seen_in_a_narrow_terminal(stuck):
    with pd.option_context("display.width", 80, "display.max_columns", 0):
        assert "ratio" in repr(stuck.updates(2)).splitlines()[0]
        head = repr(stuck.what_if("float16")).splitlines()[0].split()
    assert head[:3] == ["module", "role", "leaf"]


def test_cells_are_cut_where_they_tell_least():
    assert _short("12 NaN, 4 +Inf of 4,608", 12, "not_finite") == "12 NaN, 4 +…"
    assert _short("✕ NaN from step 0 (follows)", 12, "finding") == "✕ NaN from …"
    assert _short("encoder.layers.11.attention", 12, "module") == "…1.attention"
    assert _short("gradient of the parameter weight", 17, "tensor") == "gradient…r weight"
    assert _short("short", 12, "module") == "short"


def test_leaves_that_are_joined_have_the_l2_of_all_their_elements():
    model = nn.Linear(3, 2)
    with probe.watch(model, live=False) as run:
        model(torch.randn(5, 3)).square().sum().backward()
    grads = torch.cat([each.grad.flatten() for each in model.parameters()]).double()
    found = run.history("", "param_grad", "l2").item()
    assert found == pytest.approx(grads.norm().item(), rel=1e-5)
    huge = records.run([{"step": 0, "leaf": leaf, "l2": 3e200} for leaf in "ab"])
    assert huge.history("layer", stat="l2").item() == pytest.approx(3e200 * math.sqrt(2))
    none = records.run([{"step": 0, "leaf": leaf, "l2": 0.0} for leaf in "ab"])
    assert none.history("layer", stat="l2").item() == 0


# -- steps -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sparse():
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return trained(model, optimizer, times=9, optimizer=optimizer, steps="::2", keep="(root)")


ASKED = {
    "updates": lambda run, step: run.updates(step)["step"],
    "inputs": lambda run, step: run.inputs("", step)["step"],
    "frame": lambda run, step: run.frame(step=step)["step"],
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize(("step", "found"), [(-1, 8), (-2, 6), (4, 4)])
def test_steps_count_from_the_end_as_well(sparse, asked, step, found):
    assert set(ASKED[asked](sparse, step)) == {found}


def test_other_answers_count_steps_from_the_end_as_well(sparse):
    assert sparse.histogram("", step=-1) == sparse.histogram("", step=8)
    pd.testing.assert_frame_equal(sparse.what_if("float16", -2), sparse.what_if("float16", 6))
    assert torch.equal(sparse.tensor("", step=-1), sparse.tensor("", step=8))


@pytest.mark.parametrize("asked", ["updates", "inputs"])
@pytest.mark.parametrize("step", [3, 99, -7])
def test_who_asks_for_a_step_that_is_not_there_is_told_which_are(sparse, asked, step):
    with pytest.raises(SelectionError, match=f"step {step}.* steps 0 to 8, 5 of them"):
        ASKED[asked](sparse, step)


def test_updates_of_some_modules(stuck):
    assert set(stuck.updates(module="0")["module"]) == {"0"}
    whole = stuck.updates(-1)
    pd.testing.assert_frame_equal(
        stuck.updates(-1, module=["0", "2"]).reset_index(drop=True), whole.reset_index(drop=True)
    )
    with pytest.raises(SelectionError, match="No module matches `9`"):
        stuck.updates(module="9")


# -- where a watch stops ---------------------------------------------------------------------------


class Pole(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x * 1

    @staticmethod
    def backward(_, grad):
        return grad / 0


class InItsBackward(nn.Module):
    def forward(self, x):
        return Pole.apply(x)


class InItsForward(nn.Module):
    def forward(self, x):
        return x / (x - x)


@pytest.mark.parametrize("born", [InItsForward, InItsBackward, "step"])
def test_debuggers_are_led_past_our_frames(born):
    model = nn.Sequential(nn.Linear(8, 4), *([] if born == "step" else [born()]), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=math.inf)
    with pytest.raises(probe.NonFiniteError) as caught:
        trained(model, optimizer, optimizer=optimizer, stop_on="nonfinite")
    frames, trace = [], caught.value.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    ours = [f for f in frames if f.f_globals.get("__name__", "").startswith("probe_nb.")]
    raised = [f for f in ours if f.f_code.co_name != "__exit__"]
    assert raised
    assert all(f.f_locals.get("__tracebackhide__") for f in raised)
    assert frames[-len(raised) :] == raised  # and none of the user's is below
    assert not any(f.f_locals.get("__tracebackhide__") for f in frames[: -len(raised)])
    inside = "The forward of this module has returned"
    assert (inside in str(caught.value)) == (born is InItsForward)


# -- what keeps a question from its answer ---------------------------------------------------------


def one_step(*, model=None, **options):
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with probe.watch(model, **options) as run:
        model(torch.ones(2, 3)).sum().backward()
    return run


def test_a_dump_of_msprobes_has_no_histogram_and_the_plots_say_so(tmp_path):
    how = writer.wanted(run := one_step(), ours=False)  # what msProbe itself writes
    dump = probe.read_dump(writer.write(run, tmp_path / "dump", how))
    for draw in (
        lambda: dump.plot.histograms("0"),
        lambda: dump.plot.trend("0", "output", "std"),
        lambda: dump.plot.heatmap("std"),
    ):
        with pytest.raises(SelectionError, match=r"msProbe writes .* no histogram"):
            draw()


def test_a_run_of_shapes_alone_that_could_not_record_all_says_that_first():
    run = one_step(structure=True)
    assert verdict(run.columns, run.info).sentence.startswith("Shapes and dtypes alone")
    run.info.notices.append(f"{FAULT}: NameError in `0`")
    found = verdict(run.columns, run.info)
    assert (found.kind, found.sentence) == ("warn", "Not all could be recorded")
    assert "NameError in `0`" in found.detail


def test_a_job_of_which_a_rank_is_missing_does_not_begin_with_a_tick(tmp_path):
    for rank in (0, 2):
        run = one_step(name=str(rank))
        run.info.rank, run.info.world = rank, 4
        run.save(tmp_path / "job" / f"rank{rank}.parquet")
    first = repr(probe.load(tmp_path / "job")).splitlines()[0]
    assert first.startswith("! Ranks 1, 3 are missing: 1 step, 4 modules, no NaN or Inf")
    assert repr(run).startswith("✓ 1 step")  # one process alone knows nothing of the others


def test_what_grad_held_before_the_watch_is_named_where_one_run_alone_has_it():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    state = {name: each.clone() for name, each in model.state_dict().items()}
    clean = one_step(model=model)
    model.load_state_dict(state)
    again = one_step(model=model)
    said = " ".join(str(probe.compare(clean, again)).split())
    assert "! in the candidate alone `.grad` held something before a backward" in said
    assert "held something" not in str(probe.compare(again, again))


def test_a_scope_of_another_class_is_refused_and_that_of_a_base_is_not():
    with pytest.raises(SelectionError, match="the module there is no Linaer: it is a Linear"):
        one_step(scope=("Module.0.Linaer.forward.0", "Module.2.Linear.forward.0"))
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU())
    named = ("Module.0.Linear.forward.0", "Module.0.Linear.forward.0")
    run = one_step(model=model, scope=named, roles="output")
    assert run.df["module"].tolist() == ["0"]


def test_a_saved_value_is_asked_for_by_its_name_alone():
    with probe.watch(level="debug") as run:
        probe.save(torch.tensor([3.0, 5.0]), "scale")
    series = run.history(api="scale", role="value", stat="mean")
    assert (series.name, series.tolist()) == ("scale value mean", [4.0])
    assert repr(run.histogram(api="scale", role="value")).startswith("Histogram(2 elements")


def test_a_pattern_that_matches_nothing_is_told_where_the_watch_is_made():
    with pytest.raises(SelectionError, match=r"No module matches `00` .*closest is `0`"):
        probe.watch(nn.Sequential(nn.ReLU()), select="00")


def test_a_plot_that_there_is_not_is_told_with_the_nearest():
    run = one_step()
    with pytest.raises(AttributeError, match=r"no plot `histogrm`. The closest is `histogram`"):
        _ = run.plot.histogrm
    with pytest.raises(AttributeError, match=r"no plot `zzz`. There are histogram, trend"):
        _ = run.plot.zzz


def test_event_files_without_a_number_are_told(tmp_path):
    with probe.watch(nn.ReLU()) as run:
        pass
    with pytest.warns(ProbeWarning, match="no number"):
        run.to_tensorboard(tmp_path / "none")
    with no_faults():
        one_step().to_tensorboard(tmp_path / "some")
