"""Modules that are hard to observe: compiled, scripted, lazy, on meta, under transforms."""

from __future__ import annotations

import gc
import json

import numpy as np
import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb import reasons as words
from probe_nb.errors import ProbeWarning
from probe_nb.recorder import Recorder
from probe_nb.stats.summary import Reducer
from probe_nb.terms import STATUSES
from probe_nb.view.frame import FrameBuilder
from tests.models import no_faults

X = torch.ones(1, 2)


def layers():
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU())


def reasons(run):
    """Return module -> reason of what was not seen."""
    frame = run.coverage()
    unseen = frame[frame["rows"].isna()]
    return dict(zip(unseen["module"], unseen["reason"], strict=True))


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
    inside = [name for name, _ in model.layers[0].named_children()]
    assert {hidden[f"layers.0.{name}"] for name in inside} == {"inside a fused kernel"}
    assert hidden["layers.1.self_attn.out_proj"] == "inside a fused kernel"
    assert hidden["layers"] == "a container"


def test_unfused_the_layers_inside_are_seen_and_the_one_used_by_weight_is_said_to_be():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    with probe.watch(model, live=False) as run:
        model(torch.randn(2, 3, 8)).sum().backward()
    assert reasons(run) == {"self_attn.out_proj": "used only by its weights"}
    leaves = run.frame(module="self_attn.out_proj", role="param_grad")["leaf"]
    assert sorted(leaves) == ["bias", "weight"]


def test_in_inference_too_attention_is_known_to_use_its_projection_by_weight():
    model = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    with torch.no_grad(), probe.watch(model, live=False) as run:
        model(x, x, x)
    assert reasons(run) == {"out_proj": "used only by its weights"}


def test_calls_past_the_hooks_are_listed():
    model = layers()
    with probe.watch(model, live=False) as run:
        model.forward(model[0].forward(X))
    assert run.frame(role="output")["module"].tolist() == ["0", "1"]
    assert reasons(run) == {"": "called only in part"}


def test_a_layer_called_past_its_hooks_is_told_by_the_gradients_of_its_weights():
    model = layers()
    with probe.watch(model, live=False) as run:
        model[1](model[0].forward(X)).sum().backward()
    assert reasons(run) == {"": "called only in part", "0": "used only by its weights"}


def test_the_reasons_are_counted_in_one_line_and_containers_are_none():
    model = nn.ModuleDict(
        {"used": nn.Linear(2, 2), "a": nn.Linear(2, 2), "b": nn.Sequential(nn.ReLU(), nn.ReLU())}
    )
    with probe.watch(model, live=False) as run:
        model["used"](X)
        model["b"][0](X)
    assert reasons(run) == {
        "": "a container",
        "a": "never called",
        "b": "called only in part",
        "b.1": "never called",
    }
    line = "The forward of 3 of 5 modules was not seen: "
    line += "2 never called (`a`, `b.1`), 1 called only in part (`b`)"
    assert line in repr(run)
    assert line in run._repr_mimebundle_()["text/html"]
    status = json.loads(FrameBuilder(run.columns, run.info).update()[1])
    assert (
        "not seen: 2 never called (`a`, `b.1`), 1 called only in part (`b`)"
        in status["missed_text"]
    )


def test_of_many_modules_with_one_reason_the_first_are_named():
    model = nn.ModuleList([nn.Linear(2, 2) for _ in range(5)])
    with probe.watch(model, live=False) as run:
        model[4](X)
    line = "The forward of 4 of 5 modules was not seen: 4 never called (`0`, `1`, `2`, ...)"
    assert line in repr(run)


@pytest.mark.parametrize("broken", ["_spot", "see"])
def test_an_error_of_ours_is_told_by_the_run_and_is_the_reason_of_what_lacks(
    monkeypatch, tmp_path, broken
):
    real = Recorder._spot

    def of_one(recorder, watched, where):
        if watched.path == "0":
            raise NameError("ours")
        return real(recorder, watched, where)

    def never(*args, **options):
        raise NameError("ours")

    if broken == "_spot":
        monkeypatch.setattr(Recorder, "_spot", of_one)
    else:
        monkeypatch.setattr(Reducer, "see", never)
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with torch.no_grad(), probe.watch(model, live=False) as run:
        with pytest.warns(ProbeWarning, match="ours"):
            model(X)
        with no_faults():  # it is told once
            model(X)
    loaded = probe.load(run.save(tmp_path / "run.npz"))
    for each in (run, loaded):
        told = [text for text in each.info.notices if "could not record `0`" in text]
        assert told
        assert len(set(told)) == len(told)
        assert all("NameError: ours" in text for text in told)
        assert "could not record" in repr(each)
        assert repr(each).splitlines()[0].startswith("!"), repr(each)
        if broken == "_spot":
            assert reasons(each) == dict.fromkeys(["", "0"], "lost to an error of probe_nb")
        else:
            assert set(each.coverage()["reason"]) == {"failed"}


def test_a_process_that_was_not_asked_for_is_the_reason_there():
    model = layers()
    with probe.watch(model, ranks="1", live=False) as run:
        model(X)
    assert set(reasons(run).values()) == {"in a process that `ranks=` leaves out"}
    assert "not seen" not in repr(run)
    assert "this process is rank 0" in repr(run)


def test_every_reason_that_can_be_given_comes_with_what_to_do():
    named = {value for name, value in vars(words).items() if name.isupper() and type(value) is str}
    lacking = set(STATUSES) - words.NUMBERED
    assert named - {words._HOOKS} | lacking == words.REMEDIES.keys()
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with probe.watch(model, select="0", live=False) as run:
        model.forward(X)
    frame = run.coverage()
    assert frame["remedy"].tolist() == [words.REMEDIES[reason] for reason in frame["reason"]]


def test_what_was_not_asked_for_is_listed_and_not_counted_as_missed():
    model = layers()
    with probe.watch(model, select="0", live=False) as run:
        model(X)
    assert reasons(run) == {"": "not selected", "1": "not selected"}
    assert "not seen" not in repr(run)


def test_modules_called_in_other_steps_or_tokens_only_are_told_from_unused_ones():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.later, self.never = nn.ReLU(), nn.ReLU(), nn.ReLU()
            self.count = 0

        def forward(self, x):
            self.count += 1
            return (self.first if self.count == 1 else self.later)(x)

    for options in ({"steps": "1"}, {"token_range": (1, 1)}):
        model = Branches()
        with torch.no_grad(), probe.watch(model, live=False, **options) as run:
            model(X)
            model(X)
        assert reasons(run) == {
            "first": "called only in steps that were not asked for",
            "never": "never called",
        }


def test_what_runs_inside_scripted_and_traced_code_is_said_to_be_inside():
    scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    traced = torch.jit.trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), X)
    with probe.watch(scripted=scripted, traced=traced, live=False) as run:
        scripted(X)
        traced(X)
    assert reasons(run) == {"0": "inside scripted code", "1": "inside scripted code"}
    outputs = run.frame(role="output")
    assert list(zip(outputs["model"], outputs["module"], strict=True)) == [
        ("scripted", ""),
        ("traced", ""),
    ]


def test_what_an_exported_graph_has_frozen_is_said_to_be_inside_it():
    model = torch.export.export(layers().eval(), (X,)).module()
    with probe.watch(model, live=False) as run:
        model(X)
    assert reasons(run)["0"] == "inside a traced graph"
    assert "" in set(run.frame(role="output")["module"])


def test_the_modules_of_a_symbolic_trace_are_seen_as_usual():
    model = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), layers()))
    with probe.watch(model, live=False) as run:
        model(X)
    assert set(run.frame(role="output")["module"]) == {"", "0", "1.0", "1.1"}
    assert reasons(run) == {"1": "a container"}


def test_rows_without_numbers_are_counted_with_their_reason():
    model = nn.Sequential(nn.Linear(2, 2), nn.Identity())
    with probe.watch(model, live=False) as run:
        for _ in range(3):
            model(torch.ones(1, 2, requires_grad=True)).sum().backward()
        torch.vmap(model[0])(torch.ones(4, 2))
    frame = run.coverage()
    counted = {(r.module, r.reason): r.rows for r in frame.itertuples()}
    # each step, the identity hands an output and an input on that are not its own
    assert counted == {("1", "passthrough"): 6, ("0", "vmapped"): 2}
    assert (frame["remedy"] != "").all()


def test_a_module_without_tensors_and_one_without_gradients_are_told():
    class Words(nn.Module):
        def forward(self, text):
            return text.upper()

    model = nn.Sequential(Words())
    with probe.watch(model, live=False) as run:
        model("a")
    assert set(reasons(run).values()) == {"called without tensors"}
    model = layers()
    with probe.watch(model, roles="grad_output", live=False) as run:
        model(X)
    assert set(reasons(run).values()) == {"called without gradients"}
    with probe.watch(model, roles="param", live=False) as run:
        model(X)
    assert reasons(run) == {}


def test_an_empty_run_says_what_happened_and_what_to_do():
    model = layers()
    with probe.watch(model, live=False) as run:
        pass
    for shown in (repr(run), run._repr_mimebundle_()["text/html"]):
        assert "Nothing was recorded" in shown
        assert "3 modules: never called" in shown
        assert "module(x)" in shown
    assert set(reasons(run)) == {"", "0", "1"}


def test_the_coverage_does_not_change_when_the_model_is_gone(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.ModuleList([nn.ReLU()]))
    run = probe.start(model, live=False)
    model[0](X)
    before = run.coverage()
    del model
    gc.collect()
    probe.stop()
    assert run.coverage().equals(before)
    assert set(reasons(run).values()) == {"called only in part", "a container", "never called"}
    run.save(tmp_path / "run.parquet")
    assert probe.load(tmp_path / "run.parquet").coverage().equals(before)


def test_a_part_that_was_taken_out_is_not_missed():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with probe.watch(model, live=False) as run:
        model[1] = nn.Identity()
        gc.collect()
        model(X)
        model(X)
    assert reasons(run) == {"1": "taken out of the model"}


def test_a_part_that_is_put_in_during_the_last_step_is_listed_and_not_as_never_called():
    class Grows(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.Sequential(nn.Linear(2, 2))

        def forward(self, x):
            self.parts.append(nn.Linear(2, 2))
            return self.parts(x)

    model = Grows()
    with probe.watch(model, live=False) as run:
        model(X)
        model(X)
    assert reasons(run) == {"parts.2": "put into the model too late"}
    assert len(run.frame(module="parts.1", role="output")) == 1
    assert run.info.modules == 5


def test_a_module_that_is_called_by_its_own_call_is_no_container():
    class Calls(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.Linear(2, 2)

        def __call__(self, x):
            return self.part(x)

    with probe.watch(Calls(), live=False) as never:
        pass
    model = nn.Sequential(Calls())
    with probe.watch(model, live=False) as run:
        model(X)
    assert reasons(never) == {"": "never called", "part": "never called"}
    assert reasons(run) == {"0": "called only in part"}


@pytest.mark.parametrize("odd", ["yes", 1, None, 0, np.bool_(True)])
def test_a_training_flag_of_any_kind_is_read_as_torch_reads_it(odd):
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].training = odd
    with no_faults(), probe.watch(model, live=False) as run:
        model(X).sum().backward()
    rows = run.frame(module="0")
    assert set(rows["role"]) == {"input", "output", "param", "grad_output", "param_grad"}
    assert set(rows["training"]) == {bool(odd)}
    assert set(run.frame(module="(root)")["training"]) == {True}


def test_a_step_in_the_middle_of_training_costs_no_new_list():
    """The list is made when something new was seen: not once per step."""
    model = layers()
    session_of = []
    with probe.watch(model, live=False) as run:
        for _ in range(3):
            model(X)
            run.flush()
            session_of.append(run.info.unobserved)
    assert session_of[1] is session_of[2]


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
