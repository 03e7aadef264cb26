"""What is refused at the door, and in which words."""

from __future__ import annotations

import gc
import re
import weakref
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb import session
from probe_nb.errors import ConfigError, ModelError, SelectionError, SessionStateError


def layer():
    return nn.Linear(2, 2)


class Holds:
    """A wrapper around nothing but itself."""

    @property
    def optimizer(self):
        return self


OPTIONS = [
    ({"roles": "outputs"}, ConfigError, ["`outputs` is not a role", "`output`"]),
    ({"roles": ["input", 3]}, ConfigError, ["`roles`"]),
    ({"steps": "abc"}, ConfigError, ["`steps` is 'abc'"]),
    ({"steps": "5-2"}, ConfigError, ["`5-2`", "ends before it begins"]),
    ({"steps": "::0"}, ConfigError, ["stride is 0"]),
    ({"steps": ""}, ConfigError, ["`steps` is ''"]),
    ({"steps": 1.5}, ConfigError, ["`steps` is 1.5"]),
    ({"steps": [0.5]}, ConfigError, ["`steps` is [0.5]"]),
    ({"steps": -1}, ConfigError, ["`steps`"]),
    ({"steps": [3, -1]}, ConfigError, ["`steps` is [3, -1]"]),
    ({"name": 5}, ConfigError, ["`name` is 5"]),
    ({"name": b"x"}, ConfigError, ["`name` is b'x'"]),
    ({"first_step": -1}, ConfigError, ["`first_step` is -1"]),
    ({"first_step": 2**31}, ConfigError, ["`first_step` is 2147483648", "below 1073741824"]),
    ({"first_step": "3"}, ConfigError, ["`first_step` is '3'"]),
    ({"micro_batches": 0}, ConfigError, ["`micro_batches` is 0"]),
    ({"micro_batches": True}, ConfigError, ["`micro_batches` is True"]),
    ({"level": "L2"}, ConfigError, ["`level`", "L2"]),
    ({"optimizer": 0.1}, ConfigError, ["`optimizer`", "float"]),
    ({"optimizer": torch.optim.SGD}, ConfigError, ["`optimizer`"]),
    ({"optimizer": Holds()}, ConfigError, ["`optimizer`", "Holds"]),
    ({"optimizer": Mock()}, ConfigError, ["`optimizer`", "Mock"]),
    ({"select": "lin"}, SelectionError, ["No module matches `lin`"]),
    ({"select": 3}, ConfigError, ["`select` is 3"]),
    ({"optimiser": None}, (ConfigError, ModelError), ["optimiser", "`optimizer`"]),
    ({"step": "0"}, (ConfigError, ModelError), ["step", "`steps`"]),
]  # fmt: skip


def _name(value):
    """Name a case without addresses: each worker of pytest must find the same names."""
    return re.sub(r" (object )?(at 0x|id=')[^>]*", "", str(value))


@pytest.mark.parametrize(("options", "error", "words"), OPTIONS, ids=_name)
def test_an_option_that_makes_no_sense_is_refused_in_words(options, error, words):
    with pytest.raises(error) as raised:
        probe.start(layer(), live=False, **options)
    assert [word for word in words if word not in str(raised.value)] == []
    assert session.sessions() == ()


@pytest.fixture(autouse=True)
def stopped():
    yield
    probe.stop()


def test_a_class_in_place_of_a_model_is_refused():
    with pytest.raises(ModelError, match=r"got the class Linear\. Create it first"):
        probe.start(nn.Linear)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (layer, ["given by name", "watch(gen=generator, disc=critic)"]),
        (lambda: torch.optim.SGD(layer().parameters(), 0.1), ["`optimizer=optimizer`", "SGD"]),
    ],
)
@pytest.mark.parametrize("door", [probe.watch, probe.start])
def test_a_second_value_without_a_name_is_refused_with_the_way_to_name_it(door, second, words):
    with pytest.raises(ModelError) as raised:
        door(layer(), second())
    assert [word for word in words if word not in str(raised.value)] == []
    assert session.sessions() == ()


def test_a_refused_start_leaves_the_open_session_alone():
    model = layer()
    run = probe.start(model, live=False)
    with pytest.raises(ConfigError):
        probe.start(model, roles="nothing")
    assert run.is_open


def test_the_first_step_may_be_as_large_as_is_said_and_its_rows_are_there():
    model = layer()
    with probe.watch(model, first_step=2**30 - 1, roles="output", live=False) as run:
        model(torch.ones(1, 2))
        model(torch.ones(1, 2))
    assert run.df["step"].tolist() == [2**30 - 1, 2**30]


def prepared():
    """Return a watch that is not entered yet, and all that holds its model."""
    model = layer()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    watch = probe.watch(model, optimizer=optimizer, live=False)
    return watch, model, optimizer


def test_a_model_that_is_let_go_of_in_the_block_is_gone_and_so_is_its_memory():
    watch, model, optimizer = prepared()
    weight, gone = weakref.ref(model.weight), [weakref.ref(model), weakref.ref(optimizer)]
    with watch as run:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        del model, optimizer
        gc.collect()
        assert [ref() for ref in (*gone, weight)] == [None] * 3
    assert run.info.ended == "finished"
    assert {"output", "param_grad"} <= set(run.df["role"])


@pytest.mark.parametrize("lost", ["model", "optimizer"])
def test_a_watch_whose_model_or_optimizer_is_gone_is_not_entered_again(lost):
    watch, model, optimizer = prepared()
    with watch:
        pass
    with watch:  # while both are there it can
        pass
    kept = optimizer if lost == "model" else model
    if lost == "model":
        optimizer.param_groups.clear()
    del model, optimizer
    gc.collect()
    with pytest.raises(SessionStateError, match=r"is gone; make another with `watch"):
        watch.__enter__()
    assert session.sessions() == ()
    del kept


def test_a_model_is_kept_until_the_block_is_entered():
    with probe.watch(layer(), live=False) as run:
        pass
    assert run.coverage()["module"].tolist() == [""]


def test_a_watch_without_a_block_says_that_nothing_is_watched_and_how_to_begin():
    model = nn.Linear(2, 1)
    waiting = probe.watch(model, live=False)
    model(torch.ones(2))
    assert "watch of model: nothing is watched yet" in repr(waiting)
    for way in ("with probe.watch(...) as run", "run = probe.start(...)"):
        assert way in repr(waiting)
        for name in ("df", "stop", "findings"):
            with pytest.raises(AttributeError, match=re.escape(way)) as error:
                getattr(waiting, name)
            assert f"`{name}`" in str(error.value)
    with waiting as run:
        model(torch.ones(2))
        assert repr(waiting) == "<a watch of model: open>"
    assert repr(waiting) == "<a watch of model: it has ended>"
    assert run.df["call"].nunique() == 1
    assert not hasattr(waiting, "_repr_html_")
    assert "functions of torch" in repr(probe.watch(level="api"))
