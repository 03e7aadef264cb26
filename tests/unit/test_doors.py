"""What is refused at the door, and in which words."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb import session
from probe_nb.errors import ConfigError, ModelError, SelectionError


def layer():
    return nn.Linear(2, 2)


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
    ({"first_step": -1}, ConfigError, ["`first_step` is -1"]),
    ({"first_step": "3"}, ConfigError, ["`first_step` is '3'"]),
    ({"micro_batches": 0}, ConfigError, ["`micro_batches` is 0"]),
    ({"micro_batches": True}, ConfigError, ["`micro_batches` is True"]),
    ({"level": "L2"}, ConfigError, ["`level`", "L2"]),
    ({"optimizer": 0.1}, ConfigError, ["`optimizer`", "float"]),
    ({"optimizer": torch.optim.SGD}, ConfigError, ["`optimizer`"]),
    ({"select": "lin"}, SelectionError, ["No module matches `lin`"]),
    ({"select": 3}, ConfigError, ["`select` is 3"]),
    ({"optimiser": None}, (ConfigError, ModelError), ["optimiser", "`optimizer`"]),
    ({"step": "0"}, (ConfigError, ModelError), ["step", "`steps`"]),
]  # fmt: skip


@pytest.mark.parametrize(("options", "error", "words"), OPTIONS, ids=str)
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


def test_a_refused_start_leaves_the_open_session_alone():
    model = layer()
    run = probe.start(model, live=False)
    with pytest.raises(ConfigError):
        probe.start(model, roles="nothing")
    assert run.is_open
