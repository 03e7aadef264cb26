"""One row per parameter and step, against what the training itself shows."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.analysis.updates import COLUMNS
from probe_nb.errors import SelectionError
from tests.models import no_faults

X = torch.linspace(-1.0, 2.0, 12).reshape(3, 4)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def watching(model, **options):
    return probe.watch(model, live=False, **options)


def l2(t) -> float:
    return float(t.detach().double().norm())


def row(frame, module, parameter, step):
    chosen = frame[
        (frame["module"] == module) & (frame["parameter"] == parameter) & (frame["step"] == step)
    ]
    assert len(chosen) == 1
    return chosen.iloc[0]


def test_each_row_joins_what_was_fed_the_gradient_and_the_update():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    truth, fed = [], []
    model[2].register_forward_pre_hook(lambda _, args: fed.append(args[0].detach().double()))
    with no_faults(), watching(model, optimizer=optimizer) as run:
        for _ in range(3):
            model(X).square().sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            before = [p.detach().clone() for p in model.parameters()]
            optimizer.step()
            schedule.step()
            truth.append(
                [
                    (l2(p.grad), l2(old), l2(p.detach() - old))
                    for p, old in zip(model.parameters(), before, strict=True)
                ]
            )
            optimizer.zero_grad()
    frame = run.updates()
    assert list(frame.columns) == list(COLUMNS)
    assert len(frame) == 12
    names = [name.rsplit(".", 1) for name, _ in model.named_parameters()]
    for step in range(3):
        for (module, name), (grad, old, update) in zip(names, truth[step], strict=True):
            found = row(frame, module, name, step)
            assert found["grad_l2"] == pytest.approx(grad, rel=1e-5)
            assert found["param_l2"] == pytest.approx(old, rel=1e-5)
            assert found["update_l2"] == pytest.approx(update, rel=1e-5)
            assert found["ratio"] == pytest.approx(update / old, rel=1e-5)
            assert found["lr"] == pytest.approx(0.05 * 0.5**step)
            assert not found["skipped"]
            assert (found["status"], found["type"], found["model"]) == ("ok", "Linear", "model")
        found, given = row(frame, "2", "weight", step), fed[step]
        assert found["input_absmax"] == pytest.approx(float(given.abs().max()), rel=1e-5)
        assert found["input_l2"] == pytest.approx(l2(given), rel=1e-5)
        assert found["input_mean"] == pytest.approx(float(given.mean()), abs=1e-6)
        assert found["input_std"] == pytest.approx(float(given.std(unbiased=False)), rel=1e-5)


def test_a_step_can_be_asked_for_and_rows_stand_in_the_order_of_steps():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with no_faults(), watching(model, optimizer=optimizer) as run:
        for _ in range(3):
            model(X).sum().backward()
            optimizer.step()
    assert set(run.updates(1)["step"]) == {1}
    assert set(run.updates("1-2")["step"]) == {1, 2}
    assert run.updates()["step"].is_monotonic_increasing
    pd.testing.assert_frame_equal(
        run.updates(2), run.updates().query("step == 2").reset_index(drop=True)
    )


def test_what_was_fed_over_several_calls_is_told_as_of_one_tensor():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    batches = [torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, -4.0], [5.0, torch.nan]])]
    with no_faults(), watching(model, optimizer=optimizer, micro_batches=2) as run:
        for batch in batches:
            model(batch).nan_to_num().sum().backward()
        optimizer.step()
    found = row(run.updates(), "", "weight", 0)
    every = torch.tensor([1.0, 2.0, 3.0, -4.0, 5.0], dtype=torch.float64)
    assert found["input_absmax"] == 5.0
    assert found["input_l2"] == pytest.approx(l2(every))
    assert found["input_mean"] == pytest.approx(float(every.mean()))
    assert found["input_std"] == pytest.approx(float(every.std(unbiased=False)))


class Attends(nn.Module):
    """Is fed ids and a mask beside numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(2, 2)

    def forward(self, x, ids, mask):
        return self.lin(x)[ids] * mask


def test_ids_and_masks_do_not_count_beside_numbers():
    model = nn.ModuleDict({"part": Attends(), "table": nn.Embedding(9, 2)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with no_faults(), watching(model, optimizer=optimizer, select="part.lin,part,table") as run:
        x = model["table"](torch.tensor([7, 8]))
        model["part"](x, torch.tensor([1]), torch.tensor([[True, False]])).sum().backward()
        optimizer.step()
    frame = run.updates()
    assert row(frame, "part.lin", "weight", 0)["input_l2"] == pytest.approx(l2(x), rel=1e-5)
    assert row(frame, "table", "weight", 0)["input_absmax"] == 8.0


def test_a_step_that_the_scaler_skipped_says_so_and_shows_no_update():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with no_faults(), watching(model, optimizer=optimizer, scaler=scaler) as run:
        for factor in (torch.inf, 1.0):
            scaler.scale(model(X).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    frame = run.updates()
    skipped = frame[frame["step"] == 0]
    assert len(skipped) == 4
    assert skipped["skipped"].all()
    assert skipped["update_l2"].isna().all()
    assert skipped["param_l2"].notna().all()
    assert set(skipped["status"]) == {"skipped"}
    assert not frame[frame["step"] == 1]["skipped"].any()
    assert frame[frame["step"] == 1]["update_l2"].notna().all()


def test_parameters_of_an_optimizer_that_was_not_named_have_no_update():
    model = net()
    named = torch.optim.SGD(model[0].parameters(), lr=0.1)
    other = torch.optim.SGD(model[2].parameters(), lr=0.1)
    with no_faults(), watching(model, optimizer=named) as run:
        model(X).sum().backward()
        named.step()
        other.step()
    frame = run.updates()
    weight = row(frame, "2", "weight", 0)
    assert weight["grad_l2"] > 0
    assert pd.isna(weight["update_l2"])
    assert pd.isna(weight["lr"])
    assert pd.isna(weight["skipped"])
    assert weight["status"] == "not_held"
    assert row(frame, "0", "weight", 0)["update_l2"] > 0


def test_rates_are_those_of_the_group_that_a_parameter_is_in():
    model = net()
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters()}], lr=0.25
    )
    with no_faults(), watching({"a": model, "b": nn.Linear(1, 1)}, optimizer=optimizer) as run:
        model(X).sum().backward()
        optimizer.step()
    frame = run.updates()
    assert set(frame["model"]) == {"a"}
    assert dict(zip(frame["module"], frame["lr"], strict=True)) == {"0": 0.5, "2": 0.25}


def test_inside_hooks_of_the_users_the_step_is_there_as_far_as_it_has_come():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told = {}

    def asks(when):
        def hook(*_):
            told.setdefault(when, []).append(run.updates(int(run.df["step"].max())))

        return hook

    optimizer.register_step_pre_hook(asks("before"))
    optimizer.register_step_post_hook(asks("after"))
    with no_faults(), watching(model, optimizer=optimizer) as run:
        for _ in range(2):
            model(X).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    for step in range(2):
        before, after = told["before"][step], told["after"][step]
        assert before["step"].tolist() == after["step"].tolist() == [step] * 4
        assert before["input_l2"].notna().all()
        assert before["grad_l2"].tolist() == pytest.approx(after["grad_l2"].tolist())
        assert before["update_l2"].isna().all()
        assert set(before["status"]) == {"no_step"}
        assert set(after["status"]) == {"ok"}
        assert after["update_l2"].tolist() == pytest.approx(
            (0.1 * after["grad_l2"]).tolist(), rel=1e-5
        )


def test_gradients_accumulated_over_micro_steps_are_told_whole():
    model = nn.Linear(4, 1, bias=False)
    with no_faults(), watching(model, micro_batches=2) as run:
        for _ in range(2):
            model(X).sum().backward()
    assert row(run.updates(), "", "weight", 0)["grad_l2"] == pytest.approx(
        l2(model.weight.grad), rel=1e-5
    )


def test_of_several_steps_in_one_the_last_is_told_with_the_parameter_before_it():
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 8.0)
    critic = torch.optim.SGD(model.parameters(), lr=1.0)
    last = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    with no_faults(), watching(model, optimizer=[critic, last]) as run:
        for factor in (2.0, 3.0):
            (model(torch.ones(1, 1)) * factor).sum().backward()
            critic.step()
            critic.zero_grad()
        last.step()
    found = row(run.updates(), "", "weight", 0)
    assert (found["param_l2"], found["update_l2"], found["grad_l2"]) == (6.0, 3.0, 3.0)


@pytest.mark.parametrize("roles", ["input", "param_grad", "update", "state", "output"])
def test_what_was_not_recorded_is_not_there(roles):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with no_faults(), watching(model, optimizer=optimizer, roles=roles) as run:
        model(X).sum().backward()
        optimizer.step()
    frame = run.updates()
    assert list(frame.columns) == list(COLUMNS)
    assert len(frame) == (4 if roles in ("param_grad", "update") else 0)
    assert frame["ratio"].isna().all()
    assert frame["input_l2"].isna().all()
    assert set(frame["status"]) <= ({"not_asked"} if roles == "param_grad" else {"ok"})
    with pytest.raises(SelectionError, match=r"in step 99\. Step 0 is the only one\."):
        run.updates(99)


def test_every_update_that_is_missing_has_its_reason():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    named = {"optimizer": optimizer}
    with no_faults(), watching(model, **named) as run:
        model(X).sum().backward()
        model[2].weight.grad = None  # somebody takes it away
        optimizer.step()
        optimizer.zero_grad()
        model(X).sum().backward()  # and this one is never stepped
    frame = run.updates()
    reasons = dict[int, set[str]]()
    for step in range(2):
        reasons[step] = set(frame[frame["step"] == step]["status"])
    assert row(frame, "2", "weight", 0)["status"] == "no_gradient"
    assert reasons == {0: {"ok", "no_gradient"}, 1: {"no_step"}}
    with no_faults(), watching(model) as unnamed:
        model(X).sum().backward()
        optimizer.step()
    assert set(unnamed.updates()["status"]) == {"no_step"}


def test_a_run_that_was_saved_says_the_same(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with no_faults(), watching(model, optimizer=optimizer) as run:
        model(X).sum().backward()
        optimizer.step()
    loaded = probe.load(run.save(tmp_path / "run.parquet"))
    pd.testing.assert_frame_equal(loaded.updates(), run.updates())
    assert loaded.updates()["lr"].tolist() == [0.1] * 4
