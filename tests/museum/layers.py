"""Layers with a trap of their own: fused paths, parametrised weights, unusual dtypes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrizations

from tests.models import Piece, x


class Listed(nn.Module):
    """Parameters in a list and in a dict."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([torch.randn(4, 4) for _ in range(2)])
        self.scales = nn.ParameterDict({"a": torch.ones(4), "b": torch.ones(4)})

    def forward(self, x):
        return (x @ self.weights[0]) * self.scales["a"] + (x @ self.weights[1]) * self.scales["b"]


class Transformer(nn.Module):
    """Embedding, two encoder layers and a head."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, 10)

    def forward(self, ids):
        return self.head(self.encoder(self.embed(ids)))


class OddName(nn.Module):
    """A child whose name is HTML."""

    def __init__(self):
        super().__init__()
        self.add_module("x<b", nn.Linear(4, 4))

    def forward(self, x):
        return self._modules["x<b"](x)


def bfloat16():
    """Return a model in bfloat16."""
    return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()).to(torch.bfloat16)


def scripted():
    """Return a model with a scripted child."""
    return nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Linear(4, 4)), nn.ReLU())


PIECES = [
    Piece(
        "identity_and_dropout",
        lambda: nn.Sequential(nn.Identity(), nn.Dropout(0.5), nn.Linear(4, 4), nn.Identity()),
    ),
    Piece("only_identity", nn.Identity),
    Piece(
        "embedding_first",
        lambda: nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2)),
        lambda: ((torch.randint(10, (3, 2)),), {}),
    ),
    Piece(
        "sparse_embedding",
        lambda: nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2)),
        lambda: ((torch.randint(10, (3, 2)),), {}),
    ),
    Piece("transformer", Transformer, lambda: ((torch.randint(10, (2, 3)),), {})),
    Piece(
        "encoder_layer",
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        lambda: ((torch.randn(2, 3, 8),), {}),
    ),
    Piece(
        "weight_norm",
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)), nn.Tanh()),
    ),
    Piece("spectral_norm", lambda: parametrizations.spectral_norm(nn.Linear(4, 4))),
    Piece("parameter_list", Listed),
    Piece(
        "complex",
        lambda: nn.Linear(4, 3, dtype=torch.cfloat),
        lambda: ((torch.randn(2, 4, dtype=torch.cfloat, requires_grad=True),), {}),
    ),
    Piece(
        "bfloat16",
        bfloat16,
        lambda: ((torch.randn(3, 4, dtype=torch.bfloat16, requires_grad=True),), {}),
    ),
    Piece(
        "float64",
        lambda: nn.Linear(4, 4).double(),
        lambda: ((x(3, 4).detach().double(),), {}),
        not_in=("bf16",),
    ),
    Piece("lazy", lambda: nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.LazyLinear(2))),
    Piece("scripted_child", scripted, not_in=("inference",)),
    Piece("odd_name", OddName),
    Piece("no_parameters", lambda: nn.Sequential(nn.Tanh(), nn.Softmax(-1))),
    Piece("strided_input", lambda: nn.Linear(4, 4), lambda: ((x(4, 3).t(),), {})),
]
