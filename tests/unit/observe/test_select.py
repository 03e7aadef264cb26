"""Which modules a pattern chooses, and what is said when it chooses none."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.errors import ModelError, SelectionError
from probe_nb.observe.select import as_models, watched_modules


def network():
    """Return a model with eight modules below its root."""
    return nn.Sequential(
        *[nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(2)],
        nn.Linear(2, 2),
        nn.BatchNorm1d(2),
    )


ALL = ["", "0", "0.0", "0.1", "1", "1.0", "1.1", "2", "3"]
PATTERNS = [
    ([], ALL),
    (["0"], ["0"]),
    (["0.*"], ["0.0", "0.1"]),
    (["*.0"], ["0.0", "1.0"]),
    (["?"], ["0", "1", "2", "3"]),
    (["[01]"], ["0", "1"]),
    (["(root)"], [""]),
    (["*"], ALL),
    (["type:Linear"], ["0.0", "1.0", "2"]),
    (["type:*Norm*"], ["3"]),
    (["type:_BatchNorm"], ["3"]),
    (["0", "type:Linear"], ["0", "0.0", "1.0", "2"]),
    (["type:Linear", "!1.*"], ["0.0", "2"]),
    (["!type:ReLU"], ["", "0", "0.0", "1", "1.0", "2", "3"]),
    (["!0", "!0.*"], ["", "1", "1.0", "1.1", "2", "3"]),
    (["0.*", "!type:ReLU", "1.1"], ["0.0", "1.1"]),
    (["model.2"], ["2"]),
]


@pytest.mark.parametrize(("patterns", "expected"), PATTERNS, ids=str)
def test_a_pattern_chooses_modules(patterns, expected):
    found = watched_modules({"model": network()}, patterns)
    assert [w.path for w in found if w.selected] == expected
    assert [w.path for w in found] == ALL


@pytest.mark.parametrize(
    "patterns", ["0.*, !type:ReLU", ["0.*", "!type:ReLU"], ("0.*", "!type:ReLU")]
)
def test_a_string_with_commas_is_a_list(patterns):
    model = network()
    with probe.watch(model, select=patterns, roles="output", live=False) as run:
        model(torch.ones(3, 2))
    assert run.df["module"].tolist() == ["0.0"]


def test_modules_that_were_not_chosen_are_listed_as_such():
    model = network()
    with probe.watch(model, select="2", live=False) as run:
        model(torch.ones(3, 2))
    coverage = run.coverage()
    assert coverage["module"].tolist() == [p for p in ALL if p != "2"]
    assert set(coverage["reason"]) == {"not selected"}


def test_a_module_that_never_ran_is_listed_with_a_reason():
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
    with probe.watch(model, live=False) as run:
        model["used"](torch.ones(1, 2))
    reasons = dict(zip(run.coverage()["module"], run.coverage()["reason"], strict=True))
    assert reasons.keys() == {"", "unused"}
    assert "never called" in reasons["unused"]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("encodr", ["No module matches `encodr`", "3", "`encoder`"]),
        ("encoder.9", ["No module matches `encoder.9`", "`encoder.0`"]),
        ("!decoder", ["No module matches `decoder`"]),
        ("type:Linera", ["No module has a type that matches `type:Linera`", "`Linear`"]),
        ("type:xyz", ["`type:xyz`", "It has Linear, ModuleDict, Sequential."]),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused_and_the_nearest_named(pattern, words):
    model = nn.ModuleDict({"encoder": nn.Sequential(nn.Linear(1, 1))})
    with pytest.raises(SelectionError) as raised:
        probe.watch(model, select=pattern).__enter__()
    assert [word for word in words if word not in str(raised.value)] == []


def test_a_shared_module_has_one_row_set_and_its_other_paths_choose_it_too():
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    found = watched_modules({"model": model}, ["2"])
    assert [(w.path, w.aliases, w.selected) for w in found] == [
        ("", [], False), ("0", ["2"], True), ("1", [], False),
    ]  # fmt: skip
    with probe.watch(model, select="2", roles="output", live=False) as run:
        model(torch.ones(1, 2))
    assert list(zip(run.df["module"], run.df["call"], strict=True)) == [("0", 0), ("0", 1)]


def test_a_child_called_model_is_not_mistaken_for_the_name_of_the_model():
    model = nn.ModuleDict({"model": nn.Sequential(nn.Linear(1, 1)), "lm_head": nn.Linear(1, 1)})
    found = watched_modules({"model": model}, ["model.*"])
    assert [w.path for w in found if w.selected] == ["model.0"]


def test_of_several_models_one_is_chosen_by_its_name():
    models = {"gen": nn.Sequential(nn.Linear(1, 1)), "dis": nn.Sequential(nn.Linear(1, 1))}
    found = watched_modules(models, ["gen.*"])
    assert [(w.model, w.path) for w in found if w.selected] == [("gen", "0")]


def test_a_module_that_contains_itself_is_walked_once():
    model = nn.Sequential(nn.Linear(1, 1))
    model[0].parent = model
    assert [w.path for w in watched_modules({"model": model}, [])] == ["", "0"]


def test_modules_shared_at_every_level_are_found_at_once_with_a_few_of_their_paths():
    """Here are a million paths, and in the other model 15 factorial."""
    inner = nn.Linear(1, 1)
    for _ in range(20):
        inner = nn.ModuleDict({"a": inner, "b": inner})
    found = watched_modules({"model": inner}, [])
    assert [w.path for w in found] == [".".join("a" * n) for n in range(21)]
    assert max(len(w.aliases) for w in found) < 8
    assert found[1].aliases == ["b"]
    crowd = [nn.Module() for _ in range(15)]
    for module in crowd:
        module._modules.update((str(n), each) for n, each in enumerate(crowd))
    assert len(watched_modules({"model": crowd[0]}, [])) == 15


def test_wrappers_leave_no_trace_in_paths():
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    wrapped = nn.DataParallel(copy.deepcopy(model))
    assert [w.path for w in watched_modules({"model": wrapped}, [])] == ["", "0", "1"]
    compiled = nn.Sequential(torch.compile(model, backend="eager"))
    assert [w.path for w in watched_modules({"model": compiled}, [])] == ["", "0", "0.0", "0.1"]


def test_classes_of_the_users_that_are_called_as_wrappers_are_modules_like_others():
    class DataParallel(nn.Module):
        def __init__(self):
            super().__init__()
            self.module, self.head = nn.Linear(2, 2), nn.Linear(2, 1)

        def forward(self, x):
            return self.head(self.module(x))

    class OptimizedModule(nn.Module):
        def __init__(self):
            super().__init__()
            self._orig_mod = nn.Linear(2, 2)

        def forward(self, x):
            return 2 * self._orig_mod(x)

    model = nn.Sequential(OptimizedModule(), DataParallel())
    paths = ["", "0", "0._orig_mod", "1", "1.module", "1.head"]
    found = watched_modules({"model": model}, [])
    assert [(w.path, w.compiled, w.shell) for w in found] == [(p, False, None) for p in paths]
    with probe.watch(model, roles="output", live=False) as run:
        expected = model(torch.ones(1, 2))
    assert run.info.modules == 6
    assert set(run.df["module"]) == set(paths)
    inner, outer = (run.frame(module=path)["mean"].item() for path in ("0._orig_mod", "0"))
    assert outer == pytest.approx(2 * inner)
    assert run.frame(module="1.head")["mean"].item() == expected.item()


def test_modules_that_are_shared_at_every_level_are_walked_a_few_times_and_each_is_found():
    layer = nn.Linear(2, 2)
    for _ in range(40):  # torch itself names 41 modules; there are 2**41 - 1 paths
        above = nn.Module()
        above.a = above.b = layer
        layer = above
    found = watched_modules({"model": layer}, ["*.b"])
    assert [w.path for w in found] == [".".join("a" * depth) for depth in range(41)]
    assert found[1].aliases == ["b"]
    assert found[2].aliases == ["a.b", "b.a", "b.b"]
    assert max(len(w.aliases) for w in found) < 10


def test_all_to_all_modules_are_each_found():
    modules = [nn.Module() for _ in range(12)]
    for module in modules:
        for place, other in enumerate(modules):
            module.add_module(str(place), other)
    found = watched_modules({"model": modules[0]}, [])
    assert {id(w.module()) for w in found} == {id(m) for m in modules}


def test_a_name_with_dots_and_signs_is_kept():
    model = nn.Module()
    model.add_module("x<b", nn.Linear(1, 1))
    assert [w.path for w in watched_modules({"model": model}, ["x<b"]) if w.selected] == ["x<b"]


def test_a_child_that_is_none_is_passed_over():
    model = nn.Sequential(nn.Linear(1, 1))
    model.register_module("empty", None)
    assert [w.path for w in watched_modules({"model": model}, [])] == ["", "0"]


def test_models_get_a_name_each():
    a, b = nn.Linear(1, 1), nn.ReLU()
    assert as_models(a, {}) == {"model": a}
    assert as_models([a, b], {}) == {"0": a, "1": b}
    assert as_models({"gen": a, 3: b}, {}) == {"gen": a, "3": b}
    assert as_models(None, {"gen": a, "dis": b}) == {"gen": a, "dis": b}
    assert as_models(a, {"dis": b}) == {"model": a, "dis": b}


class Trainer:
    """Keeps a model in an attribute, as many libraries do."""

    def __init__(self, **kept):
        self.__dict__.update(kept)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Linear, ["got the class Linear", "watch an instance"]),
        (torch.ones(2), ["must be a `torch.nn.Module`, got Tensor"]),
        ("model", ["The model to watch must be a `torch.nn.Module`, got str"]),
        ([nn.Linear(1, 1), 3], ["`1` must be a `torch.nn.Module`, got int"]),
        ({"gen": nn.ReLU}, ["`gen`", "got the class ReLU"]),
        (Trainer(model=nn.Linear(1, 1)), ["got Trainer", "has a `.model` that is one"]),
        (Trainer(module=nn.Linear(1, 1)), ["got Trainer", "has a `.module` that is one"]),
        (lambda x: x, ["got function"]),
        (None, ["There is no model to watch"]),
        ([], ["There is no model to watch"]),
        ({}, ["There is no model to watch"]),
    ],
)
def test_what_is_no_module_is_refused_with_a_hint(model, words):
    with pytest.raises(ModelError) as raised:
        probe.watch(model)
    assert [word for word in words if word not in str(raised.value)] == []
