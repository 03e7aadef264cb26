from __future__ import annotations

import numpy as np
import pytest

from probe_nb.analysis import verdict as v
from probe_nb.analysis.alarms import ScalerSteps
from probe_nb.analysis.births import Marks, Sorts
from probe_nb.reasons import STEPS
from probe_nb.store.columns import Columns
from tests.records import append
from tests.unit.view.make_runs import Book, hundred_layers, info

NAN, INF = np.nan, np.inf
MIN16, MIN32 = -65504.0, -3.4028234663852886e38


def normal(scale=1.0, shape=(4, 8), seed=0):
    return np.random.default_rng(seed).normal(size=shape) * scale


def judged(book):
    run = book.run()
    return v.verdict(run.columns, run.info)


def badge(run, module, role="output"):
    site = next(
        i
        for i, s in enumerate(run.columns.tables.sites.values)
        if (s.module, s.role) == (module, role)
    )
    return int(v.badges(run.columns)[site])


class TestNonFinite:
    def test_the_first_nan_in_execution_order_is_named(self):
        run = hundred_layers(bad=50, steps=3, bad_step=1)
        found = v.verdict(run.columns)
        assert found.kind == "bad"
        assert found.sentence == "NaN first appeared at step 1 in layers.50 (forward output)"
        culprit = run.df.iloc[found.row]
        assert (culprit["module"], culprit["step"], culprit["nan_count"]) == ("layers.50", 1, 3)
        assert run.columns.tables.sites.values[found.site].module == "layers.50"

    def test_the_detail_counts_elements_tells_a_birth_and_counts_what_it_reached(self):
        run = hundred_layers(bad=50)
        detail = v.verdict(run.columns).detail
        frame = run.df[run.df["nan_count"].fillna(0) > 0]
        sites = len(frame.groupby(["module", "role"], observed=True)) - 1
        assert "3 NaN of 32 elements" in detail
        assert "the inputs of this call were finite, so it was born here" in detail
        assert f"{sites} sites of 200 turned NaN or Inf after it" in detail

    def test_all_but_the_culprit_are_downstream(self):
        run = hundred_layers(bad=50)
        assert badge(run, "layers.50") == v.NAN
        assert badge(run, "layers.51", "input") == v.NAN | v.DOWNSTREAM
        assert badge(run, "layers.49") == 0

    def test_an_inf_that_led_to_the_nan_of_its_step_is_named_first(self):
        book = Book().add("a", [1.0, INF]).add("b", [1.0, INF], "input").add("b", [NAN, 1.0])
        found = judged(book)
        assert found.sentence == "+Inf first appeared at step 0 in a (forward output)"
        assert "turned NaN or Inf after it" in found.detail
        assert badge(book.run(), "a") == v.INF

    def test_an_inf_of_an_earlier_step_comes_before_a_nan(self):
        book = Book().add("a", [1.0, INF], step=1).add("b", [NAN, 1.0], step=4)
        found = judged(book)
        assert found.sentence == "+Inf first appeared at step 1 in a (forward output)"

    def test_inf_without_nan_is_named(self):
        assert judged(Book().add("a", [1.0, INF])).sentence.startswith(
            "+Inf first appeared at step 0 in a"
        )

    @pytest.mark.parametrize(("kind", "said"), [("NLLLoss", "bad"), ("Linear", "ok")])
    def test_minus_inf_in_an_output_is_named_if_it_is_a_losss(self, kind, said):
        book = Book().add("a", [1.0], "input", kind=kind).add("a", [1.0, -INF], kind=kind)
        found = judged(book)
        assert found.kind == said
        assert ("-Inf first appeared" in found.sentence) == (said == "bad")
        assert ("-Inf in 1 output that did no harm" in found.detail) == (said == "ok")

    def test_what_ran_first_comes_first_where_steps_overlap(self):
        book = Book().add("early", [NAN, 1.0], step=5).add("late", [NAN, 1.0], step=4)
        assert "step 5 in early" in judged(book).sentence

    def test_a_nan_with_only_the_root_as_input_was_fed(self):
        book = Book().add("", [NAN, 1.0], "input").add("a", [NAN, 1.0], "input")
        found = judged(book)
        assert found.sentence == "NaN first appeared at step 0 in (root) (forward input)"
        assert "the model was fed with it" in found.detail

    def test_a_nan_that_arises_between_modules_is_told_apart(self):
        found = judged(Book().add("", [1.0], "input").add("a", [NAN, 1.0], "input"))
        assert "it arose in the code between modules" in found.detail

    def test_a_gradient_that_turns_nan_after_a_finite_forward_is_born_in_the_backward(self):
        book = Book().add("l1", [1.0, 2.0]).add("l2", [1.0, 2.0])
        book.add("l2", [1.0, 1.0], "grad_output").add("l1", [NAN, 1.0], "grad_output")
        found = judged(book)
        assert found.sentence == (
            "NaN first appeared at step 0 between l2 (its gradient was finite) and l1 (the gradient "
            "that arrived there was not): in the backward of (root)"
        )

    def test_a_module_whose_arriving_gradient_was_finite_bore_it(self):
        book = Book().add("a", [1.0, 2.0], "grad_output").add("a", [NAN, 1.0], "grad_input")
        assert "the gradient that arrived was finite, so it was born here" in judged(book).detail

    def test_calls_are_not_mixed_up(self):
        book = Book()
        book.add("a", [NAN, 1.0], "input", call=0, step=1).add(
            "a", [1.0, 1.0], "input", call=1, step=1
        )
        book.add("a", [INF, 1.0], call=1, step=0).add("a", [2.0, 1.0], "input", call=1, step=0)
        book.add("a", [NAN, NAN], "input", call=0, step=0, micro_step=1)
        found = judged(
            Book().add("a", [1.0], "input").add("a", [NAN]).add("a", [NAN], "input", call=1, step=1)
        )
        assert "the inputs of this call were finite" in found.detail

    def test_a_parameter_points_at_the_optimizer(self):
        book = Book().add("a", [NAN, 1.0], "param", leaf="weight", step=3)
        found = judged(book)
        assert found.sentence == "NaN first appeared at step 3 in a (parameter weight)"
        assert "optimizer step" in found.detail

    def test_several_models_are_told_apart(self):
        book = Book().add("a", [1.0], model="teacher").add("a", [NAN, 1.0], model="student")
        assert "student: a (forward output)" in judged(book).sentence


class TestMasks:
    """-Inf and the lowest finite number are how masks are written (transformers #11274)."""

    def test_minus_inf_in_an_input_with_a_finite_output_is_a_note(self):
        book = Book().add("softmax", [0.0, -INF, -INF], "input").add("softmax", [1.0, 0.0, 0.0])
        found = judged(book)
        assert (found.kind, found.detail) == (
            "ok",
            "-Inf in 1 input whose output is finite (a mask)",
        )
        assert badge(book.run(), "softmax", "input") == 0

    def test_a_fully_masked_row_that_turns_nan_is_an_alarm_at_the_softmax(self):
        book = Book().add("good", [0.0, -INF], "input").add("good", [1.0, 0.0])
        book.add("softmax", [-INF, -INF], "input").add("softmax", [NAN, NAN])
        found = judged(book)
        assert found.sentence == "NaN first appeared at step 0 in softmax (forward output)"
        assert badge(book.run(), "softmax", "input") == v.INF | v.ABSENT
        assert badge(book.run(), "good", "input") == 0

    def test_plus_inf_in_an_input_is_an_alarm(self):
        assert judged(Book().add("a", [INF, -INF], "input").add("a", [1.0, 1.0])).kind == "bad"

    @pytest.mark.parametrize(("dtype", "low"), [("float16", MIN16), ("float32", MIN32)])
    def test_a_mask_of_the_lowest_number_is_not_saturation(self, dtype, low):
        assert judged(Book().add("mask", [0.0, low, low], dtype=dtype)).kind == "ok"

    def test_masks_of_other_calls_do_not_excuse_each_other(self):
        book = Book()
        book.add("s", [0.0, -INF], "input", call=0).add("s", [1.0, 0.0], call=0)
        book.add("s", [-INF, -INF], "input", call=1).add("s", [INF, 1.0], call=1)
        run = book.run()
        assert v.verdict(run.columns).sentence.startswith(
            "+Inf first appeared at step 0 in s (forward output)"
        )


class TestLossScale:
    def test_an_overflow_that_the_scaler_recovers_from_is_a_note(self):
        book = Book()
        for step in range(4):
            values = [INF, 1.0] if step < 2 else [1.0, 1.0]
            book.add(
                "a", values, "param_grad", leaf="weight", step=step, loss_scale=65536.0 / 2**step
            )
        found = judged(book)
        assert found.kind == "ok"
        assert "overflowed under the loss scale in 2 steps, and recovered" in found.detail

    def test_the_latest_overflow_is_a_note_as_long_as_it_may_settle(self):
        book = Book().add("a", [1.0, 1.0], "param_grad", step=0, loss_scale=8.0)
        found = judged(book.add("a", [INF, 1.0], "param_grad", step=1, loss_scale=8.0))
        assert found.kind == "ok"
        assert found.detail == (
            "gradients overflowed under the loss scale in 1 step, the last one included"
        )

    def test_a_scale_that_never_settles_is_bad(self):
        book = Book()
        for step in range(6):
            book.add("a", [NAN, 1.0], "param_grad", step=step, loss_scale=2.0)
        assert judged(book).kind == "bad"

    @pytest.mark.parametrize("steps", [3, 9, 50])
    def test_it_does_not_matter_in_what_pieces_overflowing_steps_come(self, steps):
        """Each step has a good half and a bad one; before the last good step all is forgiven."""
        pieces = [(0, 1.0, 7), (1, INF, 1), (2, 1.0, 2)]
        for step in range(3, 3 + steps):
            pieces += [(step, 1.0, 0), (step, INF, step)]
        pieces[-3], pieces[-2] = pieces[-2], pieces[-3]  # a step ends after the next has begun
        rows = [
            {"module": "a", "role": "grad_output", "step": step, "loss_scale": 2.0 + scale}
            | {"posinf_count": int(value == INF)}
            for step, value, scale in pieces
        ]
        for cut in (1, 2, len(rows)):
            columns, scaler = Columns(), ScalerSteps()
            for begin in range(0, len(rows), cut):
                append(columns, rows[begin : begin + cut])
            sorts = Sorts(columns.tables.sites.values)
            sorts.grow(1)
            for first, block in columns.chunks():
                scaler.add(block, Marks.of(block, sorts), first)
            assert scaler.overflowed == [1, *range(3, 3 + steps)]
            assert (scaler.streak, scaler.last) == (steps, 2 + steps)
            assert (scaler.scale, rows[scaler.row]["step"]) == (5.0, 3)

    def test_a_forward_nan_is_bad_whatever_the_scaler_does(self):
        book = Book().add("a", [NAN, 1.0]).add("a", [NAN, 1.0], "grad_output", loss_scale=8.0)
        assert "a (forward output)" in judged(book).sentence


class TestRange:
    def test_one_element_at_the_largest_float8_is_saturation(self):
        book = Book().add("q", [1.0, 2.0, 448.0], dtype="float8_e4m3fn")
        found = judged(book)
        assert found.kind == "warn"
        assert (
            found.sentence
            == "Values stuck at the largest float8_e4m3fn number at step 0 in q (forward output)"
        )
        assert "1 of 3 elements are 448 in magnitude" in found.detail
        assert badge(book.run(), "q") == v.SATURATED

    @pytest.mark.parametrize(
        ("value", "kind"), [(16375.0, "ok"), (16377.0, "warn"), (-60000.0, "warn")]
    )
    def test_overflow_risk_begins_at_a_quarter_of_the_range(self, value, kind):
        assert judged(Book().add("a", [1.0, value], dtype="float16")).kind == kind

    def test_the_same_value_in_float32_is_fine(self):
        assert judged(Book().add("a", [1.0, 60000.0])).kind == "ok"

    def test_the_share_of_the_range_is_said(self):
        found = judged(Book().add("a", [1.0, 32752.0], dtype="float16"))
        assert "50% of 65504" in found.detail


class TestTrends:
    def test_a_huge_gradient_explodes(self):
        found = judged(Book().add("a", normal(1e7), "grad_output"))
        assert (found.kind, found.sentence) == ("warn", "Exploding in a (gradient of the output)")

    def test_growth_out_of_all_proportion_explodes(self):
        book = Book()
        for step in range(12):
            book.add(
                "a",
                normal(0.01 * (1 if step < 8 else 30.0 ** (step - 7))),
                "grad_output",
                step=step,
            )
        assert judged(book).sentence == "Exploding in a (gradient of the output)"

    def test_growth_from_nothing_to_little_does_not(self):
        book = Book()
        for step in range(12):
            book.add("a", normal(1e-9 if step < 8 else 1e-3), "grad_output", step=step)
        assert judged(book).kind == "ok"

    def test_a_gradient_that_stays_tiny_beside_others_vanishes(self):
        book = Book()
        for step in range(4):
            book.add("last", normal(1.0), "grad_output", step=step)
            book.add("first", normal(1e-9), "grad_output", step=step)
        found = judged(book)
        assert (found.kind, found.sentence) == (
            "warn",
            "Vanishing in first (gradient of the output)",
        )
        assert badge(book.run(), "last", "grad_output") == 0

    def test_small_gradients_everywhere_are_convergence(self):
        book = Book()
        for step in range(4):
            for layer in range(3):
                book.add(f"l{layer}", normal(1e-9), "grad_output", step=step)
        assert judged(book).kind == "ok"

    def test_a_bias_before_a_normalisation_does_not_vanish(self):
        book = Book()
        for step in range(4):
            book.add("conv", normal(1.0), "param_grad", leaf="weight", step=step)
            book.add("conv", normal(1e-10), "param_grad", leaf="bias", step=step)
        assert judged(book).kind == "ok"

    @pytest.mark.parametrize(("steps", "kind"), [(2, "ok"), (3, "warn")])
    def test_all_zeros_are_dead_from_the_third_step_on(self, steps, kind):
        book = Book()
        for step in range(steps):
            book.add("relu", np.zeros((4, 8)), step=step)
        assert judged(book).kind == kind

    def test_one_living_step_among_the_last_three_is_life(self):
        book = Book()
        for step in range(5):
            book.add("relu", np.zeros(8) if step != 3 else normal(), step=step)
        assert judged(book).kind == "ok"

    @pytest.mark.parametrize("change", [{"dtype": "bool"}, {"dtype": "int64"}, {"role": "param"}])
    def test_zeros_that_mean_nothing_are_not_dead(self, change):
        book = Book()
        for step in range(4):
            book.add("a", np.zeros(8), step=step, **change)
        assert judged(book).kind == "ok"

    def test_a_loss_of_zero_is_not_dead(self):
        book = Book()
        for step in range(4):
            book.add("loss", np.zeros(()), step=step)
        assert judged(book).kind == "ok"

    def test_absent_rows_between_do_not_count_as_life(self):
        book = Book()
        for step in range(4):
            book.add("relu", np.zeros(8), step=step)
            book.add("relu", np.zeros(8), step=step, call=1, status="skipped_budget")
        assert judged(book).sentence == "Nothing but zeros in relu (forward output)"


class TestFine:
    def test_a_healthy_run_says_how_much_was_seen_and_its_largest_value(self):
        found = judged(Book().add("a", [1.0, -31.96]).add("b", [2.0, 3.0], step=1))
        assert found.kind == "ok"
        assert (
            found.sentence
            == "2 steps, 2 modules, no NaN or Inf; largest |value| 31.96 in a (forward output)"
        )

    def test_rows_without_statistics_are_no_alarm(self):
        book = Book().add("a", np.empty(0)).add("b", [1.0], status="meta").add("c", [1.0])
        assert judged(book).kind == "ok"
        assert badge(book.run(), "a") == v.ABSENT

    def test_nothing_is_fine_where_not_one_number_was_measured(self):
        book = Book().add("a", np.empty(0)).add("b", [1.0], status="meta")
        found = judged(book.add("b", [1.0], status="meta", step=1))
        assert (found.kind, found.sentence) == ("empty", "Nothing was measured")
        assert found.detail.startswith("2 records: meta; 1 record: empty. Tensors on the meta")

    def test_one_number_in_an_earlier_step_is_a_measurement(self):
        book = Book().add("a", [1.0]).add("a", np.empty(0), step=1)
        assert judged(book).kind == "ok"


class TestEmpty:
    def test_nothing_ran(self):
        found = judged(Book(info=info()))
        assert (found.kind, found.detail) == (
            "empty",
            "no forward of the model ran inside the watch",
        )

    def test_the_reasons_of_the_session_are_passed_on(self):
        reason = {"model": "model", "module": "a", "type": "Linear", "reason": "never called"}
        found = judged(Book(info=info(unobserved=[reason] * 3)))
        assert found.detail.startswith("3 modules: never called. It may be unused.")

    def test_steps_that_were_not_asked_for_are_a_reason(self):
        found = judged(Book(info=info(config={"steps": "5"})))
        assert found.detail == "only steps 5 were asked for"

    def test_tokens_that_were_not_asked_for_are_a_reason(self):
        found = judged(Book(info=info(config={"token_range": [2, 5]})))
        assert found.detail == "only tokens 2 to 5 were asked for"

    @pytest.mark.parametrize(
        ("option", "said"),
        [
            ({"names": ["nope"]}, "calls whose name has nope"),
            ({"when": "eval"}, "calls in `eval` mode"),
            ({"scope": ["0", "1.fc"]}, "calls from 0 to 1.fc"),
            ({"level": "api", "apis": ["Torch.add"]}, "functions of Torch.add"),
            ({"roles": ["state"]}, "roles state"),
            ({"select": ["0.*"]}, "modules like 0.*"),
            ({"roles": ["grad_input"], "one_way": "backward"}, "rows of the backward"),
        ],
    )
    def test_an_option_that_left_everything_out_is_named(self, option, said):
        found = judged(Book(info=info(config=option)))
        assert found.detail == f"only {said} were asked for"

    def test_modules_that_ran_and_were_left_out_are_counted(self):
        reason = {"model": "model", "module": "a", "reason": "called only where nothing was chosen"}
        found = judged(Book(info=info(config={"when": "eval"}, unobserved=[reason] * 3)))
        assert found.detail.endswith("; 3 modules were called and left out by it")

    def test_a_process_that_was_not_asked_for_says_so_and_blames_no_step(self):
        reason = {"model": "model", "module": "a", "reason": STEPS}
        found = judged(Book(info=info(config={"ranks": "3"}, rank=1, unobserved=[reason])))
        assert found.detail == "only ranks 3 were asked for, and this process is rank 1"

    @pytest.mark.parametrize(
        ("config", "said"),
        [
            ({"level": "debug"}, "what is no tensor is in run.values()"),
            ({"level": "api"}, "no function of torch that can be recorded was called"),
            ({"dump": {}}, "there is no record of a tensor in the dump"),
            ({"level": "module"}, "no forward of the model ran inside the watch"),
        ],
    )
    def test_what_is_said_fits_what_is_recorded(self, config, said):
        assert said in judged(Book(info=info(config=config))).detail

    def test_an_open_run_waits(self):
        found = judged(Book(info=info(ended="open")))
        assert found.sentence == "Nothing recorded yet: waiting for a forward of model"

    @pytest.mark.parametrize(
        ("config", "awaited"),
        [
            ({"level": "debug"}, "a tensor that `save` is given"),
            ({"steps": "50"}, "a forward of model; only steps 50 were asked for"),
        ],
    )
    def test_an_open_run_waits_for_what_was_asked_for(self, config, awaited):
        found = judged(Book(info=info(ended="open", config=config)))
        assert found.sentence == f"Nothing recorded yet: waiting for {awaited}"


def test_a_mask_is_not_the_largest_value_of_a_healthy_run():
    book = Book().add("a", [-65504.0, 0.0], "input", leaf="1", dtype="float16")
    found = judged(book.add("a", [3.0, -1.0], dtype="float16"))
    assert (found.kind, found.sentence.split("; ")[1]) == (
        "ok",
        "largest |value| 3 in a (forward output)",
    )
