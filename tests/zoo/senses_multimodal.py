"""Architectures that bring pictures, layouts or films together with text, without writing any."""

from __future__ import annotations

from tests.zoo.senses_tools import (
    BERT,
    IMAGE,
    RESNET,
    TEXT,
    TINY,
    VIT,
    Table,
    fixed,
    floats,
    ids,
    labels,
    ones,
    plain,
    shares,
    specimens,
)
from tests.zoo.specimen import Specimen

WORDS = TINY | {
    "vocab_size": 99,
    "max_position_embeddings": 32,
    "projection_dim": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
CLIP = {
    "text_config": WORDS,
    "vision_config": VIT | {"projection_dim": 16},
    "projection_dim": 16,
}
BOTH = TEXT | IMAGE
WIDE = TINY | {"hidden_size": 64}
OWL = CLIP | {"projection_dim": 32}
PAIRED = BOTH | {"return_loss": plain(True)}
BOX = fixed([[[10, 10, 40, 30]] * 7] * 2)
LAYOUT = BERT | {"max_2d_position_embeddings": 64, "coordinate_size": 6, "shape_size": 4}

PAIRS: Table = {
    "clip": ("CLIPModel", CLIP, PAIRED),
    "metaclip_2": ("MetaClip2Model", CLIP, PAIRED),
    "chinese_clip": ("ChineseCLIPModel", CLIP, PAIRED),
    "altclip": (
        "AltCLIPModel",
        CLIP | {"text_config": WORDS | {"project_dim": 16, "max_position_embeddings": 64}},
        PAIRED,
    ),
    "siglip": ("SiglipModel", CLIP, PAIRED),
    "siglip2": (
        "Siglip2Model",
        CLIP | {"vision_config": VIT | {"num_patches": 16, "patch_size": 8}},
        TEXT
        | {
            "pixel_values": floats(2, 16, 192),
            "pixel_attention_mask": ones(2, 16),
            "spatial_shapes": fixed([[4, 4], [2, 8]]),
            "return_loss": plain(True),
        },
    ),
    "aimv2": ("Aimv2Model", CLIP, BOTH),
    "blip": (
        "BlipForImageTextRetrieval",
        CLIP | {"text_config": WORDS | {"encoder_hidden_size": 32}, "image_text_hidden_size": 16},
        BOTH,
    ),
    "align": (
        "AlignModel",
        {
            "text_config": WORDS,
            "vision_config": {
                "image_size": 32,
                "width_coefficient": 0.25,
                "depth_coefficient": 1.0,
                "hidden_dim": 32,
                "kernel_sizes": [3, 3, 5],
                "in_channels": [32, 16, 24],
                "out_channels": [16, 24, 128],
                "strides": [1, 2, 2],
                "num_block_repeats": [1, 2, 1],
                "expand_ratios": [1, 6, 6],
            },
            "projection_dim": 32,
        },
        PAIRED,
    ),
    "clipseg": (
        "CLIPSegForImageSegmentation",
        CLIP
        | {
            "extract_layers": [0, 1],
            "reduce_dim": 16,
            "decoder_intermediate_size": 32,
        },
        BOTH | {"labels": shares(2, 32, 32)},
    ),
    "groupvit": (
        "GroupViTModel",
        {
            "text_config": WORDS,
            "vision_config": VIT
            | {
                "depths": [1, 1, 1],
                "num_hidden_layers": 3,
                "num_group_tokens": [8, 4, 0],
                "num_output_groups": [8, 4, 4],
            },
            "projection_dim": 16,
            "projection_intermediate_dim": 32,
        },
        PAIRED,
    ),
    "owlvit": ("OwlViTForObjectDetection", OWL, BOTH),
    "owlv2": ("Owlv2ForObjectDetection", OWL, BOTH),
    "xclip": (
        "XCLIPModel",
        {
            "text_config": WORDS,
            "vision_config": VIT
            | {
                "num_frames": 2,
                "mit_hidden_size": 16,
                "mit_intermediate_size": 32,
                "mit_num_attention_heads": 4,
            },
            "projection_dim": 16,
            "prompt_num_attention_heads": 4,
        },
        TEXT | {"pixel_values": floats(2, 2, 3, 32, 32), "return_loss": plain(True)},
    ),
    "vision-text-dual-encoder": (
        "VisionTextDualEncoderModel",
        {
            "vision_config": VIT | {"model_type": "vit"},
            "text_config": BERT,
            "projection_dim": 16,
        },
        PAIRED,
    ),
}

FUSED: Table = {
    "vilt": (
        "ViltForQuestionAnswering",
        BERT | VIT | {"model_type": "vilt"},
        BOTH | {"labels": shares(2, 2)},
    ),
    "flava": (
        "FlavaModel",
        {
            "image_config": VIT,
            "text_config": WORDS,
            "multimodal_config": TINY,
            "hidden_size": 32,
            "projection_dim": 16,
        },
        BOTH,
    ),
    "bridgetower": (
        "BridgeTowerForImageAndTextRetrieval",
        WIDE
        | {
            "text_config": WORDS | WIDE,
            "vision_config": VIT | WIDE | {"num_hidden_layers": 3},
        },
        BOTH | {"pixel_mask": ones(2, 32, 32), "labels": labels(2)},
    ),
    "lxmert": (
        "LxmertForQuestionAnswering",
        WORDS
        | {
            "l_layers": 1,
            "x_layers": 2,
            "r_layers": 1,
            "visual_feat_dim": 12,
            "num_qa_labels": 5,
        },
        TEXT
        | {
            "visual_feats": floats(2, 3, 12),
            "visual_pos": shares(2, 3, 4),
            "labels": labels(2, below=5),
        },
    ),
    "visual_bert": (
        "VisualBertForQuestionAnswering",
        BERT | {"model_type": "visual_bert", "visual_embedding_dim": 12},
        TEXT
        | {
            "visual_embeds": floats(2, 3, 12),
            "visual_attention_mask": ones(2, 3),
            "attention_mask": ones(2, 7),
        },
    ),
    "tvp": (
        "TvpForVideoGrounding",
        BERT
        | {
            "model_type": "tvp",
            "backbone_config": RESNET | {"hidden_sizes": [8, 16, 24, 32]},
            "num_frames": 2,
            "max_img_size": 64,
            "visual_prompt_size": 8,
            "max_grid_col_position_embeddings": 8,
            "max_grid_row_position_embeddings": 8,
        },
        # its column embeddings are shaped for one film at a time
        {
            "input_ids": ids(1, 7),
            "attention_mask": ones(1, 7),
            "pixel_values": floats(1, 2, 3, 64, 64),
        },
    ),
    "layoutlm": (
        "LayoutLMForTokenClassification",
        LAYOUT | {"model_type": "layoutlm"},
        TEXT | {"bbox": BOX, "labels": labels(2, 7)},
    ),
    "layoutlmv3": (
        "LayoutLMv3ForTokenClassification",
        LAYOUT
        | {
            "model_type": "layoutlmv3",
            "coordinate_size": 6,
            "shape_size": 4,
            "input_size": 32,
            "patch_size": 8,
            "rel_pos_bins": 8,
            "rel_2d_pos_bins": 8,
        },
        BOTH | {"bbox": BOX, "labels": labels(2, 7)},
    ),
    "lilt": (
        "LiltForTokenClassification",
        LAYOUT | {"model_type": "lilt", "hidden_size": 24, "channel_shrink_ratio": 2},
        TEXT | {"bbox": BOX, "labels": labels(2, 7)},
    ),
    "bros": (
        "BrosForTokenClassification",
        BERT | {"model_type": "bros", "hidden_size": 64},
        TEXT | {"bbox": shares(2, 7, 4), "labels": labels(2, 7)},
    ),
    "markuplm": (
        "MarkupLMForTokenClassification",
        BERT
        | {
            "model_type": "markuplm",
            "max_xpath_tag_unit_embeddings": 20,
            "max_xpath_subs_unit_embeddings": 20,
            "tag_pad_id": 18,
            "subs_pad_id": 18,
            "xpath_unit_hidden_size": 8,
            "max_depth": 4,
        },
        TEXT
        | {
            "xpath_tags_seq": labels(2, 7, 4, below=18),
            "xpath_subs_seq": labels(2, 7, 4, below=18),
            "labels": labels(2, 7),
        },
    ),
}

SPECIMENS: list[Specimen] = [
    *specimens("picture and text, two towers", PAIRS),
    *specimens("picture and text, fused", FUSED),
]
