"""Of two runs a replay says which is how far from the truth; words and tables say it plainly."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import probe_nb as probe
from tests.unit.replay.replaying import called, error, steps, watched, wide


class Rounds(nn.Linear):
    """Rounds its input to float16 first."""

    def forward(self, x):
        return super().forward(x.half().float())


def pair(wrong=Rounds, name="0"):
    torch.manual_seed(0)
    right = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
    faulty = nn.Sequential()
    faulty.add_module(name, wrong(16, 16))
    faulty.add_module("1", nn.Tanh())
    faulty[0].load_state_dict(right[0].state_dict())
    x = torch.randn(8, 16)
    return right, faulty, x


def test_it_says_how_many_times_further_the_candidate_is_from_the_truth():
    right, faulty, x = pair()
    one, first = called(right[0], x)
    other, second = called(faulty[0], x)
    found = probe.compare(one, other).replay("(root)", right[0])
    truth = wide(x) @ wide(right[0].weight).T + wide(right[0].bias)
    errors = error(first, truth), error(second, truth)
    assert found.df["run"].tolist() == ["baseline", "candidate"]
    assert found.df["error"].tolist() == pytest.approx(errors, rel=1e-6)
    assert found.df["verdict"].tolist() == ["within", "above"]
    times = float(f"{errors[1] / errors[0]:.2g}")
    assert times > 100
    assert found.sentence.startswith(
        f"the candidate is {times:,.0f} times further from the truth than the baseline at (root): "
    )
    assert found.sentence.endswith("rounding does not explain that of the candidate")


def test_it_may_be_the_baseline_that_is_wrong():
    right, faulty, x = pair()
    found = probe.compare(watched(faulty, x), watched(right, x)).replay("0", right)
    assert "the baseline is" in found.sentence
    assert found.sentence.endswith("rounding does not explain that of the baseline")


def test_or_neither():
    right, _, x = pair()
    found = probe.compare(watched(right, x), watched(right, x)).replay("0", right)
    assert found.verdict == "within"
    assert found.sentence.startswith("both are about equally far from the truth at 0: ")
    assert found.sentence.endswith("rounding explains both")


def test_or_both():
    right, faulty, x = pair()
    found = probe.compare(watched(faulty, x), watched(faulty, x)).replay("0", right)
    assert found.verdict == "above"
    assert found.sentence.endswith("rounding does not explain either")


def test_each_run_is_measured_against_the_truth_for_its_own_inputs():
    right, _, x = pair()
    found = probe.compare(watched(right, x), watched(right, x * 2)).replay("0", right)
    assert found.verdict == "within"
    first, second = (found.truth(run=name) for name in ("baseline", "candidate"))
    bias = right[0].bias.detach().double()
    torch.testing.assert_close(second - bias, (first - bias) * 2)


def test_a_module_that_has_another_path_in_the_candidate_is_found():
    right, faulty, x = pair(name="renamed")
    comparison = probe.compare(watched(right, x), watched(faulty, x), mapping={"0": "renamed"})
    found = comparison.replay("0", right)
    assert found.df["verdict"].tolist() == ["within", "above"]


def test_the_newest_step_of_both_is_taken():
    right, _, x = pair()
    runs = []
    for count in (3, 2):
        with probe.watch(right, keep=probe.Keep("*", roles="input, output"), live=False) as run:
            for _ in range(count):
                right(x)
                run.step()
        runs.append(run)
    assert probe.compare(*runs).replay("0", right).step == 1


def test_functions_are_replayed_as_well():
    runs = []
    x = steps(4, 8)
    for dim in (0, 1):
        keep = probe.Keep("Functional.softmax", roles="input, output")
        with probe.watch(level="api", keep=keep, values=True, live=False) as run:
            torch.nn.functional.softmax(x, dim=dim)
        runs.append(run)
    found = probe.compare(*runs).replay(api="Functional.softmax")
    assert found.verdict == "within"  # each did what it was asked to


def test_where_one_side_gives_no_verdict_it_says_which():
    right, _, x = pair()
    one = watched(right, x)
    with torch.no_grad():
        right[0].weight.mul_(2)
    found = probe.compare(one, watched(right, x)).replay("0", right)
    assert found.verdict == "not_judged"
    assert found.sentence.startswith("no verdict of the baseline at 0: the parameters weight")
    assert found.df["verdict"].tolist() == ["not_judged", "within"]


def test_words_and_tables_say_it_and_every_text_is_escaped():
    class Odd(nn.Module):
        def forward(self, x):
            return {"<script>": x * 1.5}

    model = nn.Sequential()
    model.add_module("<b>", Odd())
    found = watched(model, steps(3)).replay("<b>", model)
    html = found._repr_html_()
    assert "<script>" not in html
    assert "<b>;" not in html
    assert "output &lt;script&gt;" in html
    text = repr(found)
    assert text.startswith("✓ the result of <b> on cpu is within rounding")
    assert "<b> (Odd), step 0, call 0, again in float64 on the CPU" in text
    assert max(map(len, text.splitlines())) <= 100


def test_it_cannot_be_changed():
    right, _, x = pair()
    found = watched(right, x).replay("0", right)
    with pytest.raises(AttributeError):
        found.verdict = "above"
    found.truth().zero_()
    assert found.truth().abs().sum() > 0
    with pytest.raises(probe.errors.SelectionError, match="no one output `1`"):
        found.truth("1")
