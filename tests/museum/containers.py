"""Models that take or give back something other than one tensor."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from tests.models import Piece, x


class Pair(NamedTuple):
    """A named tuple output."""

    mean: Tensor
    spread: Tensor | None


@dataclass
class Answer:
    """A dataclass output."""

    logits: Tensor
    extra: list[Tensor]
    note: str = "text"


class ModelOutput(collections.OrderedDict):
    """A dict with attributes, as transformers has it."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


class Gives(nn.Module):
    """Wraps what a linear layer gives into some container."""

    def __init__(self, wrap):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)
        self.wrap = wrap

    def forward(self, x):
        h = self.lin(x)
        return self.wrap(self.head(h), h)


class TakesKeywords(nn.Module):
    """Its tensors come by name only."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.norm = Inner()

    def forward(self, *, x, mask=None, options=None):
        y = self.norm(hidden=self.lin(x), scale=options["scale"])
        return y if mask is None else y.masked_fill(mask, 0.0)


class Inner(nn.Module):
    """A child that is called by keyword."""

    def forward(self, *, hidden, scale):
        return hidden * scale


class TakesNested(nn.Module):
    """Lists, dicts and None as arguments."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, states, memory=None, *rest, **options):
        total = sum(self.lin(state) for state in states)
        if memory is not None:
            total = total + memory["keys"][0]
        return total, None, (options.get("flag"), [rest])


class SelfAttention(nn.Module):
    """One tensor passed three times."""

    def __init__(self):
        super().__init__()
        self.mha = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.mha(x, x, x)


class Numbers(nn.Module):
    """Integers, bools, an empty tensor and a scalar among its outputs."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        y = self.lin(x)
        return y, y.argmax(-1), y > 0, y[:0], y.mean(), 3, "text", None


class Packs(nn.Module):
    """An LSTM over a packed sequence."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x):
        return self.lstm(pack_padded_sequence(x, [5, 3], batch_first=True))


PIECES = [
    Piece(
        "dict_output", lambda: Gives(lambda y, h: {"logits": y, "aux": [h * 2, None, "text", 3]})
    ),
    Piece("tuple_output", lambda: Gives(lambda y, h: (y, (h, (h.detach(), y.sum()))))),
    Piece("dataclass_output", lambda: Gives(lambda y, h: Answer(y, [h]))),
    Piece("namedtuple_output", lambda: Gives(lambda y, h: Pair(y, h.std()))),
    Piece("model_output", lambda: Gives(lambda y, h: ModelOutput(logits=y, hidden_states=(h, y)))),
    Piece("list_output", lambda: Gives(lambda y, h: [y, [h, [y + 1]], []])),
    Piece("same_tensor_out_twice", lambda: Gives(lambda y, h: (y, y, h))),
    Piece("no_tensor_output", lambda: Gives(lambda y, h: None)),
    Piece(
        "keywords_only",
        TakesKeywords,
        lambda: (
            (),
            {"x": x(3, 4), "mask": torch.rand(3, 4) > 0.5, "options": {"scale": x(4)}},
        ),
    ),
    Piece(
        "nested_arguments",
        TakesNested,
        lambda: (([x(3, 4), x(3, 4)], {"keys": (x(3, 4),)}, 7), {"flag": x(2)}),
    ),
    Piece("one_tensor_three_times", SelfAttention, lambda: ((x(2, 3, 4),), {})),
    Piece("integers_and_empties", Numbers),
    Piece("lstm", lambda: nn.LSTM(4, 3, num_layers=2, dropout=0.2), lambda: ((x(5, 2, 4),), {})),
    Piece("packed_sequence", Packs, lambda: ((x(2, 5, 3),), {})),
    Piece("gru_cell", lambda: nn.GRUCell(4, 4), lambda: ((x(3, 4), x(3, 4)), {})),
]
