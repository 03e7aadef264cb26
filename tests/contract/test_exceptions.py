"""The user's exceptions pass untouched; ours never reach the user."""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.errors import ProbeWarning
from tests.contract.test_given_back import FailsBackward, Ignores, break_at_second_arguments

ERROR = ValueError("mine")


class Layer(nn.Module):
    """Raises from two functions down."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        return deeper(self.lin(x))


def deeper(x):
    raise ERROR


def in_forward():
    return nn.Sequential(nn.Linear(4, 4), Layer())(torch.ones(2, 4))


def in_backward():
    x = torch.ones(2, 4, requires_grad=True)
    return FailsBackward.apply(nn.Linear(4, 4)(x), ERROR).sum().backward()


def in_loss():
    y = nn.Linear(4, 4)(torch.ones(2, 4))
    return deeper(y)


def raised_by(model, act):
    """Return the exception of `act`, run with a model that is watched unless it is None."""
    ERROR.__traceback__ = None
    session = contextlib.nullcontext() if model is None else probe.watch(model, live=False)
    try:
        with session:
            act()
    except ValueError as error:
        return error, frames_of(error)
    return None, []


def frames_of(error):
    """Return the frames of this file in a traceback."""
    found, traceback = [], error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename == __file__:
            found.append((code.co_name, traceback.tb_lineno))
        traceback = traceback.tb_next
    return found


def test_a_users_exception_is_the_same_object_from_the_same_frames():
    model = nn.Sequential(nn.Linear(4, 4), Layer())

    def act():
        model(torch.ones(2, 4))

    bare, bare_frames = raised_by(None, act)
    seen, seen_frames = raised_by(model, act)
    assert seen is bare is ERROR
    assert [name for name, _ in seen_frames] == ["raised_by", "act", "forward", "deeper"]
    assert seen_frames == bare_frames
    assert (seen.__cause__, seen.__context__, getattr(seen, "__notes__", [])) == (None, None, [])


@pytest.mark.parametrize("act", [in_forward, in_backward, in_loss])
def test_an_exception_beside_the_watched_model_passes_as_well(act):
    bare, bare_frames = raised_by(None, act)
    seen, seen_frames = raised_by(nn.Linear(4, 4), act)
    assert seen is bare is ERROR
    assert seen_frames == bare_frames


def test_an_exception_in_backward_passes_through_watched_gradients():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def act():
        x = torch.ones(2, 4, requires_grad=True)
        model[1](FailsBackward.apply(model[0](x), ERROR)).sum().backward()

    bare, bare_frames = raised_by(None, act)
    seen, seen_frames = raised_by(model, act)
    assert seen is bare is ERROR
    assert seen_frames == bare_frames


def third_time(model):
    """Raise out of the third step of a loop that swallows what the first two raise."""
    for _ in range(2):
        with contextlib.suppress(ValueError):
            model(torch.ones(2, 4))
    ERROR.__traceback__ = None
    model(torch.ones(2, 4))


def test_the_run_says_how_it_ended():
    model = nn.Sequential(nn.Linear(4, 4), Layer())
    with pytest.raises(ValueError, match="mine"), probe.watch(model, live=False) as run:
        third_time(model)
    assert run.info.ended == "ValueError in 1 at step 2: mine"


def test_an_exception_outside_of_every_module_names_no_module():
    with pytest.raises(ZeroDivisionError), probe.watch(nn.Linear(1, 1), live=False) as run:
        _ = 1 / 0
    assert run.info.ended == "ZeroDivisionError at step 0: division by zero"


def test_a_fault_of_ours_warns_once_and_the_model_goes_on(monkeypatch):
    model, x = Ignores(), torch.ones(2, 4)
    break_at_second_arguments(monkeypatch, RuntimeError("not to be looked into"))
    expected = model(x)
    session = probe.watch(model, roles="output", live=False)
    run = session.__enter__()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        outputs = [model(x, 2) for _ in range(3)]
    session.__exit__(None, None, None)
    assert all(torch.equal(output, expected) for output in outputs)
    assert [(w.category, "not to be looked into" in str(w.message)) for w in warned] == [
        (ProbeWarning, True)
    ]
    assert run.df[run.df["module"] == "lin"]["step"].tolist() == [0, 1, 2]


def test_a_fault_of_ours_stays_ours_where_warnings_are_errors(monkeypatch):
    model = Ignores()
    break_at_second_arguments(monkeypatch, RuntimeError("not to be looked into"))
    with probe.watch(model, live=False):
        model(torch.ones(2, 4), 2)


def test_a_row_that_could_not_be_measured_is_marked_failed():
    class Bare(torch.Tensor):
        """A tensor that refuses every operation but those of a linear layer."""

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if func is nn.functional.linear:
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **(kwargs or {})).as_subclass(torch.Tensor)
            raise RuntimeError(f"{func} is refused")

    model = nn.Linear(4, 4)
    x = torch.ones(2, 4).as_subclass(Bare)
    with probe.watch(model, live=False) as run:
        y = model(x)
    assert y.shape == (2, 4)
    assert "ok" in set(run.df[run.df["role"] == "output"]["status"])
