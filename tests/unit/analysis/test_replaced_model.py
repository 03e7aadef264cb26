"""A model that was made again, while the optimizer or the watch still has the earlier one."""

import torch
from torch import nn

import probe_nb as probe


def made():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


def train(model, optimizer, steps, zeroed=None):
    for _ in range(steps):
        (zeroed or optimizer).zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


TOLD = "`Adam` was named as an optimizer and holds no parameter of what is watched"


class TestAnOptimizerOfTheEarlierModel:
    def run(self, steps=30, zeroed=None, also=()):
        stale, model = torch.optim.Adam(made().parameters()), made()
        named = [stale, *(each(model.parameters(), lr=0.1) for each in also)]
        with probe.watch(model, optimizer=named, live=False) as run:
            for _ in range(steps):
                train(model, stale, 1, zeroed and model)
                for each in named[1:]:
                    each.step()
        return run

    def test_it_is_the_first_line_and_the_only_finding(self):
        run = self.run()
        assert repr(run).splitlines()[0] == f"! {TOLD}"
        found = run.findings()
        assert found["sentence"].tolist() == [TOLD]  # `zero_grad` was called, and did nothing
        assert found["kind"].tolist() == ["stuck"]
        assert "zero_grad" not in found["advice"].item()
        assert "4 parameters of the model" in found["detail"].item()

    def test_it_is_so_after_one_step_and_where_gradients_are_zeroed(self):
        for run in (self.run(steps=1), self.run(zeroed=True)):
            assert run.findings()["sentence"].tolist() == [TOLD]

    def test_beside_one_that_holds_the_model_it_is_a_notice(self):
        run = self.run(steps=3, zeroed=True, also=[torch.optim.SGD])
        assert TOLD not in run.findings()["sentence"].tolist()
        assert any(text.startswith(TOLD) for text in run.info.notices)

    def test_parameters_that_move_all_the_same_are_held_by_another(self):
        model = made()
        stale = torch.optim.Adam(made().parameters())
        mine = torch.optim.SGD(model.parameters(), lr=0.1)
        with probe.watch(model, optimizer=stale, live=False) as run:
            for _ in range(4):
                train(model, mine, 1)
                stale.step()
        assert TOLD not in run.findings()["sentence"].tolist()

    def test_without_a_backward_it_does_not_matter(self):
        model = made()
        with probe.watch(model, optimizer=torch.optim.Adam(made().parameters())) as run:
            model(torch.ones(1, 8))
        assert run.findings().empty


class TestAWatchOfTheEarlierModel:
    def test_nothing_of_the_model_was_recorded(self):
        model = made()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with probe.watch(model, optimizer=optimizer, live=False) as run:
            train(made(), optimizer, 5)
            assert "yet: waiting for a forward of model" in repr(run)
        first, second, *_ = repr(run).splitlines()
        assert first[1:] == " Nothing of the model was recorded"
        assert second.endswith("no forward of the model was seen: was it replaced?")
        assert "Nothing could be judged" in repr(run.findings())

    def test_a_model_that_ran_and_was_not_asked_for_was_not_replaced(self):
        model = made()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with probe.watch(model, optimizer=optimizer, roles="state", live=False) as run:
            train(model, optimizer, 2)
        assert "replaced" not in repr(run)
