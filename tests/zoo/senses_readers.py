"""Architectures that read pictures and write text about them."""

from __future__ import annotations

from tests.zoo.senses_tools import (
    IMAGE,
    LLAMA,
    TEXT,
    TINY,
    VIT,
    Drawn,
    Table,
    fixed,
    floats,
    ones,
    specimen,
    with_token,
)
from tests.zoo.specimen import Specimen

SEEN = 98
"""The token that stands for a piece of a picture."""
CLIP_VISION = VIT | {"model_type": "clip_vision_model"}
SIGLIP_VISION = VIT | {"model_type": "siglip_vision_model"}
LLAVA = {
    "vision_config": CLIP_VISION,
    "text_config": LLAMA,
    "image_token_index": SEEN,
    "image_token_id": SEEN,
}


def pictured(count: int, **more: Drawn) -> dict[str, Drawn]:
    """Two texts, each with one picture that stands for `count` tokens."""
    words = {"input_ids": with_token(count, token=SEEN), "attention_mask": ones(2, count + 5)}
    return words | IMAGE | more


READERS: Table = {
    "llava": ("LlavaForConditionalGeneration", LLAVA, pictured(16)),
    "vipllava": (
        "VipLlavaForConditionalGeneration",
        LLAVA | {"vision_feature_layer": [-1, -2]},
        pictured(16),
    ),
    "llava_next": (
        "LlavaNextForConditionalGeneration",
        LLAVA | {"image_grid_pinpoints": [[32, 32]]},
        pictured(36)
        | {"pixel_values": floats(2, 2, 3, 32, 32), "image_sizes": fixed([[32, 32]] * 2)},
    ),
    "llava_onevision": (
        "LlavaOnevisionForConditionalGeneration",
        LLAVA | {"vision_config": SIGLIP_VISION, "image_grid_pinpoints": [[32, 32]]},
        pictured(36)
        | {"pixel_values": floats(2, 2, 3, 32, 32), "image_sizes": fixed([[32, 32]] * 2)},
    ),
    "video_llava": (
        "VideoLlavaForConditionalGeneration",
        LLAVA | {"video_token_index": 97},
        {
            "input_ids": with_token(16, token=SEEN),
            "attention_mask": ones(2, 21),
            "pixel_values_images": floats(2, 3, 32, 32),
        },
    ),
    "paligemma": (
        "PaliGemmaForConditionalGeneration",
        LLAVA
        | {
            "vision_config": SIGLIP_VISION | {"projection_dim": 32},
            "text_config": LLAMA | {"model_type": "gemma"},
            "projection_dim": 32,
            "hidden_size": 32,
        },
        pictured(16),
    ),
    "gemma3": (
        "Gemma3ForConditionalGeneration",
        LLAVA
        | {
            "vision_config": SIGLIP_VISION | {"vision_use_head": False},
            "text_config": LLAMA | {"model_type": "gemma3_text", "sliding_window": 8},
            "mm_tokens_per_image": 4,
            "boi_token_index": 96,
            "eoi_token_index": 95,
        },
        pictured(4, token_type_ids=fixed([[0, *[1] * 4, *[0] * 4]] * 2)),
    ),
    "idefics": (
        "IdeficsForVisionText2Text",
        TINY
        | {
            "vocab_size": 99,
            "additional_vocab_size": 1,
            "use_resampler": True,
            "vision_config": VIT | {"embed_dim": 32},
            "perceiver_config": {
                "resampler_n_latents": 4,
                "resampler_depth": 1,
                "resampler_n_heads": 2,
                "resampler_head_dim": 8,
            },
            "pad_token_id": 0,
            "max_position_embeddings": 64,
        },
        TEXT
        | {
            "pixel_values": floats(2, 1, 3, 32, 32),
            "image_attention_mask": ones(2, 7, 1),
        },
    ),
    "idefics2": (
        "Idefics2ForConditionalGeneration",
        LLAVA
        | {
            "vision_config": VIT,
            "perceiver_config": {
                "hidden_size": 32,
                "resampler_n_latents": 4,
                "resampler_depth": 1,
                "resampler_n_heads": 4,
                "resampler_head_dim": 8,
                "num_key_value_heads": 2,
            },
            "text_config": LLAMA | {"model_type": "mistral"},
        },
        pictured(4) | {"pixel_values": floats(2, 1, 3, 32, 32)},
    ),
    "idefics3": (
        "Idefics3ForConditionalGeneration",
        LLAVA | {"vision_config": VIT, "scale_factor": 2},
        pictured(4) | {"pixel_values": floats(2, 1, 3, 32, 32)},
    ),
    "smolvlm": (
        "SmolVLMForConditionalGeneration",
        LLAVA | {"vision_config": VIT, "scale_factor": 2},
        pictured(4) | {"pixel_values": floats(2, 1, 3, 32, 32)},
    ),
    "internvl": (
        "InternVLForConditionalGeneration",
        LLAVA
        | {
            "vision_config": VIT | {"image_size": [32, 32], "patch_size": [8, 8]},
            "image_seq_length": 4,
        },
        pictured(4),
    ),
    "aya_vision": (
        "AyaVisionForConditionalGeneration",
        LLAVA | {"vision_config": SIGLIP_VISION, "text_config": LLAMA | {"model_type": "cohere"}},
        pictured(4),
    ),
    "mistral3": (
        "Mistral3ForConditionalGeneration",
        LLAVA | {"vision_config": VIT | {"model_type": "pixtral", "head_dim": 8}},
        pictured(4, image_sizes=fixed([[32, 32]] * 2)),
    ),
    "got_ocr2": (
        "GotOcr2ForConditionalGeneration",
        LLAVA
        | {
            "vision_config": VIT
            | {
                "output_channels": 8,
                "mlp_dim": 64,
                "window_size": 2,
                "global_attn_indexes": [1],
                "image_size": 128,
                "patch_size": 16,
            },
        },
        pictured(4) | {"pixel_values": floats(2, 3, 128, 128)},
    ),
}
SPECIMENS: list[Specimen] = [
    *(
        specimen(name, "picture to text", *made, prompt=[w for w in made[2] if w != "labels"])
        for name, made in READERS.items()
    ),
]
