"""Modules that are hard to observe: compiled, scripted, lazy, on meta, under transforms."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

import probe_nb as probe

X = torch.ones(1, 2)


def layers():
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU())


@pytest.fixture
def counter():
    torch._dynamo.reset()
    yield CompileCounter()
    torch._dynamo.reset()


def test_code_that_was_compiled_before_the_watch_stays_compiled_and_is_listed(counter):
    model = torch.compile(layers(), backend=counter)
    expected = model(X)
    with probe.watch(model, live=False) as run:
        assert torch.equal(model(X), expected)
    assert torch.equal(model(X), expected)
    assert counter.frame_count == 1
    reasons = dict(zip(run.coverage()["module"], run.coverage()["reason"], strict=True))
    assert {"0", "1"} <= reasons.keys()
    assert all("compiled" in reason for reason in reasons.values())


def test_compiled_code_stays_quiet_when_another_session_ends(counter):
    model = torch.compile(layers(), backend=counter)
    other = probe.start(torch.compile(nn.Linear(1, 1), backend=counter), live=False)
    with probe.watch(model, live=False):
        probe.stop(other)
        model(X)  # torch would warn of process-wide hooks


def test_code_that_is_first_compiled_inside_the_watch_is_compiled_after_it(counter):
    model = torch.compile(layers(), backend=counter)
    with probe.watch(model, live=False):
        model(X)
        model(X)
        inside = counter.frame_count
    for _ in range(3):
        model(X)
    assert inside == 1
    assert counter.frame_count <= 2


# torch.compile looks at the .grad of what it is fed, and torch warns of that
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_compiled_child_leaves_the_rows_of_the_others_right(counter):
    model = nn.Sequential(
        nn.Linear(2, 2), torch.compile(nn.Tanh(), backend=counter), nn.Linear(2, 1)
    )
    x = torch.ones(1, 2, requires_grad=True)
    with probe.watch(model, live=False) as run:
        model(x).sum().backward()
    outputs = run.frame(role="output")
    assert {"0", "2", ""} <= set(outputs["module"])
    found = run.frame(role="grad_input", module="(root)")["l2"].item()
    assert found == pytest.approx(x.grad.norm().item(), rel=1e-5)
    assert counter.frame_count == 1


def test_a_compiled_function_around_a_watched_model_stays_compiled(counter):
    model = layers()

    @torch.compile(backend=counter)
    def loss(x):
        return model(x).square().sum()

    loss(X)
    with probe.watch(model, live=False) as run:
        loss(X)
        rows = len(run)
        model(X)
    assert rows in (0, 2)  # none, or the parameters alone
    assert set(run.frame(role="output")["module"]) == {"", "0", "1"}
    assert counter.frame_count == 1


def test_a_scripted_child_has_rows_or_a_reason():
    model = nn.Sequential(nn.Linear(2, 2), torch.jit.script(nn.Linear(2, 2)), nn.ReLU())
    with probe.watch(model, live=False) as run:
        model(X)
    seen = set(run.frame(role="output")["module"])
    assert {"", "0", "2"} <= seen
    assert seen | set(run.coverage()["module"]) == {"", "0", "1", "2"}


def test_tracing_and_scripting_work_under_the_watch():
    model = layers()
    with probe.watch(model, live=False):
        traced = torch.jit.trace(model, X)
        scripted = torch.jit.script(model)
        exported = torch.export.export(model.eval(), (X,)).module()
        expected = model(X)
        found = [traced(X), scripted(X), exported(X)]
    assert all(torch.equal(y, expected) for y in found)


def test_a_lazy_layer_is_reported_as_what_it_became_in_its_first_step():
    model = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
    with probe.watch(model, live=False) as run:
        model(X).sum().backward()
    rows = run.frame(module="0")
    assert set(rows["type"]) == {"Linear"}
    assert set(rows["role"]) == {"param", "input", "output", "grad_output", "param_grad"}
    assert sorted(rows[rows["role"] == "param_grad"]["leaf"]) == ["bias", "weight"]
    assert set(rows["status"]) == {"ok"}


def test_on_the_meta_device_there_are_shapes_and_no_numbers():
    model = nn.Linear(2, 3, device="meta")
    with probe.watch(model, live=False) as run:
        model(torch.empty(4, 2, device="meta"))
    rows = run.frame(role="output")
    assert set(run.df["status"]) == {"meta"}
    assert (rows["shape"].item(), rows["device"].item(), rows["numel"].item()) == (
        (4, 3),
        "meta",
        12,
    )
    assert rows["mean"].isna().all()
    assert rows["nan_count"].isna().all()


def test_under_vmap_there_is_a_reason_in_place_of_numbers():
    model = nn.Linear(2, 2)
    x = torch.randn(3, 2)
    expected = torch.vmap(model)(x)
    with probe.watch(model, live=False) as run:
        assert torch.equal(torch.vmap(model)(x), expected)
    rows = run.df[run.df["role"].isin(["input", "output"])]
    assert rows["status"].tolist() == ["vmapped", "vmapped"]


def test_under_a_functional_gradient_there_are_real_numbers():
    model = nn.Linear(2, 2)
    weights = dict(model.named_parameters())

    def loss(w):
        return torch.func.functional_call(model, w, (X,)).sum()

    expected = torch.func.grad(loss)(weights)
    with probe.watch(model, live=False) as run:
        found = torch.func.grad(loss)(weights)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    rows = run.frame(role="output")
    assert rows["status"].tolist() == ["ok"]
    assert rows["mean"].item() == pytest.approx(model(X).mean().item(), rel=1e-6)
    assert set(run.df["status"]) == {"ok"}


def test_under_inference_mode_there_are_forward_rows():
    model = layers()
    with probe.watch(model, live=False) as run, torch.inference_mode():
        model(X)
    assert run.frame(role="output")["module"].tolist() == ["0", "1", ""]
    assert set(run.df["status"]) == {"ok"}


def test_fused_attention_stays_fused_and_what_it_hides_is_listed():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        expected = model(x)
        with probe.watch(model, live=False) as run:
            assert torch.equal(model(x), expected)
    assert set(run.frame(role="output")["module"]) == {"", "layers.0", "layers.1"}
    hidden = dict(zip(run.coverage()["module"], run.coverage()["reason"], strict=True))
    assert "fused" in hidden["layers.0.self_attn"]


def test_calls_past_the_hooks_are_listed():
    model = layers()
    with probe.watch(model, live=False) as run:
        model.forward(model[0].forward(X))
    assert run.frame(role="output")["module"].tolist() == ["0", "1"]
    assert run.coverage()["module"].tolist() == [""]


def test_a_module_that_calls_itself_counts_its_calls():
    class Down(nn.Module):
        """Calls itself until nothing is left."""

        def forward(self, x, depth):
            return x if depth == 0 else self(x * 2, depth - 1) + 1

    model = Down()
    with probe.watch(model, live=False) as run:
        model(torch.ones(1), 2)
    inputs, outputs = run.frame(role="input"), run.frame(role="output")
    assert list(zip(inputs["call"], inputs["mean"], strict=True)) == [(0, 1.0), (1, 2.0), (2, 4.0)]
    assert list(zip(outputs["call"], outputs["mean"], strict=True)) == [
        (2, 4.0),
        (1, 5.0),
        (0, 6.0),
    ]
    assert set(run.df["step"]) == {0}
