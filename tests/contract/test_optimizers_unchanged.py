"""Every optimizer of torch moves the same bits, watched or not."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import probe_nb as probe
from tests.models import no_faults, tensors

CLASSES = sorted(
    name
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and name != "Optimizer"
)
OPTIONS = {
    "SGD": [{"momentum": 0.9}, {"fused": True}, {"nesterov": True, "momentum": 0.5}],
    "Adam": [{"amsgrad": True}, {"fused": True}, {"foreach": True}, {"capturable": False}],
    "AdamW": [{"fused": True}, {"foreach": True}, {"lr": torch.tensor(0.01)}],
    "Adagrad": [{"fused": True}],
    "RMSprop": [{"centered": True, "momentum": 0.9}],
    "LBFGS": [{"max_iter": 3, "line_search_fn": "strong_wolfe"}],
}
CASES = [(name, options) for name in CLASSES for options in ({}, *OPTIONS.get(name, ()))]


class Net(nn.Module):
    """An embedding, whose gradient is sparse where an optimizer asks for it, and layers."""

    def __init__(self, *, sparse: bool, matrices: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4, sparse=sparse)
        self.drop = nn.Dropout(0.3)
        if not sparse:
            self.hidden = nn.Linear(4, 4, bias=not matrices)
            self.head = nn.Linear(4, 2, bias=not matrices)

    def forward(self, ids):
        x = self.drop(self.table(ids))
        return x if self.table.sparse else self.head(torch.relu(self.hidden(x)))


def trained(name, options, *, watched):
    """Return everything that five steps have left, and the rows."""
    torch.manual_seed(3)
    model = Net(sparse=name == "SparseAdam", matrices=name == "Muon")
    given = {"lr": 0.02} | {k: v.clone() if torch.is_tensor(v) else v for k, v in options.items()}
    optimizer = getattr(torch.optim, name)(model.parameters(), **given)
    ids = torch.tensor([[0, 2, 5], [1, 1, 6]])

    def closure():
        optimizer.zero_grad()
        loss = model(ids).square().sum()
        loss.backward()
        return loss

    def train():
        for _ in range(5):
            if name == "LBFGS":
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()

    run = None
    if watched:
        with no_faults(), probe.watch(model, optimizer=optimizer, live=False) as run:
            train()
    else:
        train()
    state = list(tensors([optimizer.state[p] for p in optimizer.state]))
    grads = [p.grad for p in model.parameters()]
    versions = [p._version for p in model.parameters()]
    return [*model.parameters(), *state, *grads, torch.get_rng_state()], versions, run


def same(a, b):
    a, b = ((t.coalesce().values() if t.layout == torch.sparse_coo else t) for t in (a, b))
    return a.dtype == b.dtype and torch.equal(a, b)


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_five_steps_leave_the_same_bits(name, options):
    bare, versions, _ = trained(name, options, watched=False)
    seen, versions_seen, run = trained(name, options, watched=True)
    assert len(bare) == len(seen)
    assert all(same(a, b) for a, b in zip(bare, seen, strict=True))
    assert versions == versions_seen
    rows = run.frame(direction="optimizer")
    assert set(rows["step"]) == set(range(5))
    assert set(rows["role"]) == {"param_grad", "param", "update", "state"}
    assert set(rows["status"]) == {"ok"}
