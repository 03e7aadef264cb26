"""What the recipes of seeing, hearing and other non-text architectures are written with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import nn

from tests.zoo.specimen import Feed, Specimen

Drawn = Callable[[], Any]
"""Draws one argument, from torch's global generator."""

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
VIT = TINY | {"image_size": 32, "patch_size": 8}
LLAMA = TINY | {
    "model_type": "llama",
    "vocab_size": 99,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BERT = TINY | {"model_type": "bert", "vocab_size": 99, "max_position_embeddings": 64}

RESNET = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 16, 24, 32],
    "depths": [1, 1, 1, 1],
    "out_features": ["stage4"],
}
SWIN = {
    "model_type": "swin",
    "image_size": 64,
    "patch_size": 4,
    "embed_dim": 8,
    "depths": [1, 1, 1, 1],
    "num_heads": [1, 1, 2, 2],
    "window_size": 2,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}
DETR = {
    "backbone_config": RESNET,
    "d_model": 32,
    "num_queries": 5,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}


def floats(*shape: int) -> Drawn:
    return lambda: torch.randn(shape)


def shares(*shape: int) -> Drawn:
    """Values between 0 and 1."""
    return lambda: torch.rand(shape)


def ids(*shape: int, below: int = 90, least: int = 3) -> Drawn:
    return lambda: torch.randint(least, below, shape)


def labels(*shape: int, below: int = 2) -> Drawn:
    return ids(*shape, below=below, least=0)


def ones(*shape: int, dtype: torch.dtype = torch.long) -> Drawn:
    return lambda: torch.ones(shape, dtype=dtype)


def fixed(values: Any, dtype: torch.dtype | None = None) -> Drawn:
    return lambda: torch.tensor(values, dtype=dtype)


def plain(value: Any) -> Drawn:
    return lambda: copy.deepcopy(value)


def with_token(count: int, *, token: int, text: int = 5, batch: int = 2) -> Drawn:
    """Token ids in which the first places stand for the picture or the sound."""

    def draw() -> torch.Tensor:
        drawn = torch.randint(3, 90, (batch, count + text))
        drawn[:, 1 : count + 1] = token
        return drawn

    return draw


IMAGE = {"pixel_values": floats(2, 3, 32, 32)}
LARGER = {"pixel_values": floats(2, 3, 64, 64)}
TEXT = {"input_ids": ids(2, 7), "attention_mask": ones(2, 7)}


THREE_TOKENS = {"max_new_tokens": 3, "do_sample": False}

Table = dict[str, tuple[str, Mapping[str, Any], Mapping[str, Drawn]]]
"""`model_type`: the class, its settings and what it is fed."""


def specimens(family: str, table: Table) -> list[Specimen]:
    return [specimen(name, family, *made) for name, made in table.items()]


def specimen(
    name: str,
    family: str,
    architecture: str,
    settings: Mapping[str, Any],
    fed: Mapping[str, Drawn],
    *,
    prompt: Collection[str] = (),
    told: Mapping[str, Any] = THREE_TOKENS,
    trains: bool = True,
) -> Specimen:
    """A specimen of one class of transformers, built from its configuration class.

    Args:
        name: the `model_type`.
        family: what it is.
        architecture: the name of the class.
        settings: what the configuration is given; parts of it are mappings of their own.
        fed: the keyword arguments of `forward`.
        prompt: those of them that `generate` takes; none if the class cannot generate.
        told: what else `generate` is told.
        trains: whether a backward through its outputs is possible.
    """

    def build() -> nn.Module:
        import transformers

        made: Any = getattr(transformers, architecture)
        return made(made.config_class(**copy.deepcopy(dict(settings))))

    def feed(model: nn.Module) -> Feed:
        return (), {word: draw() for word, draw in fed.items()}

    def generate(model: Any) -> Any:
        return model.generate(**{word: fed[word]() for word in prompt}, **told)

    return Specimen(name, family, build, feed, generate if prompt else None, trains)
