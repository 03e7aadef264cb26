"""What msProbe and we both look at: small seeded programs, the same to the bit in every process.

Nothing of probe_nb is imported here: msProbe's interpreter runs it too.
"""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """Takes a tensor, a number, a text, None, a list; gives a dict."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x, scale=2, *, name="b", mask=None, sizes=(1, 2)):
        y = torch.tanh(self.fc(x) * scale)
        return {"hidden": y, "parts": [(x + 1).mean(), x > 0]}


class Head(nn.Module):
    """Takes what `Block` gives; a few types beside float32."""

    def __init__(self):
        super().__init__()
        self.narrow = nn.Linear(8, 8, dtype=torch.bfloat16)
        self.wide = nn.Linear(8, 4, dtype=torch.float64)

    def forward(self, found):
        x = self.narrow((found["hidden"] + found["parts"][0]).bfloat16())
        return self.wide(x.double()).float()


class Counts(nn.Module):
    """Gives whole numbers, truth values, one number, and nothing."""

    def forward(self, x):
        return x.argmax(-1), x.sum() > 0, x.sum(), x[:0]


class Wide(nn.Module):
    """Gives half precision whose norm does not fit into it."""

    def forward(self, x):
        return x.half() * 30000


class Net(nn.Module):
    """Convolutions, attention, a recurrent layer, a module that runs twice."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.pool = nn.AdaptiveAvgPool2d((2, 1))
        self.emb = nn.Embedding(16, 8)
        self.norm = nn.LayerNorm(8)
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.twice = nn.Linear(8, 8)
        self.block = Block()
        self.head = Head()
        self.counts = Counts()
        self.wide = Wide()

    def forward(self, image, ids, mask=None):
        y = self.norm(self.emb(ids))
        y, _ = self.attn(y, y * 2, y + 1, key_padding_mask=mask, need_weights=False)
        y, _ = self.lstm(y)
        y = self.twice(self.twice(y).relu())
        x = self.pool(self.conv(image)).flatten(1) + y.mean(1)
        found = self.block(x, 3, name="last")
        with torch.no_grad():
            self.counts(x)
            self.wide(x)
        return self.head(found)


class Inner(nn.Module):
    """Gives what another of its outputs is computed from, and one that nobody uses."""

    def forward(self, x):
        y = torch.tanh(x)
        return {"hidden": y, "mean": y.mean(), "unused": y * 2}


class Shared(nn.Module):
    """Passes one tensor several times: msProbe splits it, and the attention computes otherwise."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(16, 8)
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)
        self.inner = Inner()
        self.head = nn.Linear(8, 4)

    def forward(self, image, ids, mask=None):
        y = self.emb(ids)
        y, _ = self.attn(y, y, y, key_padding_mask=mask, need_weights=False)
        found = self.inner(y.mean(1))
        return self.head(found["hidden"] + found["mean"])


class InPlace(nn.Module):
    """A residual net that writes in place: msProbe loses most of its backward."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.act = nn.ReLU(inplace=True)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.fc = nn.Linear(4, 4)

    def forward(self, image, ids, mask=None):
        x = self.act(self.first(image))
        x = self.act(self.second(x) + x)
        return self.fc(x.mean((2, 3)))


def batch(number):
    """Return the inputs and targets of a micro batch."""
    g = torch.Generator().manual_seed(number)
    image = torch.randn(3, 2, 6, 6, generator=g)
    ids = torch.randint(0, 16, (3, 5), generator=g)
    targets = torch.randint(0, 4, (3,), generator=g)
    mask = torch.zeros(3, 5, dtype=torch.bool)
    mask[:, 4] = True
    return image, ids, mask, targets


def train(model, optimizer, step, start, stop):
    """Train for two steps; the second one adds the gradients of two micro batches."""
    number = 0
    for micro_batches in (1, 2):
        start(model)
        optimizer.zero_grad()
        for _ in range(micro_batches):
            image, ids, mask, targets = batch(number)
            F.cross_entropy(model(image, ids, mask=mask), targets).backward()
            number += 1
        optimizer.step()
        stop()
        step()


def save(number, keep):
    """Hand values of many kinds to `keep(value, name)`, in one step."""
    torch.manual_seed(number)
    fc = nn.Linear(4, 4)
    h = fc(torch.randn(2, 4))
    keep({"h": h, "list": [h * 2, [1, "a"]], "n": 2.5, "ok": True}, "blob")
    keep(h, "plain")
    keep(h.detach() * 2, "plain")
    (h.sum() * 3).backward()


MODELS = {"net": Net, "inplace": InPlace, "shared": Shared}


def seeded(name):
    """Return a model and its optimizer, with the same numbers every time."""
    torch.manual_seed(1234)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MODELS[name]()
    return model, torch.optim.SGD(model.parameters(), lr=0.05)
