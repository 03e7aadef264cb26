"""What another dtype would do, held against torch's own casts."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.errors import SelectionError
from tests.unit.view.make_runs import Book

LARGEST = {
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
}
SMALLEST = {
    "float16": 2.0**-24,
    "bfloat16": 2.0**-133,
    "float8_e4m3fn": 2.0**-9,
    "float8_e5m2": 2.0**-16,
}
NORMAL = {
    "float16": 2.0**-14,
    "bfloat16": 2.0**-126,
    "float8_e4m3fn": 2.0**-6,
    "float8_e5m2": 2.0**-14,
}


def wide(seed=0, n=4000):
    """Values over all of float32's normal range, none in the topmost power of two of a dtype."""
    random = np.random.default_rng(seed)
    exponents = random.integers(-120, 120, n)
    exponents[np.isin(exponents, (8, 15))] = 7
    return random.choice([-1.0, 1.0], n) * np.ldexp(1 + random.random(n) * 0.99, exponents)


@pytest.mark.parametrize("name", list(LARGEST))
class TestShares:
    def test_they_are_those_of_the_values_themselves(self, name):
        x = wide()
        found = Book().add("a", x).run().what_if(name).iloc[0]
        assert found["underflow"] == (np.abs(x) < SMALLEST[name]).mean()
        assert found["overflow"] == (np.abs(x) > LARGEST[name]).mean()
        between = (np.abs(x) >= SMALLEST[name]) & (np.abs(x) < NORMAL[name])
        assert found["subnormal"] == pytest.approx(between.mean(), abs=1e-12)

    def test_the_limits_are_those_of_torch(self, name):
        limits = torch.finfo(getattr(torch, name))
        assert (LARGEST[name], NORMAL[name]) == (limits.max, limits.smallest_normal)
        smallest = torch.tensor(SMALLEST[name], dtype=torch.float64).to(getattr(torch, name))
        assert smallest.double().item() == SMALLEST[name]

    def test_it_can_be_asked_with_torchs_own_name(self, name):
        run = Book().add("a", wide()).run()
        assert run.what_if(getattr(torch, name)).equals(run.what_if(name))

    def test_the_loss_scale_is_the_largest_power_of_two_that_fits(self, name):
        book = Book().add("a", [3e-6, 1e-8], "grad_output").add("b", [2e-5, 1e-9], "grad_output")
        frame = book.add("c", [1e3, 1.0]).run().what_if(name).set_index("module")
        for module, largest in (("a", 3e-6), ("b", 2e-5)):
            scale = frame.loc[module, "loss_scale"]
            assert math.frexp(scale)[0] == 0.5
            assert (
                largest * scale <= 0.25 * LARGEST[name] < largest * scale * 2 or scale == 2.0**126
            )
        assert frame["loss_scale"].isna().to_dict() == {"a": False, "b": False, "c": True}

    def test_what_is_lost_at_the_scale_that_fits_all_is_counted(self, name):
        values = np.array([2.0**-10, 2.0**-30, 2.0**-60, 2.0**-90])
        frame = Book().add("a", values, "grad_output").run().what_if(name)
        scale = frame.attrs["loss_scale"]
        expected = (values * scale < SMALLEST[name]).mean()
        assert frame["lost"].item() == expected


class TestEdges:
    def test_one_value_beyond_the_largest_counts_at_least_once(self):
        found = Book().add("a", [65519.0, 1.0, 2.0, 3.0]).run().what_if("float16").iloc[0]
        assert found["overflow"] == 0.25
        assert Book().add("a", [65504.0, 1.0]).run().what_if("float16")["overflow"].item() == 0

    def test_zeros_and_what_is_not_finite_have_no_share(self):
        found = Book().add("a", [0.0, 0.0, np.nan, np.inf, 1.0, 1e-9]).run().what_if("float16")
        assert found["underflow"].item() == 0.5

    def test_masks_are_left_out(self):
        low = -3.4028234663852886e38
        frame = (
            Book()
            .add("mask", [0.0, low, low, 2.0], "input")
            .add("a", [1e5])
            .run()
            .what_if("float16")
        )
        assert frame["module"].tolist() == ["a", "mask"]
        assert frame["overflow"].tolist() == [1.0, 0.0]
        assert frame["absmax"].tolist() == [1e5, 2.0]

    def test_what_a_mask_hides_is_not_known(self):
        low = -3.4028234663852886e38
        book = Book().add("hidden", [low, -1e5, 3.0, 1.0]).add("near", [low, -2.5, 3.0])
        book.add("larger", [low, -1e5, 3e5]).add("seen", [low, -1e5, 3.0])
        frame = book.add("seen", [2e5], step=1).run().what_if("float16").set_index("module")
        assert frame["absmax"].isna().to_dict() == {
            "hidden": True,
            "near": True,
            "larger": False,
            "seen": False,
        }
        assert (frame.loc["larger", "absmax"], frame.loc["seen", "absmax"]) == (3e5, 2e5)
        assert frame.loc["hidden", "overflow"] == 1 / 3
        assert frame.loc["near", "overflow"] == 0

    def test_the_largest_number_of_both_signs_is_no_mask(self):
        values = [-3.4028234663852886e38, 3.4028234663852886e38, 1.0, 1.0]
        found = Book().add("a", values).run().what_if("float16").iloc[0]
        assert (found["overflow"], found["absmax"]) == (0.5, 3.4028234663852886e38)

    def test_what_is_below_the_lowest_bin_is_not_told_apart(self):
        """Of 1e-40 bfloat16 has a subnormal, of 1e-45 nothing: a bin holds both."""
        cast = torch.tensor([1e-40, 1e-45]).to(torch.bfloat16)
        assert (cast != 0).tolist() == [True, False]
        book = Book().add("a", [1e-40, 1e-45]).add("b", [1.0, 1e-30])
        frame = book.run().what_if("bfloat16").set_index("module")
        assert frame["underflow"].isna().to_dict() == {"a": True, "b": False}
        assert frame["subnormal"].isna().to_dict() == {"a": True, "b": False}
        assert book.run().what_if("float16").set_index("module").loc["a", "underflow"] == 1.0

    def test_underflow_is_below_the_smallest_number_though_rounding_may_reach_it(self):
        smallest = 2.0**-24
        values = [0.75 * smallest, 0.25 * smallest, smallest, 1.0]
        assert torch.tensor(values, dtype=torch.float64).half().tolist()[:2] == [smallest, 0.0]
        assert Book().add("a", values).run().what_if("float16")["underflow"].item() == 0.5

    def test_the_worst_comes_first(self):
        book = Book().add("fine", [1.0]).add("small", [1e-9, 1.0]).add("large", [1e6, 1.0])
        assert book.run().what_if("float16")["module"].tolist() == ["large", "small", "fine"]

    def test_one_step_can_be_asked(self):
        run = Book().add("a", [1.0]).add("a", [1e6], step=1).run()
        assert run.what_if("float16", step=0)["overflow"].item() == 0
        assert run.what_if("float16")["overflow"].item() == 0.5
        with pytest.raises(SelectionError, match=r"in step 7\. There are steps 0 to 1\."):
            run.what_if("float16", step=7)

    def test_whole_numbers_have_no_dtype_to_change(self):
        assert Book().add("ids", [5, 6], dtype="int64").run().what_if("float16").empty

    def test_of_what_has_no_histogram_no_share_is_made_up(self):
        book = Book().add("wide", [1e6, 1e-9], "grad_output").add("fits", [1.0, 1e-9])
        for row in book.rows:
            row |= {"hist_size": 0, "bins": [], "counts": []}
        book.add("counted", [1.0, 1e-9])
        frame = book.run().what_if("float16").set_index("module")
        assert frame.index[0] == "wide"  # it overflows, nobody knows how much of it
        for name in ("wide", "fits"):
            assert frame.loc[name, ["underflow", "subnormal", "lost"]].isna().all()
        assert pd.isna(frame.loc["wide", "overflow"])
        assert frame.loc["wide", "loss_scale"] == 2.0**-6  # the largest under 16376 / 1e6
        assert frame.loc["fits", "overflow"] == 0
        assert frame.loc["counted", "underflow"] == 0.5

    def test_another_dtype_is_refused(self):
        with pytest.raises(SelectionError, match="closest are `float16`"):
            Book().add("a", [1.0]).run().what_if("float61")


def test_a_model_that_overflows_in_float16_does_so_where_it_was_said():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    with torch.no_grad():
        model[1].weight *= 3e5
    x = torch.randn(64, 8)
    with probe.watch(model, roles="output", live=False) as run:
        model(x)
    frame = run.what_if("float16").set_index("module")
    with torch.no_grad():
        for name in ("0", "1", "2"):
            x = model[int(name)](x)
            lost = (x.abs() > 65504).sum().item() / x.numel()
            top = (x.abs() >= 32768).sum().item() / x.numel()
            assert lost <= top
            assert frame.loc[name, "overflow"] <= lost
            assert (frame.loc[name, "overflow"] > 0) == (lost > 0)


class Scores(nn.Module):
    """Two layers, between whose outputs there is a product that float16 cannot hold."""

    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        for each in (self.q, self.k):
            nn.init.constant_(each.weight, 250.0)

    def forward(self, x):
        return torch.softmax(self.q(x) @ self.k(x).T, -1)


@pytest.mark.parametrize(("level", "over"), [("module", False), ("mix", True)])
def test_what_overflows_between_two_modules_is_seen_where_functions_were_recorded(level, over):
    model = Scores()
    with probe.watch(model, level=level, live=False) as run:
        model(torch.ones(3, 2)).sum().backward()
    found = run.what_if("float16")
    beyond = found[found["overflow"] > 0]
    assert ("Tensor.__matmul__" in beyond["api"].tolist()) is over
    assert beyond.empty is not over
    if over:  # every product is 2 * 500 * 500
        row = beyond[beyond["role"].eq("output") & beyond["api"].eq("Tensor.__matmul__")].iloc[0]
        assert (row["absmax"], row["overflow"]) == (500_000.0, 1.0)


def test_the_gradient_of_a_loss_does_not_limit_the_loss_scale():
    model = nn.Linear(4, 4)
    scales = []
    for level in ("module", "mix"):
        model.zero_grad()
        with probe.watch(model, level=level, live=False) as run:
            (model(torch.ones(2, 4)).mean() * 1.0).backward()
        scales.append(run.what_if("float16").attrs["loss_scale"])
    assert scales[0] == scales[1] == 2.0 ** math.floor(math.log2(65504 / 4 / 0.25))


def test_settings_of_an_optimizer_and_extras_are_no_sites():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    with probe.watch(model, optimizer=optimizer, extras={"spectral_norm": "*"}) as run:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    found = run.what_if("float16")
    assert not found["leaf"].str.startswith(("group0", "spectral", "skipped")).any()
    assert "weight.exp_avg" in found["leaf"].tolist()
