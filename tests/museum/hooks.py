"""Models that carry hooks of their user."""

from __future__ import annotations

import torch
from torch import nn

from tests.models import Piece


def replaces():
    """Return a model whose own hooks replace arguments and results."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[0].register_forward_pre_hook(_doubled)
    model[0].register_forward_hook(_shifted)
    model[2].register_forward_pre_hook(_by_name, with_kwargs=True)
    return model


def _doubled(_, args):
    return (args[0] * 2,)


def _shifted(_, args, output):
    return output + args[0].sum()


def _by_name(_, args, kwargs):
    return (), {"input": args[0] - 1}


def backward_hooks():
    """Return a model with a user's full backward hooks."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[0].register_full_backward_hook(_halved)
    model[1].register_full_backward_pre_hook(_negated)
    return model


def _halved(_, grads, __):
    return tuple(None if g is None else g / 2 for g in grads)


def _negated(_, grads):
    return tuple(-g for g in grads)


class TensorHooks(nn.Module):
    """Hooks on its tensors and parameters."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.out = nn.Linear(4, 4)
        self.lin.weight.register_hook(_doubled_gradient)

    def forward(self, x):
        h = self.lin(x)
        if h.requires_grad:
            h.register_hook(_clipped)
            h.retain_grad()
        return self.out(h)


def _doubled_gradient(g):
    return g * 2


def _clipped(g):
    return g.clamp(-0.5, 0.5)


class AddsHooks(nn.Module):
    """Adds a hook to a child during the forward, and takes it away again."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.act = nn.Tanh()

    def forward(self, x):
        handle = self.act.register_forward_hook(_plus_one)
        try:
            return self.act(self.lin(x))
        finally:
            handle.remove()


def _plus_one(_, __, output):
    return output + 1


class CallsForward(nn.Module):
    """Calls `.forward` of a child past its hooks."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.act = nn.ReLU(True)

    def forward(self, x):
        return self.act(self.lin.forward(x)) + torch.ones(4)


PIECES = [
    Piece("own_hooks_replace", replaces),
    Piece("own_backward_hooks", backward_hooks),
    Piece("tensor_hooks", TensorHooks),
    Piece("hooks_come_and_go", AddsHooks),
    Piece("forward_called_directly", CallsForward),
]
