"""A Ctrl-C at any line of ours, while a session opens or closes, leaves nothing for good."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer

import probe_nb as probe
from probe_nb import session

FILES = tuple(
    f"probe_nb/{name}.py"
    for name in (
        *("session", "doors", "run"),
        *("observe/attach", "observe/gradients", "observe/modules", "observe/only"),
    )
)
CLOSING = tuple(
    f"probe_nb/{name}.py" for name in ("session", "recorder", "about", "observe/coverage")
)
BEFORE_CLOSING = 2
"""Lines of a range's exit before its closing begins: as if the block itself were interrupted."""


class InterruptAt:
    """Raises KeyboardInterrupt at the nth line of our files that runs."""

    def __init__(self, number: int, files: tuple[str, ...] = FILES) -> None:
        self.left, self.fired, self.files = number, False, files

    def __call__(self, frame, event, _):
        if not frame.f_code.co_filename.endswith(self.files):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                self.fired = True
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


def ours() -> int:
    tables = (
        torch_module._global_forward_pre_hooks,
        torch_module._global_forward_hooks,
        torch_optimizer._global_optimizer_post_hooks,
    )
    return sum(len(table) for table in tables) + len(session.sessions())


def hooked(model: nn.Module) -> int:
    return sum(len(p._backward_hooks or ()) for p in model.parameters())


def interrupted(model: nn.Module, number: int, phase: str) -> bool:
    """Interrupt one watch; False if it was over before the line came."""
    trace = InterruptAt(number)
    try:
        if phase == "open":
            sys.settrace(trace)
        with probe.watch(model):
            sys.settrace(None)
            model(torch.ones(1, 2)).sum().backward()
            if phase == "close":
                sys.settrace(trace)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return trace.fired


@pytest.mark.parametrize("phase", ["open", "close"])
def test_an_interrupt_at_any_line_leaves_nothing_that_stop_cannot_take_away(phase):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    before = ours()
    for number in range(1, 2000):
        if not interrupted(model, number, phase):
            break
        probe.stop()  # finds what an interrupt left before the closing had begun
        assert ours() == before, number
        assert hooked(model) == 0, number
        assert torch.is_grad_enabled()
    assert number > 50  # lines of ours that were tried
    with probe.watch(model) as run:
        model(torch.ones(1, 2))
    assert len(run) > 0


@pytest.mark.parametrize("phase", ["open", "close"])
@pytest.mark.parametrize("inside", [True, False], ids=["of the model", "stranger"])
def test_an_interrupt_at_any_line_of_a_range_leaves_a_watch_that_can_be_stopped(phase, inside):
    model, stranger = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 2)
    chosen, before = model[0] if inside else stranger, ours()
    for number in range(1, 400):
        trace = InterruptAt(number)
        run = probe.start(model, live=False)
        try:
            if phase == "open":
                sys.settrace(trace)
            with run.only(chosen, "alone"):
                sys.settrace(None)
                chosen(torch.ones(1, 2)).sum().backward()
                if phase == "close":
                    sys.settrace(trace)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        closing = phase == "close" and number > BEFORE_CLOSING
        if closing or not trace.fired:  # closed, if in a second attempt
            model(torch.ones(1, 2))
            assert "" in set(run.df["module"]), number
        probe.stop(run)
        assert ours() == before, number
        assert hooked(model) == hooked(stranger) == 0, number
        if not trace.fired:
            break
    assert number > 5


def test_a_closing_that_was_interrupted_is_finished_by_stop_and_says_what_it_cost():
    model, rows = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), set()
    for number in range(1, 1000):
        trace, told = InterruptAt(number, CLOSING), []
        run = probe.start(model, live=False)
        session.sessions()[-1].closers.append(lambda told=told: told.append("the end"))
        model.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        try:
            sys.settrace(trace)
            probe.stop(run)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        probe.stop(run)
        assert told, number  # a live view would be there for good
        assert not run.is_open
        assert run.info.ended == "stopped"
        if not any("may be missing: KeyboardInterrupt" in each for each in run.info.notices):
            rows.add(len(run))
        if not trace.fired:
            break
    assert number > 50
    assert rows == {len(run)}  # none is missing without a word
    assert len(run) > 0


@pytest.mark.parametrize(
    "guard",
    [
        torch.no_grad,
        torch.enable_grad,
        torch.set_grad_enabled,
        torch.inference_mode,
    ],
)
def test_ctrl_c_at_the_end_of_what_we_compute_leaves_the_user_their_gradients(monkeypatch, guard):
    end, hit = guard.__exit__, []

    def exit_(self, *error):
        if sys._getframe(1).f_globals["__name__"].startswith("probe_nb"):
            hit.append(guard)
            raise KeyboardInterrupt  # before the mode is set back
        return end(self, *error)

    monkeypatch.setattr(guard, "__exit__", exit_)
    model = nn.Sequential(nn.Linear(2, 3), nn.Softmax(-1))
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.ones(1, 2)
    try:
        with probe.watch(
            model,
            optimizer=optimizer,
            extras={"spectral_norm": "0", "attention_entropy": "1"},
            slices=[{"dim": 1, "begin": 0, "end": 1}],
            keep="*",
            live=False,
        ):
            for _ in range(2):
                model(x).sum().backward()
                optimizer.step()
    except KeyboardInterrupt:
        probe.stop()
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    assert hit == []
