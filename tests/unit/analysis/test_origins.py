"""Where a NaN is born, in real models whose fault is known because it was planted."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import probe_nb as probe
from probe_nb.analysis.calls import Call
from tests.models import no_faults
from tests.records import run as by_hand

NAN, INF = math.nan, math.inf


class Do(nn.Module):
    """A module of one line."""

    def __init__(self, do):
        super().__init__()
        self.do = do

    def forward(self, x):
        return self.do(x)


class Parent(nn.Module):
    """Two children with code of its own before, between and after them."""

    def __init__(self, *, before=None, between=None, after=None):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
        self.code = before, between, after

    def forward(self, x):
        before, between, after = self.code
        x = self.a(before(x) if before else x)
        x = self.b(between(x) if between else x)
        return after(x) if after else x


def fed(rows=3):
    return torch.linspace(-1.0, 2.0, 2 * rows).reshape(rows, 2)


def watched(model, x=None, *, backward=True, steps=1, optimizer=None, **options):
    with no_faults(), probe.watch(model, live=False, optimizer=optimizer, **options) as run:
        for _ in range(steps):
            y = model(fed() if x is None else x)
            if backward:
                y.sum().backward()
            if optimizer is not None:
                optimizer.step()
    return run


def first(run):
    found = run.first_nonfinite()
    return found.phase, found.module, found.role, found.between


class TestForward:
    def test_a_module_whose_inputs_were_finite_bore_it(self):
        model = nn.Sequential(nn.Linear(2, 2), Do(lambda x: x / 0), nn.ReLU())
        found = watched(model).first_nonfinite()
        assert (found.phase, found.step, found.model, found.module) == ("forward", 0, "model", "1")
        assert (found.type, found.role, found.leaf, found.between) == ("Do", "output", "0", None)
        assert "the inputs of this call were finite, so it was born here" in found.detail

    def test_the_code_between_two_children_is_their_parents(self):
        model = nn.Sequential(nn.ReLU(), Parent(between=lambda x: x * INF))
        run = watched(model)
        assert first(run) == ("forward", "1", "input", ("1.a", "1.b"))
        found = run.first_nonfinite()
        assert found.type == "Parent"
        assert found.sentence.endswith(
            "between 1.a (output finite) and 1.b (its input was not): in the forward of 1"
        )

    def test_the_code_before_the_first_child_is_the_parents(self):
        run = watched(nn.Sequential(nn.ReLU(), Parent(before=lambda x: x + NAN)))
        assert first(run) == ("forward", "1", "input", ("1", "1.a"))
        assert "before 1.a" in run.first_nonfinite().sentence
        assert "in the forward of 1, whose input was finite" in run.first_nonfinite().sentence

    def test_the_code_after_the_last_child_is_the_parents(self):
        run = watched(nn.Sequential(nn.ReLU(), Parent(after=lambda x: x + NAN)))
        assert first(run) == ("forward", "1", "output", ("1.b", "1"))
        assert "after 1.b (output finite): in the forward of 1" in run.first_nonfinite().sentence

    def test_what_the_model_was_fed_with_is_no_modules_fault(self):
        run = watched(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), fed() * NAN)
        assert first(run) == ("input", "", "input", None)
        assert "the model was fed with it" in run.first_nonfinite().detail

    def test_nan_that_a_model_is_made_to_be_fed_with_is_none(self):
        model = nn.Sequential(nn.Sequential(Do(torch.nan_to_num)), nn.Linear(2, 2))
        assert watched(model, torch.tensor([[NAN, 1.0], [2.0, 3.0]])).first_nonfinite() is None

    def test_a_parameter_that_was_made_so_is_named_before_what_it_spoils(self):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        with torch.no_grad():
            model[1].bias[0] = NAN
        found = watched(model).first_nonfinite()
        assert (found.phase, found.module, found.leaf) == ("parameter", "1", "bias")
        assert "it was made or loaded so" in found.detail

    def test_a_parameter_that_an_optimizer_spoilt_points_at_its_step(self):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=NAN)
        with probe.watch(model, live=False) as run:  # `optimizer=` is not named
            for _ in range(2):
                model(fed()).sum().backward()
                optimizer.step()
        found = run.first_nonfinite()
        assert (found.phase, found.step) == ("parameter", 1)
        assert "was finite at step 0: look at the last optimizer step" in found.detail

    def test_a_buffer_is_told_from_the_module_that_holds_it(self):
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval()
        model[1].running_var[0] = NAN
        found = watched(model, backward=False).first_nonfinite()
        assert (found.phase, found.module, found.leaf) == ("buffer", "1", "running_var")

    def test_a_buffer_that_spoils_nothing_is_none(self):
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).train()
        model[1].running_var[0] = INF
        assert watched(model).first_nonfinite() is None

    def test_each_call_of_a_shared_module_is_looked_at_by_itself(self):
        shared = Do(lambda x: x.sqrt())
        model = nn.Sequential(shared, Do(lambda x: x - 9), shared, nn.Linear(2, 2))
        run = watched(model, fed().abs() + 1, backward=False)
        found = run.first_nonfinite()
        assert (found.phase, found.module) == ("forward", "0")
        assert run.df.loc[run.df["nan_count"] > 0, "call"].iloc[0] == 1
        assert found.rows["call"].unique().tolist() == [1]

    @pytest.mark.parametrize("dtype", [torch.complex64, torch.bfloat16, torch.float16])
    def test_dtypes_make_no_difference(self, dtype):
        model = nn.Sequential(Do(lambda x: x.to(dtype)), Do(lambda x: x * NAN), nn.Identity())
        assert first(watched(model, backward=False)) == ("forward", "1", "output", None)

    def test_what_cannot_be_measured_is_said_and_not_taken_for_finite(self):
        run = watched(nn.Sequential(Do(lambda x: x * NAN)), backward=False, roles="output")
        assert "the inputs of this call were not recorded" in run.first_nonfinite().detail
        assert "born here" not in run.first_nonfinite().detail

    def test_calls_whose_end_was_not_recorded_are_nested_by_their_paths(self):
        model = nn.Sequential(nn.ReLU(), Parent(between=lambda x: x * INF), nn.ReLU())
        run = watched(model, backward=False, roles="input")
        assert first(run)[:3] == ("forward", "1", "input")
        run = watched(nn.Sequential(*model, nn.Sequential(Parent(before=lambda x: x * NAN))))
        assert first(run)[:3] == ("forward", "1", "input")

    def test_many_calls_whose_end_was_not_recorded_are_compared_with_few(self, monkeypatch):
        compared, holds = [], Call.holds
        monkeypatch.setattr(Call, "holds", lambda *pair: compared.append(pair) or holds(*pair))
        rows = [{"module": f"l{n}" if n else "", "role": "input"} for n in range(1000)]
        found = by_hand([*rows, {"module": "end", "role": "input", "nan_count": 1}])
        assert first(found)[:3] == ("forward", "", "input")
        assert len(compared) < 4000

    def test_modules_that_are_left_out_may_lie_in_between(self):
        model = nn.Sequential(nn.Linear(2, 2), Do(lambda x: x * NAN), nn.Linear(2, 2))
        run = watched(model, backward=False, select=["0", "2"])
        assert first(run) == ("forward", "", "input", ("0", "2"))
        assert "modules that `select` leaves out may lie in between" in run.first_nonfinite().detail

    def test_two_models_are_told_apart(self):
        maker, critic = nn.Linear(2, 2), nn.Sequential(Do(lambda x: x * NAN))
        with probe.watch(maker=maker, critic=critic, live=False) as run:
            critic(maker(fed())).sum().backward()
        found = run.first_nonfinite()
        assert (found.model, found.module) == ("critic", "0")
        assert "critic: 0" in found.sentence

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_a_recompute_is_not_taken_for_the_first_time(self, reentrant):
        inner = nn.Sequential(nn.Linear(2, 2), Do(lambda x: x * INF))
        model = Do(lambda x: checkpoint(inner, x, use_reentrant=reentrant))
        model.inner = inner
        run = watched(model, fed().requires_grad_(), recompute=True)
        assert first(run) == ("forward", "inner.1", "output", None)
        assert not run.first_nonfinite().rows["recompute"].any()

    def test_ranks_are_told_apart_though_their_records_stand_side_by_side(self):
        def of(rank, start, bad):
            rows = [("", "input"), ("a", "input"), ("a", "output"), ("b", "input"), ("", "output")]
            return [
                {"module": module, "role": role, "rank": rank, "order": order, "nan_count": nan}
                for order, ((module, role), nan) in enumerate(zip(rows, bad, strict=True), start)
            ]

        run = by_hand([*of(0, 0, (0, 0, 0, 0, 0)), *of(1, 0, (0, 0, 0, 4, 4))])
        assert first(run) == ("forward", "", "input", ("a", "b"))
        assert run.first_nonfinite().rows["rank"].tolist() == [1, 1]
        assert run.first_nonfinite().after["rank"].tolist() == [1]

    def test_micro_steps_are_told_apart(self):
        steady = nn.Linear(2, 2)
        model = nn.Sequential(steady, Do(lambda x: x * (NAN if x.abs().max() > 50 else 1)))
        nn.init.ones_(steady.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with no_faults(), probe.watch(model, optimizer=optimizer, live=False) as run:
            for scale in (1.0, 100.0):
                model(fed() * scale).sum().backward()
        found = run.first_nonfinite()
        assert (found.step, found.module) == (0, "1")
        assert found.rows["micro_step"].unique().tolist() == [1]

    def test_rows_without_numbers_are_not_taken_for_finite(self):
        rows = [
            {"module": "a", "role": "input", "status": "failed"},
            {"module": "a", "role": "output", "nan_count": 1},
        ]
        found = by_hand(rows).first_nonfinite()
        assert found.module == "a"
        assert "the inputs of this call were not all measured" in found.detail
        assert "born here" not in found.detail


class TestBackward:
    def test_a_finite_forward_with_a_branch_that_is_not(self):
        """`torch.where` multiplies the infinite derivative of the other branch by 0."""
        model = Parent(between=lambda h: torch.where(h > 0, 1 + h, torch.exp(h)))
        nn.init.zeros_(model.a.weight)
        nn.init.constant_(model.a.bias, 100.0)
        h = torch.full((2,), 100.0, requires_grad=True)
        torch.where(h > 0, 1 + h, torch.exp(h)).sum().backward()
        assert h.grad.isnan().all()  # 0 * exp(100)
        run = watched(model)
        assert first(run) == ("backward", "", "grad_output", ("b", "a"))
        assert "in the backward of (root)" in run.first_nonfinite().sentence

    def test_a_module_with_a_pole_in_its_derivative(self):
        model = nn.Sequential(nn.ReLU(), Do(torch.sqrt), nn.Linear(2, 2))
        run = watched(model, torch.zeros(1, 2, requires_grad=True))
        assert first(run) == ("backward", "1", "grad_input", None)
        assert "the gradient that arrived was finite" in run.first_nonfinite().detail

    def test_a_gradient_that_comes_from_the_loss(self):
        model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))
        with probe.watch(model, live=False) as run:
            (model(fed()) - model(fed())).norm().mul(NAN).backward()
        assert first(run) == ("backward", "", "grad_output", None)
        assert "it came from the loss" in run.first_nonfinite().detail

    def test_a_gradient_of_a_weight_that_alone_overflows(self):
        model = nn.Sequential(nn.Linear(2, 2, bias=False))
        with probe.watch(model, live=False) as run:
            (model(torch.full((1, 2), 1e30)) * 1e30).sum().backward()
        found = run.first_nonfinite()
        w = model[0].weight.detach().clone().requires_grad_()
        (torch.full((1, 2), 1e30) @ w.T * 1e30).sum().backward()
        assert w.grad.isinf().all()
        assert (found.phase, found.module, found.role) == ("backward", "0", "param_grad")

    def test_under_a_scaler_that_recovers_nothing_is_born(self):
        model = nn.Linear(2, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        with probe.watch(model, optimizer=optimizer, scaler=scaler, live=False) as run:
            for bad in (False, True, False):
                loss = model(fed()).sum() * (INF if bad else 1.0)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        assert (run.df["posinf_count"] > 0).any()
        assert run.first_nonfinite() is None

    def test_under_a_scaler_that_does_not_recover_it_is_found(self):
        model = nn.Sequential(nn.ReLU(), Do(torch.sqrt), nn.Linear(2, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
        with probe.watch(model, optimizer=optimizer, scaler=scaler, live=False) as run:
            for _ in range(6):
                loss = model(torch.zeros(1, 2, requires_grad=True)).sum()
                scaler.scale(loss).backward()
                model[2].weight.grad.fill_(INF)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        found = run.first_nonfinite()
        assert (found.step, found.phase, found.module) == (0, "backward", "1")


class TestOptimizer:
    def test_a_step_that_spoils_a_parameter(self):
        model = nn.Sequential(nn.Linear(2, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=NAN)
        found = watched(model, optimizer=optimizer, steps=2).first_nonfinite()
        assert (found.phase, found.step, found.module, found.leaf) == (
            "optimizer",
            0,
            "0",
            "weight",
        )
        assert "its gradient was finite" in found.detail
        assert "`group0.lr` of the optimizer was not finite" in found.detail

    def test_a_gradient_that_was_spoilt_after_the_backward(self):
        model = nn.Sequential(nn.Linear(2, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with probe.watch(model, optimizer=optimizer, live=False) as run:
            model(fed()).sum().backward()
            model[0].bias.grad.mul_(NAN)
            optimizer.step()
        found = run.first_nonfinite()
        assert (found.phase, found.role, found.leaf) == ("optimizer", "param_grad", "bias")
        assert "the gradient of the backward was finite: something changed it" in found.detail

    def test_the_earlier_cause_wins(self):
        model = nn.Sequential(nn.Linear(2, 2), Do(lambda x: x * NAN))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        assert first(watched(model, optimizer=optimizer)) == ("forward", "1", "output", None)


class TestOrigin:
    def test_what_followed_is_listed_in_execution_order_once_a_site(self):
        model = nn.Sequential(nn.Linear(2, 2), Do(lambda x: x * NAN), nn.ReLU())
        run = watched(model, backward=False)
        after = run.first_nonfinite().after
        assert after["module"].tolist() == ["2", "2", ""]
        assert after["role"].tolist() == ["input", "output", "output"]
        assert after["nan_count"].tolist() == [6, 6, 6]
        assert run.df.loc[after.index, "order"].tolist() == after["order"].tolist()

    def test_the_evidence_is_rows_of_the_run(self):
        run = watched(nn.Sequential(nn.Linear(2, 2), Do(lambda x: x * NAN)), backward=False)
        rows = run.first_nonfinite().rows
        assert rows["role"].tolist() == ["input", "output"]
        assert rows["absmax"].iloc[0] == run.df.loc[rows.index[0], "absmax"]

    def test_a_run_that_was_saved_says_the_same(self, tmp_path):
        run = watched(Parent(between=lambda x: x * NAN), steps=2)
        again = probe.load(run.save(tmp_path / "run.parquet"))
        assert repr(again.first_nonfinite()) == repr(run.first_nonfinite())

    def test_a_run_that_was_moved_to_disk_says_the_same(self):
        model = nn.Sequential(nn.Linear(2, 2), Do(lambda x: x * NAN))
        whole = watched(model, steps=40, backward=False)
        spilled = watched(model, steps=40, backward=False, memory=4_000)
        assert spilled.columns.spilled
        assert repr(spilled.first_nonfinite()) == repr(whole.first_nonfinite())

    def test_the_headline_and_the_first_finding_are_the_origin(self):
        run = watched(nn.Sequential(nn.ReLU(), Parent(between=lambda x: x * NAN)), steps=3)
        assert run.findings()["sentence"].iloc[0] == run.first_nonfinite().sentence
        assert run.findings()["module"].iloc[0] == "1"
        assert run.first_nonfinite().sentence in " ".join(repr(run).split())

    def test_asking_adds_nothing_to_the_run(self):
        """The gradient of `logits` is that of the child, which is another site."""
        model = Do(lambda x: {"logits": model.inner(x)})
        model.inner = nn.Linear(2, 2)
        with no_faults(), probe.watch(model, live=False) as run:
            (model(fed())["logits"] * NAN).sum().backward()
        sites = list(run.columns.tables.sites.values)
        assert (run.first_nonfinite().module, run.first_nonfinite().phase) == ("", "backward")
        run.findings()
        assert run.columns.tables.sites.values == sites

    def test_an_empty_run_has_none(self):
        assert watched(nn.Linear(2, 2), steps=0).first_nonfinite() is None


class TestAdvice:
    """It points at the side where the code is, in the direction in which one reads it."""

    def advised(self, run):
        found = run.first_nonfinite()
        return found.phase, found.sentence, found.detail, found.advice

    def test_a_backward_before_the_last_child_is_code_that_follows_it_in_the_forward(self):
        x = torch.zeros(1, 2, requires_grad=True)
        x.sqrt().sum().mul(0.0).backward()
        assert x.grad.isnan().all()  # 0 * inf
        model = Parent(after=lambda x: (x * 0).sqrt() * 0)
        phase, sentence, detail, advice = self.advised(watched(model))
        assert phase == "backward"
        assert "in the backward of (root), before b was reached" in sentence
        assert "in its forward after b" in detail
        assert "Look at the code of its forward that follows this child" in advice
        assert "sqrt or norm at 0, acos or asin at 1" in advice

    def test_a_backward_after_the_first_child_is_code_that_comes_before_it_in_the_forward(self):
        model = nn.Sequential(nn.Linear(2, 2), Parent(before=lambda x: (x * 0).sqrt() * 0))
        phase, sentence, detail, advice = self.advised(watched(model))
        assert phase == "backward"
        assert "after 1.a (its gradient was finite): in the backward of 1" in sentence
        assert "in its forward before 1.a" in detail
        assert "Look at the code of its forward that comes before this child" in advice

    def test_a_backward_between_two_children_is_named_in_the_order_of_the_forward(self):
        run = watched(Parent(between=lambda x: x + (x * 0).sqrt() * 0))
        phase, _, detail, advice = self.advised(run)
        assert (phase, run.first_nonfinite().between) == ("backward", ("b", "a"))
        assert "in its forward between a and b" in detail
        assert "between the two" in advice

    def test_a_parameter_that_meets_the_pole_itself(self):
        class Angle(nn.Module):
            def __init__(self):
                super().__init__()
                self.cosine = nn.Parameter(torch.ones(2))

            def forward(self, x):
                return x * torch.acos(self.cosine)

        phase, _, _, advice = self.advised(watched(nn.Sequential(Angle())))
        assert phase == "backward"
        assert "does with this parameter" in advice
        assert "acos or asin at 1" in advice

    def test_the_rows_of_the_call_are_asked_for_with_a_line_to_copy(self):
        model = nn.Sequential(nn.Linear(2, 2), Do(lambda x: x / 0))
        run = watched(model)
        line = run.first_nonfinite().advice.split("`")[1]
        rows = eval(line, {"run": run})
        assert set(rows["module"]) == {"1"}
        assert run.first_nonfinite().rows.index.isin(rows.index).all()

    def test_steps_that_were_left_out_are_not_somebody_elses_doing(self):
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with no_faults(), probe.watch(model, optimizer=optimizer, steps="0,5", live=False) as run:
            for step in range(6):
                optimizer.zero_grad()
                (model(fed()).mean() * (NAN if step == 3 else 1)).backward()
                optimizer.step()
        phase, sentence, detail, advice = self.advised(run)
        assert phase == "parameter"
        assert sentence.startswith("NaN was first seen at step 5")
        assert "finite at step 0: it was written since, and 4 steps in between" in detail
        assert "something else" not in detail
        assert "Record the steps in between" in advice

    def test_something_else_is_said_to_have_written_where_every_step_was_seen(self):
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with no_faults(), probe.watch(model, optimizer=optimizer, live=False) as run:
            for _ in range(2):
                model(fed()).mean().backward()
                optimizer.step()
                nn.init.constant_(model.weight, NAN)
        assert "at step 0, also after its optimizer step: something" in self.advised(run)[2]

    def test_a_buffer_is_written_by_a_forward_and_not_by_an_optimizer(self):
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval()
        model[1].running_mean[0] = NAN
        assert "No optimizer writes buffers" in self.advised(watched(model, backward=False))[3]

    def test_a_learning_rate_that_is_not_finite_is_what_to_look_at(self):
        model = nn.Linear(2, 1)
        run = watched(model, optimizer=torch.optim.SGD(model.parameters(), lr=NAN))
        assert "Look at what sets `group0.lr`" in self.advised(run)[3]

    def test_what_an_inner_module_was_fed_with_is_no_batch(self):
        model = nn.Sequential(Do(lambda x: x * NAN), nn.Linear(2, 2))
        phase, _, detail, advice = self.advised(watched(model, backward=False, select="1"))
        assert phase == "input"
        assert "modules that `select` leaves out may have made it" in detail
        assert "batch" not in advice
