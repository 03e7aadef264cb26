"""Architectures that see a picture and answer with one: masks, depths, poses, a finer picture."""

from __future__ import annotations

from tests.zoo.senses_tools import (
    DETR,
    IMAGE,
    LARGER,
    RESNET,
    SWIN,
    TINY,
    VIT,
    Table,
    fixed,
    floats,
    ids,
    labels,
    shares,
    specimens,
)
from tests.zoo.specimen import Specimen

PIXELS = IMAGE | {"labels": labels(2, 32, 32)}
DEPTH = IMAGE | {"labels": shares(2, 32, 32)}
DINO = VIT | {
    "model_type": "dinov2",
    "mlp_ratio": 2,
    "num_hidden_layers": 4,
    "out_indices": [1, 2, 3, 4],
    "reshape_hidden_states": False,
}
SEGFORMER = {
    "hidden_sizes": [8, 16, 24, 32],
    "depths": [1, 1, 1, 1],
    "num_attention_heads": [1, 2, 2, 4],
    "mlp_ratios": [2, 2, 2, 2],
    "decoder_hidden_size": 16,
}
REASSEMBLED = {
    "neck_hidden_sizes": [8, 8, 16, 16],
    "fusion_hidden_size": 16,
    "reassemble_hidden_size": 32,
}

DENSE: Table = {
    "segformer": ("SegformerForSemanticSegmentation", SEGFORMER, PIXELS),
    "glpn": ("GLPNForDepthEstimation", SEGFORMER, DEPTH),
    "dpt": (
        "DPTForDepthEstimation",
        VIT | {"backbone_out_indices": [0, 1, 2, 3], "num_hidden_layers": 4} | REASSEMBLED,
        IMAGE,
    ),
    "upernet": (
        "UperNetForSemanticSegmentation",
        {
            "backbone_config": RESNET | {"out_features": ["stage1", "stage2", "stage3", "stage4"]},
            "hidden_size": 16,
            "auxiliary_in_channels": 24,
            "auxiliary_channels": 16,
        },
        LARGER | {"labels": labels(2, 64, 64)},
    ),
    "depth_anything": (
        "DepthAnythingForDepthEstimation",
        REASSEMBLED | {"backbone_config": DINO, "patch_size": 8, "head_hidden_size": 8},
        IMAGE,
    ),
    "prompt_depth_anything": (
        "PromptDepthAnythingForDepthEstimation",
        REASSEMBLED | {"backbone_config": DINO, "patch_size": 8, "head_hidden_size": 8},
        IMAGE | {"prompt_depth": shares(2, 1, 16, 16)},
    ),
    "zoedepth": (
        "ZoeDepthForDepthEstimation",
        REASSEMBLED
        | {
            "backbone_config": VIT
            | {
                "model_type": "beit",
                "num_hidden_layers": 4,
                "out_indices": [1, 2, 3, 4],
                "reshape_hidden_states": False,
            },
            "bottleneck_features": 16,
            "num_attractors": [4, 2, 1, 1],
            "bin_embedding_dim": 8,
            "num_relative_features": 8,
            "bin_configurations": [{"n_bins": 8, "min_depth": 0.1, "max_depth": 10.0, "name": "a"}],
        },
        IMAGE,
    ),
    "swin2sr": (
        "Swin2SRForImageSuperResolution",
        {"image_size": 16, "embed_dim": 16, "depths": [2], "num_heads": [2], "window_size": 4},
        {"pixel_values": floats(1, 3, 16, 16)},
    ),
    "vitmatte": (
        "VitMatteForImageMatting",
        {
            "backbone_config": VIT
            | {
                "model_type": "vitdet",
                "num_channels": 4,
                "pretrain_image_size": 32,
                "patch_size": 16,
                "mlp_ratio": 2,
                "use_relative_position_embeddings": True,
                "window_size": 1,
                "window_block_indices": [0],
                "residual_block_indices": [1],
                "out_features": ["stage2"],
            },
            "hidden_size": 32,
            "convstream_hidden_sizes": [8, 8, 16],
            "fusion_hidden_sizes": [16, 8, 8, 4],
        },
        {"pixel_values": floats(2, 4, 32, 32)},
    ),
    "vitpose": (
        "VitPoseForPoseEstimation",
        {
            "backbone_config": VIT
            | {
                "model_type": "vitpose_backbone",
                "image_size": [32, 32],
                "patch_size": [8, 8],
                "mlp_ratio": 2,
                "num_experts": 2,
                "part_features": 8,
                "out_indices": [2],
            },
            "num_labels": 5,
        },
        IMAGE | {"dataset_index": fixed([0, 1])},
    ),
    "seggpt": (
        "SegGptForImageSegmentation",
        TINY
        | {
            "image_size": [32, 16],
            "pretrain_image_size": 16,
            "patch_size": 8,
            "mlp_dim": 64,
            "merge_index": 0,
            "intermediate_hidden_state_indices": [0, 1],
            "decoder_hidden_size": 8,
        },
        {
            "pixel_values": floats(2, 3, 16, 16),
            "prompt_pixel_values": floats(2, 3, 16, 16),
            "prompt_masks": floats(2, 3, 16, 16),
        },
    ),
    "maskformer": (
        "MaskFormerForInstanceSegmentation",
        {
            "backbone_config": SWIN,
            "decoder_config": DETR | {"model_type": "detr"},
            "fpn_feature_size": 32,
            "mask_feature_size": 32,
        },
        LARGER,
    ),
    "mask2former": (
        "Mask2FormerForUniversalSegmentation",
        {
            "backbone_config": SWIN,
            "feature_size": 32,
            "mask_feature_size": 32,
            "hidden_dim": 32,
            "encoder_feedforward_dim": 32,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "num_attention_heads": 4,
            "dim_feedforward": 32,
            "num_queries": 5,
        },
        LARGER,
    ),
    "oneformer": (
        "OneFormerForUniversalSegmentation",
        {
            "backbone_config": SWIN,
            "num_queries": 5,
            "conv_dim": 32,
            "mask_dim": 32,
            "hidden_dim": 32,
            "encoder_feedforward_dim": 32,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "num_attention_heads": 4,
            "dim_feedforward": 32,
            "task_seq_len": 7,
            "text_encoder_width": 32,
            "text_encoder_context_length": 7,
            "text_encoder_num_layers": 1,
            "text_encoder_vocab_size": 99,
            "text_encoder_n_ctx": 2,
        },
        LARGER | {"task_inputs": ids(2, 7)},
    ),
    "eomt": (
        "EomtForUniversalSegmentation",
        VIT | {"num_queries": 5, "num_blocks": 1, "mlp_ratio": 2, "num_upscale_blocks": 1},
        IMAGE,
    ),
    "superpoint": (
        "SuperPointForKeypointDetection",
        {
            "encoder_hidden_sizes": [8, 8, 16, 16],
            "decoder_hidden_size": 16,
            "descriptor_decoder_dim": 16,
        },
        IMAGE,
    ),
    "efficientloftr": (
        "EfficientLoFTRForKeypointMatching",
        {
            "stage_num_blocks": [1, 1, 1],
            "out_features": [32, 32, 32],
            "stage_stride": [2, 1, 2],
            "hidden_size": 32,
            "num_attention_layers": 1,
            "num_attention_heads": 8,
            "q_aggregation_kernel_size": 1,
            "kv_aggregation_kernel_size": 1,
            "q_aggregation_stride": 1,
            "kv_aggregation_stride": 1,
        },
        {"pixel_values": floats(1, 2, 3, 32, 32)},
    ),
}

SPECIMENS: list[Specimen] = specimens("dense vision", DENSE)
