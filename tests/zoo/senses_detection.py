"""Architectures that see a picture or a film and say what is where in it, or how far away."""

from __future__ import annotations

from typing import Any

from tests.zoo.senses_tools import (
    BERT,
    DETR,
    IMAGE,
    LARGER,
    RESNET,
    TEXT,
    TINY,
    VIT,
    Table,
    fixed,
    floats,
    labels,
    specimens,
)
from tests.zoo.specimen import Specimen

LEVELS = RESNET | {"out_features": ["stage2", "stage3", "stage4"]}
DEFORMABLE = DETR | {"backbone_config": LEVELS, "encoder_n_points": 2, "decoder_n_points": 2}
REAL_TIME = {
    "backbone_config": LEVELS,
    "encoder_hidden_dim": 32,
    "encoder_in_channels": [16, 24, 32],
    "encoder_ffn_dim": 32,
    "encoder_attention_heads": 4,
    "d_model": 32,
    "num_queries": 5,
    "num_denoising": 4,
    "decoder_in_channels": [32, 32, 32],
    "decoder_ffn_dim": 32,
    "decoder_layers": 2,
    "decoder_n_points": 2,
    "decoder_attention_heads": 4,
}
BOXES = [
    {"class_labels": [1, 0], "boxes": [[0.5, 0.5, 0.2, 0.4], [0.25, 0.6, 0.3, 0.2]]},
    {"class_labels": [1], "boxes": [[0.4, 0.4, 0.5, 0.3]]},
]


def boxed() -> Any:
    return [{word: fixed(values)() for word, values in one.items()} for one in BOXES]


BOXED = LARGER | {"labels": boxed}
SAM_VISION = TINY | {
    "output_channels": 16,
    "num_pos_feats": 8,
    "image_size": 32,
    "patch_size": 8,
    "global_attn_indexes": [1],
    "window_size": 2,
    "mlp_dim": 64,
}
SAM_DECODER = {
    "hidden_size": 16,
    "mlp_dim": 32,
    "num_attention_heads": 4,
    "iou_head_hidden_dim": 16,
}
SAM = {
    "vision_config": SAM_VISION,
    "prompt_encoder_config": {
        "hidden_size": 16,
        "image_size": 32,
        "patch_size": 8,
        "mask_input_channels": 4,
    },
    "mask_decoder_config": SAM_DECODER,
}
POINTS = IMAGE | {
    "input_points": fixed([[[[4.0, 9.0], [20.0, 7.0]]]] * 2),
    "input_labels": fixed([[[1, 0]]] * 2),
}
FILM = VIT | {"num_frames": 4, "tubelet_size": 2}
FRAMES = {"pixel_values": floats(2, 4, 3, 32, 32)}

DETECTORS: Table = {
    "yolos": (
        "YolosForObjectDetection",
        VIT | {"image_size": [64, 64], "num_detection_tokens": 5},
        BOXED,
    ),
    "detr": ("DetrForObjectDetection", DETR, BOXED),
    "table-transformer": ("TableTransformerForObjectDetection", DETR, BOXED),
    "conditional_detr": ("ConditionalDetrForObjectDetection", DETR, BOXED),
    "deformable_detr": (
        "DeformableDetrForObjectDetection",
        DEFORMABLE | {"num_feature_levels": 3, "with_box_refine": True},
        BOXED,
    ),
    "dab-detr": ("DabDetrForObjectDetection", DETR | {"hidden_size": 32}, BOXED),
    "rt_detr": ("RTDetrForObjectDetection", REAL_TIME, BOXED),
    "rt_detr_v2": ("RTDetrV2ForObjectDetection", REAL_TIME, BOXED),
    "d_fine": (
        "DFineForObjectDetection",
        REAL_TIME | {"decoder_n_points": [2, 2, 2], "lqe_hidden_dim": 8, "max_num_bins": 8},
        BOXED,
    ),
    "grounding-dino": (
        "GroundingDinoForObjectDetection",
        DEFORMABLE | {"num_feature_levels": 3, "text_config": BERT, "max_text_len": 16},
        LARGER | TEXT,
    ),
    "mm-grounding-dino": (
        "MMGroundingDinoForObjectDetection",
        DEFORMABLE | {"num_feature_levels": 3, "text_config": BERT, "max_text_len": 16},
        LARGER | TEXT,
    ),
    "sam": ("SamModel", SAM, POINTS),
    "sam_hq": (
        "SamHQModel",
        SAM | {"mask_decoder_config": SAM_DECODER | {"vit_dim": 32}},
        POINTS,
    ),
}

FILMS: Table = {
    "videomae": ("VideoMAEForVideoClassification", FILM, FRAMES | {"labels": labels(2)}),
    "vivit": (
        "VivitForVideoClassification",
        FILM | {"tubelet_size": [2, 8, 8]},
        FRAMES | {"labels": labels(2)},
    ),
    "timesformer": ("TimesformerForVideoClassification", FILM, FRAMES | {"labels": labels(2)}),
    "vjepa2": (
        "VJEPA2ForVideoClassification",
        TINY
        | {
            "patch_size": 8,
            "crop_size": 32,
            "frames_per_clip": 4,
            "mlp_ratio": 2,
            "num_pooler_layers": 1,
            "pred_hidden_size": 32,
            "pred_num_attention_heads": 4,
            "pred_num_hidden_layers": 1,
            "pred_mlp_ratio": 2,
        },
        {"pixel_values_videos": floats(2, 4, 3, 32, 32), "labels": labels(2)},
    ),
}

SPECIMENS: list[Specimen] = [
    *specimens("detector", DETECTORS),
    *specimens("film", FILMS),
]
