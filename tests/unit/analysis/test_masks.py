"""Infinities that are there on purpose: quiet, until they do harm."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import probe_nb as probe
from tests.models import no_faults
from tests.records import run as by_hand
from tests.unit.analysis.test_origins import Do, first, watched

NAN, INF = math.nan, math.inf
SQUARE = torch.linspace(-1.0, 1.0, 9).reshape(3, 3)
CAUSAL = torch.triu(torch.ones(3, 3, dtype=torch.bool), 1)


class MaskedFill(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.mask = mask

    def forward(self, x):
        return x.masked_fill(self.mask, -INF)


class Attention(nn.Module):
    """Scores, a mask of -Inf, softmax: all in modules, so that each value is seen."""

    def __init__(self, mask=CAUSAL, low=-INF, spoil=1.0):
        super().__init__()
        self.query, self.key = nn.Linear(3, 3), nn.Linear(3, 3)
        self.softmax = nn.Softmax(-1)
        self.mask, self.low, self.spoil = mask, low, spoil

    def forward(self, x):
        scores = self.query(x) @ self.key(x).T * self.spoil
        return self.softmax(scores.masked_fill(self.mask, self.low)) @ x


def two_layers(**second):
    return nn.Sequential(Attention(), Attention(**second), nn.Linear(3, 1))


class TestQuiet:
    @pytest.mark.parametrize("low", [-INF, torch.finfo(torch.float32).min])
    def test_masked_scores(self, low):
        run = watched(two_layers(low=low), SQUARE)
        assert run.first_nonfinite() is None
        assert run.findings().query("severity == 'error'").empty

    def test_the_output_of_a_module_that_masks(self):
        run = watched(nn.Sequential(MaskedFill(CAUSAL), nn.Softmax(-1), nn.Linear(3, 1)), SQUARE)
        assert (run.df["neginf_count"] > 0).any()
        assert run.first_nonfinite() is None
        assert "✓" in repr(run)

    def test_a_mask_that_is_an_argument_or_a_buffer(self):
        model = nn.TransformerEncoderLayer(4, 1, 8, dropout=0.0, batch_first=True)
        mask = nn.Transformer.generate_square_subsequent_mask(3)
        model.register_buffer("mask", mask)
        with no_faults(), probe.watch(model, live=False) as run:
            model(torch.linspace(-1, 1, 12).reshape(1, 3, 4), src_mask=mask).sum().backward()
        assert (run.df["neginf_count"] > 0).any()
        assert run.first_nonfinite() is None

    def test_log_of_a_probability_of_zero_whose_loss_is_finite(self):
        logits = torch.tensor([[0.0, -INF, 1.0]])
        model = nn.Sequential(nn.LogSoftmax(-1))
        with no_faults(), probe.watch(model, live=False) as run:
            x = logits.clone().requires_grad_()
            nn.functional.nll_loss(model(x), torch.tensor([2])).backward()
        assert run.df.query("role == 'output'")["neginf_count"].iloc[0] == 1
        assert run.first_nonfinite() is None

    def test_masked_logits_whose_cross_entropy_is_finite(self):
        model = nn.Sequential(nn.Linear(3, 3), MaskedFill(torch.tensor([True, False, False])))
        with no_faults(), probe.watch(model, live=False) as run:
            nn.functional.cross_entropy(model(SQUARE), torch.tensor([1, 2, 1])).backward()
        assert run.first_nonfinite() is None

    def test_logits_of_illegal_actions_in_rollouts_and_in_training(self):
        legal = torch.tensor([True, True, False])
        policy = nn.Sequential(nn.Linear(3, 3), MaskedFill(~legal))
        optimizer = torch.optim.SGD(policy.parameters(), 0.1)
        options = {"optimizer": optimizer, "stop_on": "nonfinite", "live": False}
        with no_faults(), probe.watch(policy, **options) as run:
            for _ in range(3):
                with torch.no_grad():
                    chosen = torch.distributions.Categorical(logits=policy(SQUARE)).sample()
                given = torch.distributions.Categorical(logits=policy(SQUARE))
                (-given.log_prob(chosen).mean()).backward()
                optimizer.step()
        assert all(p.isfinite().all() for p in policy.parameters())
        assert (run.df.query("role == 'output'")["neginf_count"] > 0).any()
        assert run.first_nonfinite() is None
        assert run.findings().query("severity == 'error'").empty

    @pytest.mark.parametrize("grad", [False, True])
    @pytest.mark.parametrize("select", [None, "1"])
    def test_scores_of_banned_tokens_that_leave_the_model(self, grad, select):
        banned = torch.tensor([True, False, False])
        model = nn.Sequential(nn.Linear(3, 3), MaskedFill(banned))
        options = {"stop_on": "nonfinite", "select": select, "live": False}
        with torch.set_grad_enabled(grad), no_faults(), probe.watch(model, **options) as run:
            for _ in range(2):
                assert model(SQUARE).argmax(-1).min() > 0
        assert run.first_nonfinite() is None
        assert "✓" in repr(run)

    def test_scores_of_a_search_that_are_fed_to_a_module(self):
        model = nn.Sequential(Do(lambda scores: scores.softmax(-1)))
        scores = torch.tensor([[0.0, -INF, -INF], [-1.0, -INF, 0.5]])
        assert watched(model, scores, backward=False, steps=3).first_nonfinite() is None

    def test_bounds_of_an_observer_that_has_seen_nothing(self):
        model = nn.Sequential(nn.Linear(3, 3))
        model[0].register_buffer("lowest", torch.tensor(INF))
        model[0].register_buffer("highest", torch.tensor(-INF))
        run = watched(model, SQUARE)
        assert run.first_nonfinite() is None
        assert "✓" in repr(run)


class TestLoud:
    def test_plus_inf_that_an_input_holds(self):
        model = nn.Sequential(nn.Sigmoid())
        assert first(watched(model, SQUARE + INF, backward=False))[:2] == ("input", "")

    def test_a_row_that_is_masked_whole_is_born_at_the_softmax(self):
        """The -Inf was made by code of the parent, as in nearly every attention."""
        run = watched(two_layers(mask=torch.ones(3, 3, dtype=torch.bool)), SQUARE)
        assert first(run) == ("forward", "1.softmax", "output", None)
        found = run.first_nonfinite()
        assert found.kind == "NaN"
        assert "-Inf in an input is how masks are written" in found.detail
        assert "this one arose in the code between 1.key and 1.softmax" in found.detail

    def test_a_softmax_that_is_fed_with_nothing_but_minus_inf(self):
        run = watched(nn.Sequential(nn.Softmax(-1)), torch.full((1, 3), -INF), backward=False)
        assert first(run) == ("forward", "0", "output", None)

    def test_minus_inf_in_the_data_is_the_datas_where_weights_are_applied_to_it(self):
        model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.ReLU())
        nn.init.eye_(model[0][0].weight)  # 0 * -Inf
        run = watched(model, torch.tensor([[-INF, 1.0]]), backward=False)
        assert first(run) == ("input", "", "input", None)
        assert run.first_nonfinite().kind == "-Inf"

    def test_a_module_that_masks_a_row_whole_is_named_itself(self):
        model = nn.Sequential(MaskedFill(torch.ones(3, 3, dtype=torch.bool)), nn.Softmax(-1))
        found = watched(model, SQUARE, backward=False).first_nonfinite()
        assert (found.module, found.type, found.kind) == ("0", "MaskedFill", "-Inf")
        assert "worse followed from this one: NaN in 1 (forward output)" in found.detail

    def test_a_log_of_zero_that_turns_into_nan(self):
        model = nn.Sequential(nn.ReLU(), Do(torch.log), Do(lambda x: x * 0), nn.Identity())
        run = watched(model, torch.zeros(1, 2), backward=False)
        assert first(run)[:2] == ("forward", "1")

    def test_a_log_of_zero_that_a_loss_takes(self):
        class MyLoss(nn.Module):
            def forward(self, x):
                return -x.mean()

        model = nn.Sequential(nn.ReLU(), Do(torch.log), MyLoss())
        run = watched(model, torch.zeros(1, 2), backward=False)
        assert first(run)[:2] == ("forward", "1")
        assert "worse followed from this one: +Inf in 2" in run.first_nonfinite().detail

    def test_minus_inf_that_a_loss_gives_out_is_said_to_have_reached_it(self):
        class MyLoss(nn.Module):
            def forward(self, x):
                return x.mean()

        model = nn.Sequential(nn.ReLU(), Do(torch.log), MyLoss())
        run = watched(model, torch.zeros(1, 2), backward=False)
        assert first(run)[:2] == ("forward", "1")
        assert "this one reached a loss: 2" in run.first_nonfinite().detail
        assert "worse followed" not in run.first_nonfinite().detail

    def test_minus_inf_whose_gradient_turns_nan(self):
        """The weight of the log is 0 where it is -Inf, so nothing shows before the backward."""
        x = torch.zeros(1, 2, requires_grad=True)
        model = nn.Sequential(nn.Identity(), Do(torch.log), Do(lambda x: torch.clamp(x, min=-9)))
        run = watched(model, x)
        assert x.grad.isnan().all()  # 0 / 0
        assert first(run)[:2] == ("forward", "1")
        assert "worse followed from this one: NaN in 1 (gradient" in run.first_nonfinite().detail

    def test_a_mask_is_not_blamed_for_what_another_layer_does(self):
        """Every layer has its mask of -Inf; the overflow is in the second one.

        Queries are keys there, so that scores on the diagonal are positive and become +Inf,
        whatever the weights; where none is, they are what a mask looks like.
        """
        model = two_layers(spoil=INF)
        model[1].query.load_state_dict(model[1].key.state_dict())
        run = watched(model, SQUARE)
        found = run.first_nonfinite()
        assert (found.module, found.between) == ("1", ("1.key", "1.softmax"))

    def test_a_mask_that_served_others_well_is_not_blamed(self):
        rows = [
            {"module": "mask", "role": "output", "neginf_count": 2},
            *({"module": "a", "role": role} for role in ("input", "output")),
            {"module": "a", "role": "input", "leaf": "1", "neginf_count": 2},
            {"module": "a", "role": "output"},
            {"module": "b", "role": "input", "leaf": "1", "neginf_count": 2},
            {"module": "b", "role": "output", "nan_count": 1},
        ]
        assert first(by_hand(rows))[:2] == ("forward", "b")

    def test_a_module_that_always_gives_out_minus_inf_is_not_blamed(self):
        def step(number, bad):
            return [
                {"module": "mask", "role": "output", "neginf_count": 2, "step": number},
                {"module": "soft", "role": "input", "neginf_count": 2, "step": number},
                {"module": "soft", "role": "output", "nan_count": bad, "step": number},
            ]

        assert first(by_hand(step(0, 1)))[:2] == ("forward", "mask")
        assert first(by_hand([*step(0, 0), *step(1, 1)]))[:2] == ("forward", "soft")


class TestFarBack:
    """The search goes back through every layer once, however many ways there are."""

    @staticmethod
    def layers(count, tensors, made=()):
        """Each layer takes all of the one before; `made` is what came out before the first."""
        held = [{"absmax": float(n), "neginf_count": 1} for n in range(tensors)]
        rows = [{"module": "made", "role": "output", **each} for each in made]
        for layer in range(count):
            for role, number in (("input", layer), ("output", layer + 1)):
                rows += [
                    {"module": f"l{layer}", "role": role, "leaf": str(n), "min": number, **each}
                    for n, each in enumerate(held)
                ]
        last = [{"module": "end", "role": "input", "min": count, **each} for each in held]
        return [*rows, *last, {"module": "end", "role": "output", "nan_count": 1}]

    @pytest.mark.parametrize(("count", "tensors"), [(60, 2), (30, 4), (2000, 1)])
    def test_what_came_from_outside_is_no_layers_fault(self, count, tensors):
        assert first(by_hand(self.layers(count, tensors)))[:2] == ("forward", "end")

    @pytest.mark.parametrize(("count", "tensors"), [(60, 2), (2000, 1)])
    def test_what_a_module_made_is_its_own(self, count, tensors):
        made = [{"absmax": float(tensors - 1), "neginf_count": 1, "min": 0}]
        assert first(by_hand(self.layers(count, tensors, made)))[:2] == ("forward", "made")
