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
    for name in ("session", "doors", "observe/attach", "observe/gradients", "observe/modules")
)


class InterruptAt:
    """Raises KeyboardInterrupt at the nth line of our files that runs."""

    def __init__(self, number: int) -> None:
        self.left, self.fired = number, False

    def __call__(self, frame, event, _):
        if not frame.f_code.co_filename.endswith(FILES):
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
