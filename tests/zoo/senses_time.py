"""Architectures that see neither words, pictures nor sound: series, actions, proteins, any bytes."""

from __future__ import annotations

import torch

from tests.zoo.senses_tools import (
    BERT,
    LLAMA,
    TEXT,
    TINY,
    Table,
    floats,
    ids,
    labels,
    ones,
    plain,
    specimen,
    specimens,
)
from tests.zoo.specimen import Specimen

SERIES = {
    "prediction_length": 4,
    "context_length": 12,
    "lags_sequence": [1, 2, 3],
    "num_time_features": 2,
    "num_static_categorical_features": 1,
    "cardinality": [5],
    "embedding_dimension": [4],
    "d_model": 16,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "num_parallel_samples": 2,
}
PAST = {
    "past_values": floats(2, 15),
    "past_time_features": floats(2, 15, 2),
    "past_observed_mask": ones(2, 15),
    "static_categorical_features": labels(2, 1, below=5),
    "future_time_features": floats(2, 4, 2),
}
SERIED = PAST | {"future_values": floats(2, 4)}
FUTURE: Table = {
    "time_series_transformer": ("TimeSeriesTransformerForPrediction", SERIES, SERIED),
    "informer": ("InformerForPrediction", SERIES, SERIED),
    "autoformer": (
        "AutoformerForPrediction",
        SERIES | {"label_length": 4, "moving_average": 5, "autocorrelation_factor": 1},
        SERIED,
    ),
}
CHANNELS = {"past_values": floats(2, 16, 3), "future_values": floats(2, 4, 3)}
PATCHED: Table = {
    "patchtst": (
        "PatchTSTForPrediction",
        {
            "num_input_channels": 3,
            "context_length": 16,
            "patch_length": 4,
            "patch_stride": 4,
            "num_hidden_layers": 2,
            "d_model": 16,
            "ffn_dim": 32,
            "prediction_length": 4,
            "channel_attention": True,
            "loss": "nll",
            "num_parallel_samples": 2,
        },
        CHANNELS,
    ),
    "patchtsmixer": (
        "PatchTSMixerForPrediction",
        {
            "num_input_channels": 3,
            "context_length": 16,
            "patch_length": 4,
            "patch_stride": 4,
            "num_layers": 2,
            "mode": "mix_channel",
            "self_attn": True,
            "prediction_length": 4,
            "loss": "nll",
            "num_parallel_samples": 2,
        },
        CHANNELS,
    ),
}
FREE: Table = {
    "timesfm": (
        "TimesFmModelForPrediction",
        TINY | {"patch_length": 4, "context_length": 16, "horizon_length": 4, "head_dim": 8},
        {
            "past_values": lambda: [torch.randn(16), torch.randn(9)],
            "freq": plain([0, 1]),
            "future_values": floats(2, 4),
        },
    ),
    "timesfm2_5": (
        "TimesFm2_5ModelForPrediction",
        TINY
        | {
            "patch_length": 4,
            "context_length": 16,
            "horizon_length": 4,
            "head_dim": 8,
            "num_key_value_heads": 4,
            "output_quantile_len": 8,
        },
        {
            "past_values": lambda: [torch.randn(16), torch.randn(9)],
            "future_values": floats(2, 4),
        },
    ),
    "decision_transformer": (
        "DecisionTransformerModel",
        {
            "state_dim": 5,
            "act_dim": 3,
            "hidden_size": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 32,
            "max_ep_len": 20,
        },
        {
            "states": floats(2, 4, 5),
            "actions": floats(2, 4, 3),
            "rewards": floats(2, 4, 1),
            "returns_to_go": floats(2, 4, 1),
            "timesteps": labels(2, 4, below=20),
            "attention_mask": ones(2, 4),
        },
    ),
    "perceiver-image": (
        "PerceiverForImageClassificationConvProcessing",
        {
            "num_latents": 4,
            "d_latents": 16,
            "d_model": 16,
            "num_self_attends_per_block": 2,
            "num_self_attention_heads": 2,
            "num_cross_attention_heads": 1,
        },
        {"inputs": floats(2, 3, 32, 32), "labels": labels(2)},
    ),
    "canine": (
        "CanineForTokenClassification",
        TINY
        | {
            "max_position_embeddings": 64,
            "num_hash_functions": 4,
            "num_hash_buckets": 16,
            "local_transformer_stride": 8,
        },
        {"input_ids": ids(2, 16, below=5000), "labels": labels(2, 16)},
    ),
}

EVOLLA = (
    "EvollaForProteinText2Text",
    LLAMA
    | {
        "model_type": "evolla",
        "protein_encoder_config": BERT | {"position_embedding_type": "rotary"},
        "aligner_num_add_layers": 1,
        "resampler_depth": 1,
        "resampler_dim_head": 8,
        "resampler_heads": 4,
        "resampler_num_latents": 4,
    },
    TEXT
    | {
        "protein_input_ids": ids(2, 6),
        "protein_attention_mask": ones(2, 6),
        "labels": ids(2, 7),
    },
)
READ = ["input_ids", "attention_mask", "protein_input_ids", "protein_attention_mask"]

SPECIMENS: list[Specimen] = [
    *(specimen(name, "series", *made, prompt=list(PAST), told={}) for name, made in FUTURE.items()),
    *(
        specimen(name, "series", *made, prompt=["past_values"], told={})
        for name, made in PATCHED.items()
    ),
    *specimens("neither words, pictures nor sound", FREE),
    specimen("evolla", "protein to text", *EVOLLA, prompt=READ),
]
