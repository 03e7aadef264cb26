"""What holds for every plot: names as they are, words where nothing is there, light and dark."""

from __future__ import annotations

import doctest
import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib import colors
from matplotlib import pyplot as plt

import probe_nb as probe
from probe_nb.errors import SelectionError
from probe_nb.exponents import Histogram
from probe_nb.view.plots import Plots, powers, style
from tests import records
from tests.drawn import draw, marked, names_down, words

STYLES = ("default", "dark_background")
NAMES = ("histogram", "trend", "heatmap", "histograms", "gradient_flow", "update_ratios")


@pytest.fixture(autouse=True)
def _closed_figures():
    yield
    plt.close("all")


# -- every plot ------------------------------------------------------------------------------------


def everything(module="fc"):
    """Return a run in which every plot finds something to draw, all of one module."""
    values = np.random.default_rng(0).normal(size=64)
    rows = []
    for step in range(4):
        bad = {"nan_count": 1} if step == 2 else {}
        for role, direction in [
            *(("param", "forward"), ("input", "forward"), ("output", "forward")),
            *(("param_grad", "backward"), ("update", "optimizer")),
        ]:
            row = {"module": module, "role": role, "direction": direction, "step": step}
            row |= {"leaf": "weight" if role in {"param", "param_grad", "update"} else "0"}
            scale = 10.0 ** (step - 2)
            row |= {"absmax": 3.0 * scale, "l2": scale, "mean": -scale, "numel": 64 + len(bad)}
            rows.append({**row, **bad, "histogram": Histogram.of(values * scale)})
    return records.run(rows)


CALLS = {
    "histogram": lambda plot, module, **kw: plot.histogram(module, **kw),
    "trend": lambda plot, module, **kw: plot.trend(module, **kw),
    "heatmap": lambda plot, module, **kw: plot.heatmap(module=module, **kw),
    "histograms": lambda plot, module, **kw: plot.histograms(module, **kw),
    "gradient_flow": lambda plot, module, **kw: plot.gradient_flow(module=module, **kw),
    "update_ratios": lambda plot, module, **kw: plot.update_ratios(module=module, **kw),
}


def test_there_are_six_plots_and_all_are_tried_here():
    run = everything()
    assert repr(run.plot) == f"Plots({', '.join(NAMES)})"
    assert tuple(CALLS) == NAMES


def plainly(ax):
    """Return every text of a figure as it is read."""
    found = []
    for each in ax.figure.findobj(mpl.text.Text):
        text = each.get_text()
        if each.get_visible() and text:
            found.append(each._preprocess_math(text))
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("module", ["_cost$ in $ <b>&", "$x^{", "a\nb", ""])
def test_a_module_is_written_as_it_is_called_whatever_that_is(name, module):
    written = plainly(draw(CALLS[name](everything(module).plot, module)))
    shown = {"a\nb": r"a\nb", "": "(root)"}.get(module, module)
    assert any(shown in text and not math_ for text, math_ in written)


@pytest.mark.parametrize("name", ["trend", "heatmap"])
@pytest.mark.parametrize("sizes", [(1e305, 1e307), (1e307, 1.1e307)], ids=str)
def test_numbers_near_the_end_of_float64_are_drawn_without_a_warning(name, sizes):
    rows = [
        {"module": "fc", "role": "output", "direction": "forward", "leaf": "0", "step": step}
        | {"absmax": size, "numel": 1}
        for step, size in enumerate(sizes)
    ]
    ax = CALLS[name](records.run(rows).plot, "fc")
    draw(ax)
    if name == "trend":
        assert max(ax.lines[0].get_ydata()) == max(sizes)


def test_names_that_begin_with_an_underscore_are_in_the_legend():
    rows = [{"module": m, "absmax": 1.0} for m in ("_a", "_b")]
    assert words(records.run(rows).plot.trend("*")) == ["_a", "_b"]


def test_a_long_name_keeps_its_beginning_and_its_end():
    module = "model.language_model.layers.31.self_attention.rotary.projection"
    (short,) = names_down(records.run([{"module": module}]).plot.heatmap())
    assert len(short) == 34
    assert module.startswith(short.split("…")[0])
    assert module.endswith(short.split("…")[1])


@pytest.mark.parametrize("name", NAMES)
def test_a_plot_draws_on_the_axes_it_is_given_and_makes_no_figure(name):
    figure, (left, right) = plt.subplots(1, 2)
    before = plt.get_fignums()
    assert CALLS[name](everything().plot, "fc", ax=left) is left
    draw(left)
    assert left.has_data()
    assert not right.has_data()
    assert plt.get_fignums() == before
    assert figure.axes[:2] == [left, right]


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_run_says_that_it_is_empty(name):
    with pytest.raises(SelectionError, match="has no records"):
        CALLS[name](records.run([]).plot, "fc")


@pytest.mark.parametrize("name", NAMES)
def test_a_module_that_is_not_there_is_named_with_the_nearest(name):
    with pytest.raises(SelectionError, match=r"No module matches `fx`.*`fc`"):
        CALLS[name](everything().plot, "fx")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda p: p.trend("fc", "outptu"), "`outptu` is not a role.*`output`"),
        (lambda p: p.trend("fc", stat="maximum"), "`maximum` is not a statistic"),
        (lambda p: p.heatmap("absmx"), "`absmx` is not a statistic.*`absmax`"),
        (lambda p: p.heatmap(role="grad_input"), "This run has no `grad_input` rows; it has"),
        (lambda p: p.trend(["fc", "fc"], "state"), "`fc`, `fc` has no `state` rows"),
        (lambda p: p.histogram("fc", step=9), "Nothing was counted at `fc` output in step 9"),
        (lambda p: p.histogram("fc", dtypes=["float17"]), "`float17` is not a type.*`float16`"),
        (lambda p: p.histograms("fc", dtype="int4"), "`int4` is not a type"),
        (lambda p: p.gradient_flow(9), "No gradient of a parameter arrived in step 9"),
        (lambda p: p.gradient_flow(stat="rmss"), "`rmss` is not a statistic"),
    ],
)
def test_what_is_not_there_is_said_in_words(call, says):
    with pytest.raises(SelectionError, match=says):
        call(everything().plot)
    assert plt.get_fignums() == []


@pytest.mark.parametrize("name", ["trend", "heatmap", "histogram", "histograms"])
def test_rows_without_numbers_are_no_plot(name):
    run = records.run([{"module": "fc", "status": "meta"}])
    with pytest.raises(SelectionError, match=r"has a number|Nothing was counted"):
        CALLS[name](run.plot, "fc")


# -- light and dark --------------------------------------------------------------------------------


def contrast(a, b):
    """Return the contrast of two colours as WCAG 2 defines it."""

    def luminance(color):
        rgb = np.array(colors.to_rgb(color))
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("style_", [*STYLES, "ggplot", "Solarize_Light2", "grayscale"])
def test_text_alarms_and_data_stand_out_from_the_page(style_):
    with plt.style.context(style_):
        _, ax = plt.subplots()
        found = style.palette(ax)
    assert found.dark == (style_ == "dark_background")
    assert contrast(found.data, found.page) >= 3
    assert contrast(found.alarm, found.page) >= 3
    if style_ in STYLES:
        assert contrast(found.soft, found.page) >= 4.5
        assert min(contrast(each, found.page) for each in found.lines) >= 2
    assert found.alarm not in found.lines


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("style_", STYLES)
def test_every_text_can_be_read_on_its_page_also_when_the_style_has_gone(name, style_):
    with plt.style.context(style_):
        _, ax = plt.subplots()
    draw(CALLS[name](everything().plot, "fc", ax=ax))
    page = ax.get_facecolor()
    own = [text for text in ax.findobj(mpl.text.Text) if text.get_text() and text.get_visible()]
    assert own
    assert {
        text.get_text(): contrast(text.get_color(), page)
        for text in own
        if contrast(text.get_color(), page) < 3
    } == {}


def test_what_is_not_finite_has_the_same_colour_everywhere_and_data_has_another():
    run = everything()
    ax = run.plot.trend("fc")
    alarm = style.palette(ax).alarm
    assert marked(ax, "bad")[0].get_markerfacecolor() == alarm
    cells = next(c for c in run.plot.heatmap().collections if c.get_gid() == "bad")
    assert colors.to_hex(cells.get_facecolor()[0]) == alarm.lower()


# -- from the file, and for real -------------------------------------------------------------------


def test_a_saved_run_is_drawn_without_torch_and_matplotlib_is_imported_only_for_that(tmp_path):
    path = everything().save(tmp_path / "run.parquet")
    code = f"""
import sys
sys.modules["torch"] = None
import probe_nb.run
run = probe_nb.run.load({str(path)!r})
plots = run.plot
assert "matplotlib" not in sys.modules
for ax in (
    plots.histogram("fc"), plots.trend("fc"), plots.heatmap(), plots.histograms("fc"),
    plots.gradient_flow(), plots.update_ratios(),
):
    ax.figure.canvas.draw()
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={
            "PATH": "",
            "MPLBACKEND": "Agg",
            "MPLCONFIGDIR": str(tmp_path),
            "PYTHONPATH": ":".join(sys.path),
        },
        timeout=250,
    )
    assert done.returncode == 0, done.stderr


def test_what_is_drawn_of_a_real_training_is_what_torch_computes():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    outputs, norms = [], []
    with probe.watch(model) as run:
        for _ in range(3):
            x = torch.randn(5, 3)
            outputs.append(model[0].weight.detach().double() @ x.double().T)
            outputs[-1] += model[0].bias.detach().double()[:, None]
            model.zero_grad()
            model(x).square().sum().backward()
            norms.append(
                [float(p.grad.double().square().mean().sqrt()) for p in model.parameters()]
            )
            with torch.no_grad():
                for p in model.parameters():
                    p.sub_(0.1 * p.grad)
            run.step()
        ax = run.plot.trend("0", "output", "absmax")  # also while the watch is open
    expected = [float(out.abs().max()) for out in outputs]
    np.testing.assert_allclose(ax.lines[0].get_ydata(), expected, rtol=1e-5)
    ax = run.plot.gradient_flow(1)
    (weights,), (biases,) = marked(ax, "weight"), marked(ax, "bias")
    np.testing.assert_allclose(weights.get_xdata(), norms[1][::2], rtol=1e-5)
    np.testing.assert_allclose(biases.get_xdata(), norms[1][1::2], rtol=1e-5)
    ax = run.plot.histogram("0", step=2)
    low = np.floor(np.log2(outputs[2].abs().numpy()))
    assert sorted(b.get_height() for b in ax.containers[0]) == sorted(
        np.unique(
            np.stack([np.sign(outputs[2].numpy()), low]).reshape(2, -1), axis=1, return_counts=True
        )[1]
    )


@pytest.mark.parametrize(
    "of", [Plots, *(getattr(Plots, name) for name in NAMES)], ids=lambda o: o.__name__
)
def test_the_example_of_a_plot_runs(of):
    found = doctest.DocTestFinder(recurse=False).find(of, of.__name__, globs={})
    said: list[str] = []
    for each in found:
        doctest.DocTestRunner().run(each, out=said.append)
    assert said == []
    assert of is Plots or of.__name__ == "update_ratios" or any(each.examples for each in found)


@pytest.mark.parametrize("room", [style, powers])
def test_the_examples_of_what_plots_are_made_of_run(room):
    assert doctest.testmod(room).failed == 0
