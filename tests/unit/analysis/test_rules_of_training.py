"""Rules about what trains and what does not, each on runs whose right answer is known by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.analysis.test_rules import INF, NAN, findings, kinds, normal, only
from tests.unit.view.make_runs import Book, info


def settings(book, step, lr, *, number=0, kind="SGD", **more):
    """Record what an optimizer says of itself in a step, in which it made one."""
    for leaf, value in {"group0.lr": lr, **more, "skipped": 0.0}.items():
        book.add("", [value], "state", leaf=leaf, step=step, kind=kind, direction="optimizer",
                 api=f"optimizer.{number}", shape=())  # fmt: skip


HELD = {"model": {"a.weight": "optimizer.0.group0", "b.weight": "optimizer.0.group0"}}
ALL = {"roles": ["input", "output", "param", "param_grad", "update", "state"]}


class TestStandstill:
    def training(self, steps=12, *, lr=0.1, given=True, taken=True, moves=False, warm=0):
        book = Book(info=info(config=ALL, moved=HELD))
        for step in range(steps):
            for name in "ab":
                weight = normal(1.0, seed=step if moves else 0)
                book.add(name, weight, "param", leaf="weight", step=step)
                book.add(name, normal(), "input", step=step).add(name, normal(), step=step)
            for name in "ba" if given else "":
                book.add(name, normal(), "param_grad", leaf="weight", step=step)
            for name in "ab" if taken else "":
                book.add(name, normal(), "param_grad", leaf="weight", step=step,
                         direction="optimizer")  # fmt: skip
            settings(book, step, 0.0 if step < warm else lr)
        return book

    def test_a_rate_that_stays_at_nothing_is_said(self):
        found = only(self.training(lr=0.0), "stuck")
        assert (found["severity"], found["module"], found["leaf"]) == ("warning", "", "group0.lr")
        assert (found["step"], found["threshold"]) == (0, 10)
        assert "learning rate" in found["sentence"]

    def test_a_warm_up_may_begin_at_nothing(self):
        assert kinds(self.training(moves=True, warm=2), "warning") == []
        assert kinds(self.training(steps=9, lr=0.0), "warning") == []

    def test_gradients_that_are_gone_when_it_steps_are_said(self):
        found = only(self.training(taken=False), "stuck")
        assert found["severity"] == "warning"
        assert "found no gradient in 12 steps" in found["sentence"]
        assert "zero_grad" in found["advice"]

    def test_last_bits_that_change_once_are_those_of_another_kernel(self):
        book = self.training(taken=False)
        for row in book.rows:
            if row["step"] > 4:
                row["l2"], row["mean"] = row["l2"] * (1 + 1e-7), row["mean"] * (1 + 1e-7)
        assert kinds(book, "warning") == ["stuck"]

    def test_what_moves_all_the_same_is_somebody_elses_affair(self):
        assert kinds(self.training(taken=False, moves=True), "warning") == []

    def test_steps_without_any_backward_leave_parameters_unused(self):
        found = only(self.training(given=False, taken=False), "unused")
        assert (found["severity"], found["value"]) == ("warning", 2)
        assert "no backward ran" in found["detail"]

    def test_what_was_not_recorded_is_not_missed(self):
        book = self.training(given=False, taken=False)
        book.info = info(config={"roles": ["output", "param", "state"]}, moved=HELD)
        assert kinds(book, "warning") == []


class TestWhereGradientsEnd:
    """Each step: the loss sends a gradient to the root and to `c`, then `b`, then `a` get theirs."""

    def flow(self, gradients, *, steps=4, dtype="float32", kind="Linear"):
        book = Book()
        for step in range(steps):
            for name in "abc":
                book.add(name, normal(), "input", step=step)
                book.add(name, normal(), step=step, dtype=dtype, kind=kind)
            book.add("", normal(), step=step, kind="Net", dtype=dtype)
            for name, role, values in gradients:
                now = values[step] if isinstance(values, list) else values
                book.add(name, now, role, step=step, dtype=dtype)
        return book

    def test_the_module_that_cuts_is_named_and_since_when(self):
        book = self.flow([
            ("", "grad_output", normal()), ("c", "grad_output", normal()),
            ("c", "grad_input", normal(1e-12)), ("b", "grad_output", normal(1e-12)),
            ("a", "grad_output", normal(1e-13)),
        ])  # fmt: skip
        found = only(book, "vanishing")
        assert (found["module"], found["role"], found["step"]) == ("c", "grad_input", 0)

    def test_a_faint_branch_beside_others_is_healthy(self):
        book = self.flow([
            ("c", "grad_output", normal()), ("b", "grad_output", normal(1e-12)),
            ("a", "grad_output", normal()),
        ])  # fmt: skip
        assert kinds(book) == []

    def test_a_still_branch_beside_others_is_a_note(self):
        book = self.flow([
            ("c", "grad_output", normal()), ("b", "grad_output", np.zeros(8)),
            ("a", "grad_output", normal()),
        ])  # fmt: skip
        assert (only(book, "dead")["severity"], only(book, "dead")["module"]) == ("note", "b")

    def test_zeros_from_one_module_on_are_a_warning(self):
        book = self.flow([
            ("c", "grad_output", normal()), ("b", "grad_output", np.zeros(8)),
            ("a", "grad_output", np.zeros(8)),
        ])  # fmt: skip
        assert only(book, "dead")["severity"] == "warning"

    def test_a_bias_whose_gradient_cancels_is_a_note(self):
        book = self.flow([("c", "grad_output", normal()), ("c", "param_grad", np.zeros(8))])
        assert only(book, "dead")["severity"] == "note"
        assert "cancels" in only(book, "dead")["detail"]

    def test_zeros_in_float16_from_the_first_step_on_are_lost_by_rounding(self):
        zeros = [("", "grad_output", np.zeros(8)), ("c", "grad_output", np.zeros(8))]
        found = only(self.flow(zeros, dtype="float16"), "underflow")
        assert (found["severity"], found["module"], found["step"]) == ("warning", "", 0)
        assert "GradScaler" in found["advice"]
        assert kinds(self.flow(zeros), "warning") == []

    def test_a_loss_that_is_satisfied_later_sends_zeros_too(self):
        hinge = [normal(), *[np.zeros((4, 8))] * 4]
        book = self.flow([("", "grad_output", hinge)], steps=5, dtype="float16")
        assert kinds(book, "warning") == []

    def test_what_arrives_so_at_the_model_came_from_the_loss(self):
        large = [*[normal()] * 8, normal(1e7)]
        book = self.flow([("c", "grad_output", large), ("", "grad_output", large)], steps=9)
        found = findings(book).iloc[0]
        assert (found["module"], found["kind"], found["step"]) == ("", "exploding", 8)
        assert "came from the loss" in found["sentence"]

    def test_a_last_sigmoid_is_a_note_only_while_gradients_pass_it(self):
        def book(behind):
            found = Book()
            for step in range(4):
                found.add("a", normal(), "input", step=step).add("a", normal(), step=step)
                found.add("s", normal(), "input", step=step)
                found.add("s", [1e-9, 1e-9], kind="Sigmoid", step=step)
                found.add("", [1e-9, 1e-9], kind="Net", step=step)
                found.add("s", normal(), "grad_output", step=step, kind="Sigmoid")
                found.add("s", normal(behind), "grad_input", step=step, kind="Sigmoid")
                found.add("a", normal(behind), "grad_output", step=step)
            return found

        assert only(book(0.1), "saturated")["severity"] == "note"
        assert only(book(1e-12), "saturated")["severity"] == "warning"


class TestMasks:
    @pytest.mark.parametrize(("one", "severity"), [(1.0, "note"), (0.3, "warning")])
    def test_a_target_without_foreground_is_a_note(self, one, severity):
        book = Book()
        for step in range(9):
            mask = np.zeros(32)
            mask[: 0 if step == 6 else 8 + step % 3] = 1.0
            mask[:3] *= one  # of several values: no mask
            book.add("", mask, "input", leaf="1", step=step, kind="Net")
            book.add("a", normal(), step=step)
        assert only(book, "sudden_change")["severity"] == severity


class TestRates:
    def training(self, ratio, *, steps=60, until=60, lr=0.1, rate_of=None, kind="SGD", **more):
        """Two groups; weights of the first are moved by `ratio` of themselves in the first steps."""
        moved = {f"{n}.weight": f"optimizer.0.group{0 if n == 0 else 1}" for n in range(6)}
        book = Book(info=info(config=ALL, moved={"model": moved}))
        for step in range(steps):
            for n in range(6):
                book.add(f"{n}", normal(seed=step), "param", leaf="weight", step=step)
                book.add(f"{n}", normal(), "input", step=step).add(f"{n}", normal(), step=step)
            for n in range(6):
                size = ratio if n == 0 and step < until else 0.001
                book.add(f"{n}", normal(), "param_grad", leaf="weight", step=step)
                book.add(f"{n}", normal(size), "update", leaf="weight", step=step,
                         direction="optimizer")  # fmt: skip
            settings(book, step, lr, kind=kind, **{"group1.lr": rate_of or lr, **more})
        return book

    def test_the_learning_rate_is_named(self):
        found = only(self.training(0.4, lr=3.0, steps=20), "update_ratio")
        assert "at a learning rate of 3" in found["sentence"]

    def test_what_a_rate_spoilt_at_first_is_found_in_the_end(self):
        found = only(self.training(0.4, until=7), "update_ratio")
        assert (found["module"], found["step"]) == ("0", 0)
        assert found["value"] == pytest.approx(0.4, rel=1e-6)

    def test_the_weight_that_was_moved_too_far_first_is_named_and_not_what_it_blew_up(self):
        moved = {f"{n}.weight": f"optimizer.0.group{0 if n == 0 else 1}" for n in range(6)}
        book = Book(info=info(config=ALL, moved={"model": moved}))
        for step in range(12):
            for n in range(6):
                book.add(f"{n}", normal(seed=step), "param", leaf="weight", step=step)
                book.add(f"{n}", normal(), step=step)
            for n in range(6):
                size = 0.5 if n == 0 else 0.001 if step < 5 else 100.0
                book.add(f"{n}", normal(), "param_grad", leaf="weight", step=step)
                book.add(f"{n}", normal(size), "update", leaf="weight", step=step,
                         direction="optimizer")  # fmt: skip
            settings(book, step, 30.0, **{"group1.lr": 0.05})
        found = only(book, "update_ratio")
        assert (found["module"], found["step"]) == ("0", 0)
        assert "6 of 6 weights, first of all 0, are too large" in found["sentence"]
        assert found["sentence"].endswith("at a learning rate of 30")
        assert found["value"] == pytest.approx(0.5, rel=1e-6)

    def test_a_group_a_hundred_times_faster_than_the_others(self):
        assert kinds(self.training(0.12, lr=10.0, steps=20), "warning") == []
        found = only(self.training(0.12, lr=10.0, rate_of=0.1, steps=20), "update_ratio")
        assert "100 times the usual one" in found["detail"]

    @pytest.mark.parametrize("until", [60, 8])
    def test_rates_and_updates_that_are_far_apart_are_a_note(self, until):
        """Also where the updates were so in the first steps alone, which the window has lost."""
        book = self.training(0.02, lr=3.0, rate_of=0.1, until=until)
        found = only(book, "rates_apart")
        assert (found["severity"], found["module"], found["step"]) == ("note", "0", 0)
        assert (
            "differ 30 times (0 at 3, others at 0.1), and so do their updates" in found["sentence"]
        )
        assert found["value"] == pytest.approx(30.0)
        assert kinds(book) == ["rates_apart"]
        assert repr(book.run()).startswith("✓")

    @pytest.mark.parametrize(
        ("ratio", "lr", "rate_of"),
        [
            (0.02, 1.0, 0.1),  # a new head
            (0.009, 3.0, 0.1),  # its updates are no tenfold of the others
            (0.001, 100.0, 0.1),  # nor here, whatever the rate
            (0.02, 0.1, 0.1),  # larger updates at the same rate
            (0.02, 0.1, 3.0),  # the slow group moves farther
            (0.02, 3.0, 0.0),  # what does not learn at all is no other rate
        ],
    )
    def test_rates_that_do_not_show_in_the_updates_are_no_note(self, ratio, lr, rate_of):
        rates = {"group1.lr": rate_of}
        book = self.training(ratio, lr=lr, steps=12, **rates)
        assert kinds(book) == []

    @pytest.mark.parametrize(
        ("ratio", "lr", "rate_of"), [(0.4, 10.0, 0.1), (0.02, 0.1, 1e-9), (1e-8, 1e-9, 0.1)]
    )
    def test_where_updates_are_too_large_or_small_the_rates_are_said_there(
        self, ratio, lr, rate_of
    ):
        book = self.training(ratio, lr=lr, rate_of=rate_of, steps=20)
        if rate_of < 1e-6:
            for row in book.rows:
                ours = book.columns.tables.sites.values[row["site"]]
                if ours.role == "update" and ours.module != "0":
                    row["l2"] *= 1e-5
        assert kinds(book) == ["update_ratio"]

    @pytest.mark.parametrize(
        ("fast", "named"),
        [
            (["body.0", "body.1"], "body at 3"),
            (["body.0"], "body.0 at 3"),
            (["body.1", "stem"], "stem and 1 other module at 3"),
        ],
    )
    def test_a_group_is_named_after_the_module_that_holds_it_alone(self, fast, named):
        names = ["stem", "body.0", "body.1", "head"]
        moved = {f"{n}.weight": f"optimizer.0.group{int(n not in fast)}" for n in names}
        book = Book(info=info(config=ALL, moved={"model": moved}))
        for step in range(6):
            for n in names:
                book.add(n, normal(seed=step), "param", leaf="weight", step=step)
            for n in names:
                size = 0.03 if n in fast else 0.001
                book.add(n, normal(), "param_grad", leaf="weight", step=step)
                book.add(n, normal(size), "update", leaf="weight", step=step,
                         direction="optimizer")  # fmt: skip
            settings(book, step, 3.0, **{"group1.lr": 0.1})
        assert f"({named}, others at 0.1)" in only(book, "rates_apart")["sentence"]

    def test_optimizers_of_different_kinds_are_not_compared(self):
        moved = {"a.weight": "optimizer.0.group0", "b.weight": "optimizer.1.group0"}
        book = Book(info=info(config=ALL, moved={"model": moved}))
        for step in range(6):
            for name, size in (("a", 0.03), ("b", 0.001)):
                book.add(name, normal(seed=step), "param", leaf="weight", step=step)
                book.add(name, normal(), "param_grad", leaf="weight", step=step)
                book.add(name, normal(size), "update", leaf="weight", step=step,
                         direction="optimizer")  # fmt: skip
            settings(book, step, 3.0)
            settings(book, step, 0.001, number=1, kind="Adam")
        assert kinds(book) == []

    @pytest.mark.parametrize(
        ("kind", "more", "words"),
        [
            ("AdamW", {"group0.weight_decay": 5.0}, "weight decay of 5"),
            ("SGD", {"group0.weight_decay": 2.0, "group0.momentum": 0.5}, "weight decay of 2"),
            ("Adam", {"group0.weight_decay": 5.0}, "at a learning rate of 0.1"),
            ("SGD", {"group0.weight_decay": 0.1}, "at a learning rate of 0.1"),
        ],
    )
    def test_weight_decay_is_named_where_it_makes_half_of_the_update(self, kind, more, words):
        """AdamW takes lr x decay = 0.5 of a weight; SGD 0.2, and twice that by its momentum."""
        found = only(self.training(0.5, kind=kind, steps=20, **more), "update_ratio")
        assert words in found["sentence"]
        assert ("weight_decay" in found["advice"]) == words.startswith("weight decay")

    @pytest.mark.parametrize("kind", ["RMSprop", "Adagrad"])
    def test_optimizers_that_begin_with_large_steps_are_judged_later(self, kind):
        assert kinds(self.training(0.4, until=8, kind=kind, steps=30), "warning") == []
        assert kinds(self.training(0.4, kind=kind, steps=30), "warning") == ["update_ratio"]

    def test_updates_that_clipping_holds_still_are_a_warning(self):
        book = Book(info=info(config=ALL, moved=HELD))
        for step in range(8):
            for name in "ab":
                book.add(name, normal(), "param", leaf="weight", step=step)
                book.add(name, normal(), step=step)
            for name in "ba":
                book.add(name, normal(), "param_grad", leaf="weight", step=step)
            for name in "ab":
                for role, size in (("param_grad", 1e-5), ("update", 1e-8)):
                    book.add(name, normal(size), role, leaf="weight", step=step,
                             direction="optimizer")  # fmt: skip
            settings(book, step, 1e-3)
        found = only(book, "update_ratio")
        assert (found["severity"], "clip_grad_norm_" in found["advice"]) == ("warning", True)


class TestNearTheEnd:
    def test_what_fed_the_first_inf_is_the_cause(self):
        book = Book()
        for step in range(3):
            book.add("wo", normal(), "input", step=step, dtype="float16")
            book.add("wo", [50000.0, 1.0], step=step, dtype="float16")
            book.add("drop", [50000.0, 1.0], "input", step=step, dtype="float16", kind="Dropout")
            book.add("drop", [INF if step == 2 else 60000.0, 1.0], step=step, dtype="float16",
                     kind="Dropout")  # fmt: skip
        found = findings(book)
        assert found["kind"].tolist()[:2] == ["overflow_risk", "non_finite"]
        assert found["severity"].tolist()[:2] == ["error", "error"]
        assert (found["module"][0], found["step"][0]) == ("wo", 0)
        assert "76% of the range" in found["advice"][1]

    def test_who_did_not_feed_it_is_not_the_cause(self):
        book = Book()
        for step in range(3):
            book.add("far", [50000.0, 1.0], step=step, dtype="float16")
            book.add("b", [2.0, 1.0], "input", step=step, dtype="float16")
            book.add("b", [INF if step == 2 else 1.0, 1.0], step=step, dtype="float16")
        assert findings(book)["kind"].tolist()[0] == "non_finite"

    def test_a_scale_that_cannot_settle_is_told_as_the_origin(self):
        book = Book(info=info())
        for step in range(6):
            book.add("a", normal(), step=step).add("", normal(), step=step, kind="Net")
            for name in ("", "a"):
                book.add(name, [NAN, 1.0], "grad_output", step=step, loss_scale=2.0**-step)
        run = book.run()
        found, origin = run.findings().iloc[0], run.first_nonfinite()
        assert (found["kind"], found["severity"]) == ("loss_scale", "error")
        assert (found["sentence"], found["module"]) == (origin.sentence, origin.module)
        assert "came from the loss" in found["detail"]


class TestDistributed:
    def test_gradients_that_are_the_mean_over_ranks_are_no_sum(self):
        def book(rank):
            found = Book()
            for step in range(4):
                found.add("a", normal(), step=step, rank=rank)
                found.add("a", normal(), "param_grad", leaf="weight", step=step, rank=rank)
                found.add("a", normal(4.5), "param_grad", leaf="weight.grad", step=step, rank=rank)
            return found

        assert kinds(book(-1), "warning") == ["not_zeroed"]
        assert kinds(book(0), "warning") == []
