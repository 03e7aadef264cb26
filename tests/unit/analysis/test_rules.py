"""Each rule on a run whose right answer is known by hand, and beside it on one that is healthy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.unit.view.make_runs import Book, info

NAN, INF = np.nan, np.inf


def normal(scale=1.0, shape=(4, 8), seed=0):
    """Numbers whose rms is exactly `scale`."""
    values = np.random.default_rng(seed).normal(size=shape)
    return values * scale / math.sqrt((values**2).mean())


def findings(book, **thresholds):
    return book.run().findings(**thresholds)


def kinds(book, severity=None, **thresholds):
    found = findings(book, **thresholds)
    return found["kind"][found["severity"] == severity if severity else slice(None)].tolist()


def only(book, kind):
    found = findings(book)
    found = found[found["kind"] == kind]
    assert len(found) == 1
    return found.iloc[0]


class TestSaturated:
    @pytest.mark.parametrize(
        ("kind", "values", "slope"),
        [
            ("Tanh", [0.999, -0.999, 0.995, -0.995], 1 - (0.999**2 + 0.995**2) / 2),
            ("Sigmoid", [0.001, 0.999, 0.004, 0.996], 4 * (0.001 * 0.999 + 0.004 * 0.996) / 2),
        ],
    )
    def test_the_mean_slope_follows_exactly_from_mean_and_l2(self, kind, values, slope):
        book = Book()
        for step in range(3):
            book.add("act", values, kind=kind, step=step).add("after", normal(), step=step)
        found = only(book, "saturated")
        assert found["module"] == "act"
        assert found["severity"] == "warning"
        assert found["value"] == pytest.approx(slope, rel=1e-9)

    @pytest.mark.parametrize(
        ("kind", "values"), [("Tanh", [0.9, -0.9]), ("Sigmoid", [0.05, 0.95]), ("GELU", [1.0, 1.0])]
    )
    def test_an_activation_with_slope_left_is_healthy(self, kind, values):
        book = Book()
        for step in range(3):
            book.add("act", values, kind=kind, step=step).add("after", normal(), step=step)
        assert kinds(book) == []

    def test_two_steps_are_no_pattern(self):
        book = Book()
        for step in range(2):
            book.add("act", [1.0, -1.0], kind="Tanh", step=step).add("after", normal(), step=step)
        assert kinds(book) == []

    def test_the_last_activation_may_be_as_sharp_as_its_targets(self):
        book = Book()
        for step in range(3):
            book.add("before", normal(), step=step)
            book.add("act", [1.0, -1.0], kind="Tanh", step=step)
            book.add("", [1.0, -1.0], kind="Sequential", step=step)
        assert (only(book, "saturated")["severity"], kinds(book)) == ("note", ["saturated"])


class TestDead:
    def test_a_rectifier_of_almost_nothing_but_zeros_is_dead(self):
        values = np.zeros(1000)
        values[:5] = 1.0
        book = Book()
        for step in range(4):
            book.add("relu", values, kind="ReLU", step=step).add("linear", normal(), step=step)
        found = only(book, "dead")
        assert (found["module"], found["step"]) == ("relu", 0)
        assert found["value"] == pytest.approx(0.995)
        assert found["detail"] == "from its first step (0) to step 3"
        assert found["advice"].startswith("It never worked: look at the initialisation")
        assert kinds(book, dead_share=0.996) == []

    @pytest.mark.parametrize(
        ("steps", "dies", "said"),
        [(9, 4, "from step 4 to step 8"), (300, 1, "at least from step ")],
    )
    def test_since_when_one_is_dead_is_said_as_far_as_it_is_known(self, steps, dies, said):
        book = Book()
        for step in range(steps):
            book.add("relu", normal() if step < dies else np.zeros(32), kind="ReLU", step=step)
            book.add("linear", normal(), step=step)
        [found] = findings(book).query("kind == 'dead'").to_dict("records")
        assert found["detail"].startswith(said)
        assert "at least" in found["detail"] or found["detail"] == said
        assert found["advice"].startswith("Lower the learning rate")

    def test_nine_zeros_of_ten_are_usual(self):
        values = np.zeros(1000)
        values[:100] = 1.0
        book = Book()
        for step in range(4):
            book.add("relu", values, kind="ReLU", step=step)
        assert kinds(book) == []

    def test_the_module_that_finished_first_is_named_and_not_what_is_around_it(self):
        book = Book()
        for step in range(3):
            book.add("body", normal(), "input", step=step)
            book.add("body.0", normal(), "input", step=step)
            book.add("body.0", np.zeros(8), step=step)
            book.add("body", np.zeros(8), step=step, kind="Sequential")
        found = only(book, "dead")
        assert found["module"] == "body.0"
        assert "the same in 1 other site" in found["detail"]

    def test_where_the_loss_asks_for_nothing_no_module_is_dead(self):
        book = Book()
        for step in range(3):
            book.add("a", normal(), step=step).add("", normal(), step=step)
            book.add("", np.zeros(8), "grad_output", step=step)
            book.add("a", np.zeros(8), "grad_output", step=step)
        assert kinds(book, "warning") == []
        assert only(book, "dead")["severity"] == "note"

    @pytest.mark.parametrize("trains", [False, True])
    def test_what_a_module_hands_on_besides_may_be_zero_on_purpose(self, trains):
        book = Book()
        for step in range(3):
            book.add("a", normal(), leaf="0", step=step)
            book.add("a", np.zeros(8), leaf="1", step=step, requires_grad=False)
            if trains:
                book.add("a", normal(), "grad_output", step=step)
        assert kinds(book) == []

    def test_since_when_it_is_dead(self):
        book = Book()
        for step in range(6):
            book.add("relu", np.zeros(8) if step >= 2 else normal(), step=step)
        assert only(book, "dead")["step"] == 2


class TestGrowing:
    def layers(self, gains, **options):
        book = Book()
        for number, gain in enumerate(gains):
            name, kind = f"{number}", options.get("kind", "Linear")
            book.add(name, normal(), "param", leaf="weight", kind=kind)
            book.add(name, normal(2.0), "input", kind=kind).add(name, normal(2.0 * gain), kind=kind)
        if options.get("trains", True):
            book.add("0", normal(), "grad_output")
        return book

    def test_the_layer_beside_healthy_ones_is_named(self):
        values = normal(1.0, seed=3)
        book = self.layers([0.6, 0.6, 25.0, 0.6])
        found = only(book, "growing")
        assert (found["module"], found["severity"], found["step"]) == ("2", "warning", 0)
        spread = values.std() * 25  # the mean of the output is no gain
        assert found["value"] == pytest.approx(normal(50.0).std() / 2.0)
        assert spread > 20

    def test_nine_times_is_under_the_threshold_which_can_be_changed(self):
        book = self.layers([0.6, 0.6, 9.0, 0.6])
        assert kinds(book) == []
        assert kinds(book, gain=8.0) == ["growing"]

    def test_layers_that_all_do_it_are_meant_to(self):
        assert kinds(self.layers([20.0, 22.0, 24.0, 26.0])) == []

    def test_a_run_that_does_not_train_is_not_judged(self):
        assert kinds(self.layers([0.6, 25.0], trains=False)) == []

    def test_a_norm_may_multiply_by_anything(self):
        assert kinds(self.layers([0.6, 1000.0], kind="LayerNorm")) == []

    def test_what_training_makes_of_a_layer_later_is_not_its_initialisation(self):
        book = self.layers([0.6, 0.6])
        for step in range(1, 3):
            book.add("1", normal(2.0), "input", step=step).add("1", normal(19.0), step=step)
        assert kinds(book) == []

    def test_an_embedding_is_held_against_one(self):
        book = Book().add("embed", normal(), "param", leaf="weight", kind="Embedding")
        book.add("embed", [3, 4], "input", dtype="int64", kind="Embedding")
        book.add("embed", normal(40.0), kind="Embedding").add("embed", normal(), "grad_output")
        assert only(book, "growing")["module"] == "embed"

    def test_a_bias_is_no_gain(self):
        book = Book().add("a", normal(), "param", leaf="weight")
        book.add("a", normal(5.0, (8,)), "param", leaf="bias").add("a", normal(0.1), "input")
        book.add("a", normal(5.0)).add("a", normal(), "grad_output")
        assert kinds(book) == []

    def test_the_innermost_part_is_named(self):
        book = Book().add("", normal(), "input", kind="Net").add("blocks", normal(), "input")
        book.add("blocks", normal(5e3), kind="Sequential").add("", normal(5e3), kind="Net")
        book.add("", normal(), "grad_output", kind="Net")
        assert only(book, "growing")["module"] == "blocks"

    def test_a_sum_grows_by_adding_up(self):
        book = Book().add("loss", normal(), "input").add("loss", normal(5e3, (2,)))
        book.add("loss", normal(), "grad_output")
        assert kinds(book) == []

    def test_a_part_without_parameters_that_returns_next_to_nothing_is_named(self):
        book = Book().add("prepare", normal(), "input", kind="Prepare")
        book.add("prepare", normal(1e-5), kind="Prepare").add("a", normal(), "grad_output")
        found = only(book, "vanishing")
        assert (found["module"], found["severity"]) == ("prepare", "warning")

    @pytest.mark.parametrize("kind", ["Softmax", "Dropout"])
    def test_probabilities_are_small_on_purpose(self, kind):
        book = Book().add("p", normal(), "input", kind=kind).add("p", normal(1e-5), kind=kind)
        assert kinds(book.add("a", normal(), "grad_output")) == []

    def test_a_scale_with_a_parameter_may_begin_at_nothing(self):
        book = Book().add("s", normal(1e-6, (8,)), "param", leaf="gamma", kind="LayerScale")
        book.add("s", normal(), "input", kind="LayerScale")
        book.add("s", normal(1e-6), kind="LayerScale").add("s", normal(), "grad_output")
        assert kinds(book) == []


class TestDepth:
    def net(self, sizes, steps=3):
        book = Book()
        for step in range(steps):
            for number, _ in enumerate(sizes):
                book.add(f"{number}", normal(), "param", leaf="weight", step=step)
            for number, _ in enumerate(sizes):
                book.add(f"{number}", normal(), "input", step=step)
                book.add(f"{number}", normal(), step=step)
            for number, size in reversed(list(enumerate(sizes))):
                book.add(f"{number}", normal(size), "param_grad", leaf="weight", step=step)
        return book

    def test_gradients_that_fade_towards_the_input_vanish_at_its_side(self):
        book = self.net([10.0 ** (number - 8) for number in range(9)])
        found = only(book, "vanishing")
        assert (found["module"], found["severity"]) == ("0", "warning")
        # medians of the outer thirds: 1e-7 and 1e-1
        assert found["value"] == pytest.approx(1e6, rel=1e-6)

    def test_gradients_that_grow_towards_the_input_explode(self):
        assert only(self.net([10.0**-number for number in range(9)]), "exploding")["module"] == "0"

    def test_a_cliff_is_named_where_it_is(self):
        found = only(self.net([1e-6] * 5 + [1.0] * 5), "vanishing")
        assert found["module"] == "4"  # the last one behind it

    @pytest.mark.parametrize("factor", [1.0, 2.0, 0.5, 3.0])
    def test_a_factor_of_three_per_layer_is_healthy(self, factor):
        assert kinds(self.net([factor**number for number in range(7)])) == []

    def test_three_layers_are_no_depth(self):
        assert kinds(self.net([1e-6, 1e-3, 1.0])) == []

    def test_disorder_is_no_trend(self):
        assert kinds(self.net([1e-5, 1.0, 1e-5, 1e-4, 1.0, 1.0, 1e-5, 1.0, 1.0, 1e-5])) == []


class TestSuddenChange:
    def series(self, values, role="output", module="a", **options):
        book = Book()
        for step, value in enumerate(values):
            book.add(module, normal(value), role, step=step, **options)
        return book

    def test_a_jump_is_said_with_its_step_and_factor(self):
        book = self.series([1.0] * 8 + [40.0] + [1.0] * 3)
        found = only(book, "sudden_change")
        assert (found["module"], found["step"], found["severity"]) == ("a", 8, "warning")
        assert found["value"] == pytest.approx(40.0)
        assert book.run().df.loc[found["rows"], "step"].tolist().count(8) == 1

    def test_of_a_parameter_the_learning_rate_is_looked_at_first(self):
        book = self.series([1.0] * 8 + [40.0] * 3, "param", leaf="weight")
        for step in range(11):
            book.add("a", normal(), step=step)
        assert only(book, "sudden_change")["advice"].startswith("Lower the learning rate")
        batch = only(self.series([1.0] * 8 + [40.0]), "sudden_change")
        assert batch["advice"].startswith("Look at the batch of that step")

    def test_a_fall_too(self):
        found = only(self.series([1.0] * 8 + [0.01, 1.0]), "sudden_change")
        assert found["sentence"] == "a (forward output) is suddenly 100 times smaller at step 8"

    def test_and_to_nothing(self):
        found = only(self.series([1.0] * 8 + [0.0, 1.0], "input", ""), "sudden_change")
        assert (found["step"], found["value"]) == (8, 0.0)

    @pytest.mark.parametrize(
        "values",
        [
            [1.0] * 8 + [15.0],
            [1.0] * 4 + [1000.0],
            [2.0**n for n in range(20)],
            [4.0 ** ((-1) ** n) for n in range(12)] + [70.0],
        ],
        ids=["under the factor", "too early", "step by step", "beside a wide spread"],
    )
    def test_no_change_that_is_none(self, values):
        assert "sudden_change" not in kinds(self.series(values))

    def test_one_nan_neither_hides_nor_makes_a_change(self):
        book = Book()
        for step in range(14):
            values = normal(1.0 if step < 12 else 50.0)
            if step == 6:
                values[0, 0] = NAN
            book.add("a", values, "param_grad", leaf="weight", step=step, loss_scale=8.0)
        assert kinds(book, change_backward=16.0) == ["sudden_change", "loss_scale"]

    def test_gradients_may_do_more_than_values(self):
        assert kinds(self.series([1.0] * 8 + [40.0], "grad_output")) == []
        found = only(self.series([1.0] * 8 + [400.0], "grad_output"), "sudden_change")
        assert found["severity"] == "warning"

    def test_a_gradient_that_stays_small_hurts_nobody(self):
        assert kinds(self.series([1e-9] * 8 + [1e-4], "grad_output")) == []

    def test_a_gradient_that_falls_is_a_note(self):
        found = only(self.series([1.0] * 8 + [1e-4], "grad_output"), "sudden_change")
        assert found["severity"] == "note"

    def test_the_first_in_execution_order_is_named(self):
        book = Book()
        for step in range(10):
            scale = 300.0 if step == 8 else 1.0
            book.add("", normal(scale), "input", step=step).add("a", normal(scale), step=step)
            book.add("a", normal(scale**2), "grad_output", step=step)
        found = only(book, "sudden_change")
        assert (found["module"], found["role"], found["step"]) == ("", "input", 8)
        assert "1 other site changed in the same step" in found["detail"]

    def test_a_change_outside_the_window_is_not_forgotten(self):
        book = self.series([1.0] * 8 + [40.0] + [1.0] * 100)
        assert only(book, "sudden_change")["step"] == 8


class TestUpdates:
    def training(self, ratio, *, steps=8, size=1.0, dtype="float32", lost=0.0, others=3):
        book = Book()
        for step in range(steps):
            for number in range(others + 1):
                name = f"{number}"
                weight = normal(size if number == 0 else 1.0, seed=step)
                book.add(name, weight, "param", leaf="weight", step=step, dtype=dtype)
                book.add(name, normal(), "input", step=step).add(name, normal(), step=step)
            for number in range(others + 1):
                book.add(f"{number}", normal(), "param_grad", leaf="weight", step=step, dtype=dtype)
            for number in range(others + 1):
                update = normal(ratio * size if number == 0 else 0.001, (40, 50))
                update[: int(40 * lost)] = 0.0 if number == 0 else 1e-3
                book.add(
                    f"{number}",
                    update[:4, :8] if not lost else update,
                    "update",
                    leaf="weight",
                    step=step,
                    direction="optimizer",
                    dtype=dtype,
                )
        return book

    def test_a_third_of_the_weight_per_step_is_too_much(self):
        book = self.training(0.5)
        found = only(book, "update_ratio")
        assert (found["module"], found["severity"], found["step"]) == ("0", "warning", 0)
        expected = np.linalg.norm(normal(0.5, (40, 50))[:4, :8]) / math.sqrt(32)
        assert found["value"] == pytest.approx(expected)
        assert set(book.run().df.loc[found["rows"], "role"]) == {"param", "update"}

    def test_far_more_than_the_other_weights_counts_earlier(self):
        assert only(self.training(0.3), "update_ratio")["value"] > 0.2
        assert kinds(self.training(0.3), update_beside=1000.0) == []

    @pytest.mark.parametrize("ratio", [0.15, 0.001, 1e-5])
    def test_usual_ratios_are_healthy(self, ratio):
        assert kinds(self.training(ratio)) == []

    def test_next_to_nothing_is_a_note(self):
        assert only(self.training(1e-8), "update_ratio")["severity"] == "note"

    def test_four_steps_are_too_few(self):
        assert kinds(self.training(0.5, steps=4)) == []

    def test_a_weight_that_begins_at_nothing_may_grow(self):
        """Four rows of eight: a quarter of 1 / sqrt(8) is what it is held against."""
        book = self.training(0.05 / 1e-6, size=1e-6)  # updates of 0.05 beside 0.088
        found = only(book, "update_ratio")
        expected = np.linalg.norm(normal(0.05, (40, 50))[:4, :8]) / (
            math.sqrt(32) / math.sqrt(8) / 4
        )
        assert found["value"] == pytest.approx(expected)

    def test_updates_that_bfloat16_cannot_hold_are_lost(self):
        found = only(self.training(0.001, dtype="bfloat16", lost=0.95), "update_lost")
        assert (found["module"], found["value"]) == ("0", pytest.approx(0.95))
        assert kinds(self.training(0.001, dtype="bfloat16", lost=0.8)) == []
        assert kinds(self.training(0.001, dtype="float32", lost=0.95)) == []


class TestMicroSteps:
    def accumulated(self, gradients, *, zeroed=True, steps=4):
        """Record what each backward adds and what `.grad` holds, as a session does."""
        book, held, draw = Book(), 0.0, iter(gradients)
        for step in range(steps):
            held = 0.0 if zeroed else held
            for micro in range(len(gradients) // steps):
                added = next(draw)
                held = held + added
                options = {"step": step, "micro_step": micro, "call": 0}
                book.add("a", added, "param_grad", leaf="weight", **options)
                if micro or not zeroed:
                    book.add("a", held, "param_grad", leaf="weight.grad", **options)
        return book

    def test_gradients_that_add_up_over_steps_were_not_zeroed(self):
        same = [normal()] * 6
        found = only(self.accumulated(same, zeroed=False, steps=6), "not_zeroed")
        assert found["severity"] == "warning"
        assert found["value"] == pytest.approx(6.0)

    def test_micro_steps_that_agree_are_no_sign_of_it(self):
        assert "not_zeroed" not in kinds(self.accumulated([normal()] * 16))

    def test_micro_steps_without_anything_in_common_are_noise(self):
        random = np.random.default_rng(1)
        draws = [0.07 + random.normal(size=(100, 100)) for _ in range(120)]
        found = only(self.accumulated(draws, steps=30), "gradient_noise")
        assert found["severity"] == "note"
        assert found["value"] == pytest.approx(1 / 0.07**2, rel=0.3)

    def test_micro_steps_that_agree_are_not(self):
        random = np.random.default_rng(1)
        draws = [1.0 + random.normal(size=(100, 100)) for _ in range(40)]
        assert kinds(self.accumulated(draws, steps=10)) == []
        found = findings(self.accumulated(draws, steps=10), noise_scale=0.5).iloc[0]
        assert found["value"] == pytest.approx(1.0, rel=0.05)


class TestUnderflow:
    def gradients(self, share, dtype="float16", steps=3):
        book = Book()
        for step in range(steps):
            values = normal(1e-6, (10, 10))
            book.add("a", values, "grad_output", step=step, dtype=dtype, subnormal=int(share * 100))
        return book

    def test_half_of_the_gradient_below_the_normal_numbers(self):
        found = only(self.gradients(0.5), "underflow")
        assert (found["module"], found["value"]) == ("a", 0.5)

    @pytest.mark.parametrize(
        "change", [{"share": 0.2}, {"dtype": "float32"}, {"dtype": "bfloat16"}, {"steps": 2}]
    )
    def test_what_is_none(self, change):
        assert kinds(self.gradients(**{"share": 0.5, **change})) == []


class TestRanks:
    def fed(self, *, same, leaf="weight", ranks=2):
        book = Book()
        for step in range(4):
            for rank in range(ranks):
                x = normal(seed=step if same else 10 * step + rank)
                book.add("", x, "input", step=step, rank=rank)
                book.add("a", normal(), "param", leaf=leaf, step=step, rank=rank)
        return book

    def test_ranks_that_were_fed_the_same_are_said(self):
        found = only(self.fed(same=True), "same_input")
        assert (found["severity"], found["role"]) == ("warning", "input")
        assert found["sentence"].startswith("2 ranks were fed the same data")

    def test_ranks_with_data_of_their_own_are_not(self):
        assert kinds(self.fed(same=False)) == []
        assert kinds(self.fed(same=True, ranks=1)) == []

    def test_ranks_that_share_a_tensor_may_be_fed_the_same(self):
        assert only(self.fed(same=True, leaf="weight.shard"), "same_input")["severity"] == "note"


class TestInputScale:
    def test_pixels_that_were_not_scaled_are_noted(self):
        book = Book().add("", normal(120.0), "input", kind="Net").add("a", normal())
        found = only(book.add("a", normal(), "grad_output"), "input_scale")
        assert (found["severity"], found["value"]) == ("note", pytest.approx(120.0))

    def test_a_norm_in_front_takes_care_of_it(self):
        book = Book().add("", normal(120.0), "input").add("n", normal(), kind="BatchNorm2d")
        assert kinds(book.add("n", normal(), "grad_output")) == []


class TestLossScale:
    def test_first_overflows_are_a_note_and_a_scale_that_never_settles_is_an_error(self):
        for steps, severity in ((4, "note"), (5, "error")):
            book = Book(info=info())
            for step in range(steps):
                book.add(
                    "a", [INF, 1.0], "param_grad", leaf="weight", step=step, loss_scale=2.0**20
                )
            assert only(book, "loss_scale")["severity"] == severity

    def test_a_scale_that_overflows_again_and_again_does_not_settle(self):
        book = Book()
        for step in range(20):
            values = [INF, 1.0] if step % 3 == 2 else [1.0, 1.0]
            book.add("b", [1.0, 1.0], "grad_output", step=step, loss_scale=8.0)
            book.add("a", values, "grad_output", step=step, loss_scale=8.0)
        found = only(book, "loss_scale")
        assert (found["severity"], found["module"], found["step"]) == ("warning", "a", 2)
        assert found["value"] == 6

    def test_a_scale_that_falls_until_it_fits_has_settled(self):
        book = Book()
        for step in range(20):
            values = [INF, 1.0] if step < 12 else [1.0, 1.0]
            book.add("b", [1.0, 1.0], "grad_output", step=step, loss_scale=8.0)
            book.add("a", values, "grad_output", step=step, loss_scale=8.0)
        found = only(book, "loss_scale")
        assert (found["severity"], found["module"], found["step"]) == ("note", "a", 0)
        assert found["value"] == 12
        assert found["sentence"] == (
            "Gradients overflowed under the loss scale in 12 steps, the last at step 11, and no "
            "longer"
        )

    def test_one_overflow_at_the_end_is_one_step_and_nothing_to_do(self):
        book = Book()
        for step in range(4):
            values = [INF, 1.0] if step == 3 else [1.0, 1.0]
            book.add("a", values, "grad_output", step=step, loss_scale=8.0)
        found = only(book, "loss_scale")
        assert found["severity"] == "note"
        assert "in the last step, first in a" in found["sentence"]
        assert found["advice"].startswith("Nothing, while it stays at one or two steps")
