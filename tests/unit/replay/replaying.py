"""What the tests of replays share: a watch that keeps what a replay needs, and numpy's float64."""

from __future__ import annotations

import numpy as np
import torch

import probe_nb as probe
from tests.models import no_faults

BOTH = ("input", "output", "grad_output", "grad_input")


def watched(model, *args, backward=False, keep="*", roles=BOTH, values=True, **kwargs):
    """Call a model once under a watch that keeps its inputs and outputs."""
    kept = probe.Keep(keep, roles=roles)
    with no_faults(), probe.watch(model, keep=kept, values=values, live=False) as run:
        out = model(*args, **kwargs)
        if backward:
            out.sum().backward()
    return run


def called(model, *args, **options):
    """Do the same, and return the run and what came out."""
    given = {}
    handle = model.register_forward_hook(lambda _m, _a, out: given.update(out=out))
    run = watched(model, *args, **options)
    handle.remove()
    return run, given["out"]


def wide(tensor):
    return tensor.detach().double().numpy()


def error(told, truth):
    """Return the norm of the difference over the norm of the truth."""
    return np.linalg.norm((wide(told) - truth).ravel()) / np.linalg.norm(np.ravel(truth))


def steps(*shape, low=-1.0, high=1.0):
    """Return numbers that no seed changes."""
    return torch.linspace(low, high, int(np.prod(shape))).reshape(shape)
