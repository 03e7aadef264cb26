"""Architectures that write about pictures that came in by another door than one token each.

Grids of patches, a few queries, cross attention, an encoder of its own.
"""

from __future__ import annotations

import torch

from tests.zoo.senses_readers import SEEN, pictured
from tests.zoo.senses_tools import (
    BERT,
    IMAGE,
    LLAMA,
    TEXT,
    TINY,
    VIT,
    Drawn,
    Table,
    fixed,
    floats,
    ids,
    ones,
    shares,
    specimen,
    with_token,
)
from tests.zoo.specimen import Specimen

SPOKEN = {
    "vocab_size": 99,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
OPT = TINY | {
    "model_type": "opt",
    "vocab_size": 99,
    "ffn_dim": 64,
    "max_position_embeddings": 64,
    "word_embed_proj_dim": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
T5 = SPOKEN | {
    "model_type": "t5",
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
}
QFORMER = BERT | {"model_type": "blip_2_qformer", "encoder_hidden_size": 32}
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
QWEN_TEXT = LLAMA | {"rope_parameters": MROPE}
QWEN = {
    "image_token_id": SEEN,
    "video_token_id": 97,
    "vision_start_token_id": 96,
    "vision_end_token_id": 95,
}


def patches(channels: int) -> dict[str, Drawn]:
    """Two pictures of 4 by 4 patches, merged two by two into 4 tokens."""
    places = [[0, *[1] * 4, *[0] * 4]] * 2
    return {
        "input_ids": with_token(4, token=SEEN),
        "attention_mask": ones(2, 9),
        "pixel_values": floats(32, channels),
        "image_grid_thw": fixed([[1, 4, 4]] * 2),
        "mm_token_type_ids": fixed(places, torch.int),
    }


WRITERS: Table = {
    "qwen2_vl": (
        "Qwen2VLForConditionalGeneration",
        QWEN
        | {
            "text_config": QWEN_TEXT | {"model_type": "qwen2_vl_text"},
            "vision_config": {
                "depth": 2,
                "embed_dim": 32,
                "hidden_size": 32,
                "num_heads": 4,
                "patch_size": 4,
                "mlp_ratio": 2,
            },
        },
        patches(96),
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VLForConditionalGeneration",
        QWEN
        | {
            "text_config": QWEN_TEXT | {"model_type": "qwen2_5_vl_text"},
            "vision_config": {
                "depth": 2,
                "hidden_size": 32,
                "out_hidden_size": 32,
                "intermediate_size": 64,
                "num_heads": 4,
                "patch_size": 4,
                "window_size": 8,
                "fullatt_block_indexes": [1],
            },
        },
        patches(96),
    ),
    "qwen3_vl": (
        "Qwen3VLForConditionalGeneration",
        QWEN
        | {
            "text_config": QWEN_TEXT | {"model_type": "qwen3_vl_text"},
            "vision_config": {
                "depth": 2,
                "hidden_size": 32,
                "out_hidden_size": 32,
                "intermediate_size": 64,
                "num_heads": 4,
                "patch_size": 4,
                "num_position_embeddings": 16,
                "deepstack_visual_indexes": [0, 1],
            },
        },
        patches(96),
    ),
    "blip-2": (
        "Blip2ForConditionalGeneration",
        {
            "vision_config": VIT,
            "qformer_config": QFORMER,
            "text_config": OPT,
            "num_query_tokens": 4,
            "image_token_index": SEEN,
        },
        pictured(4),
    ),
    "instructblip": (
        "InstructBlipForConditionalGeneration",
        {
            "vision_config": VIT,
            "qformer_config": QFORMER | {"model_type": "instructblip_qformer"},
            "text_config": OPT,
            "num_query_tokens": 4,
            "image_token_index": SEEN,
        },
        pictured(4, qformer_input_ids=ids(2, 5), qformer_attention_mask=ones(2, 5)),
    ),
    "git": (
        "GitForCausalLM",
        BERT | SPOKEN | {"model_type": "git", "vision_config": VIT},
        TEXT | IMAGE,
    ),
    "kosmos-2": (
        "Kosmos2ForConditionalGeneration",
        {
            "text_config": SPOKEN
            | {
                "embed_dim": 32,
                "layers": 2,
                "ffn_dim": 64,
                "attention_heads": 4,
                "max_position_embeddings": 64,
            },
            "vision_config": VIT,
            "latent_query_num": 4,
        },
        pictured(4, image_embeds_position_mask=fixed([[0, *[1] * 4, *[0] * 4]] * 2)),
    ),
    "fuyu": (
        "FuyuForCausalLM",
        {
            "image_size": 32,
            "patch_size": 8,
            "text_config": LLAMA | {"model_type": "persimmon"},
            "image_token_id": SEEN,
        },
        {
            "input_ids": with_token(4, token=SEEN),
            "attention_mask": ones(2, 9),
            "image_patches": floats(2, 4, 192),
        },
    ),
    "mllama": (
        "MllamaForConditionalGeneration",
        {
            "vision_config": VIT
            | {
                "attention_heads": 4,
                "num_global_layers": 1,
                "vision_output_dim": 64,
                "max_num_tiles": 2,
                "intermediate_layers_indices": [1],
                "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
            },
            "text_config": LLAMA
            | {"model_type": "mllama_text_model", "cross_attention_layers": [1]},
            "image_token_index": SEEN,
        },
        {
            "input_ids": with_token(1, token=SEEN),
            "attention_mask": ones(2, 6),
            "pixel_values": floats(2, 1, 2, 3, 32, 32),
            "aspect_ratio_ids": fixed([[2], [1]]),
            "aspect_ratio_mask": fixed([[[1, 1]], [[1, 0]]]),
            "cross_attention_mask": ones(2, 6, 1, 2),
        },
    ),
    "pix2struct": (
        "Pix2StructForConditionalGeneration",
        {
            "text_config": SPOKEN
            | {"hidden_size": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4},
            "vision_config": TINY
            | {"patch_embed_hidden_size": 48, "d_ff": 64, "d_kv": 8, "seq_len": 16},
            "decoder_start_token_id": 1,
        },
        {
            # the first two numbers of a patch are its row and its column
            "flattened_patches": lambda: torch.cat(
                [torch.arange(32.0).reshape(2, 8, 2) % 5, torch.randn(2, 8, 48)], -1
            ),
            "attention_mask": ones(2, 8),
            "labels": ids(2, 5),
        },
    ),
    "vision-encoder-decoder": (
        "VisionEncoderDecoderModel",
        {
            "encoder": VIT | {"model_type": "vit"},
            "decoder": BERT | {"is_decoder": True, "add_cross_attention": True},
            "decoder_start_token_id": 1,
            "pad_token_id": 0,
            "eos_token_id": 2,
        },
        IMAGE | {"labels": ids(2, 5)},
    ),
    "florence2": (
        "Florence2ForConditionalGeneration",
        {
            "text_config": SPOKEN
            | {
                "model_type": "bart",
                "d_model": 32,
                "encoder_layers": 2,
                "decoder_layers": 2,
                "encoder_ffn_dim": 64,
                "decoder_ffn_dim": 64,
                "encoder_attention_heads": 4,
                "decoder_attention_heads": 4,
                "max_position_embeddings": 64,
                "forced_eos_token_id": None,
            },
            "vision_config": {
                "depths": [1, 1],
                "patch_size": [7, 3],
                "patch_stride": [4, 2],
                "patch_padding": [3, 1],
                "patch_prenorm": [False, True],
                "embed_dim": [16, 32],
                "num_heads": [2, 4],
                "num_groups": [2, 4],
                "window_size": 4,
                "projection_dim": 32,
            },
            "image_token_id": SEEN,
        },
        pictured(17, labels=ids(2, 5)),
    ),
    "udop": (
        "UdopForConditionalGeneration",
        T5
        | {
            "model_type": "udop",
            "image_size": 32,
            "patch_size": 8,
            "max_2d_position_embeddings": 64,
        },
        TEXT | IMAGE | {"bbox": shares(2, 7, 4), "labels": ids(2, 5)},
    ),
}

SPECIMENS: list[Specimen] = [
    *(
        specimen(name, "picture to text", *made, prompt=[w for w in made[2] if w != "labels"])
        for name, made in WRITERS.items()
    ),
]
