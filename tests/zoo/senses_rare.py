"""Architectures that do what few others do: quantise pictures, fold proteins, match points."""

from __future__ import annotations

from tests.zoo.senses_tools import (
    LARGER,
    LLAMA,
    TINY,
    VIT,
    Table,
    fixed,
    floats,
    ids,
    labels,
    ones,
    plain,
    specimen,
    with_token,
)
from tests.zoo.specimen import Specimen

DECODER = LLAMA | {"num_codebooks": 6, "backbone_hidden_size": 24}
POINTS = {
    "encoder_hidden_sizes": [8, 8, 16, 16],
    "decoder_hidden_size": 16,
    "descriptor_decoder_dim": 32,
    "max_keypoints": 12,
    "keypoint_threshold": 0.0,
    "border_removal_distance": 1,
    "nms_radius": 1,
}
VQ = {
    "embed_dim": 8,
    "num_embeddings": 16,
    "latent_channels": 8,
    "base_channels": 32,
    "channel_multiplier": [1, 1],
    "num_res_blocks": 1,
    "resolution": 16,
    "attn_resolutions": [8],
}
FOLDED = {
    "trunk": {
        "num_blocks": 1,
        "sequence_state_dim": 32,
        "pairwise_state_dim": 16,
        "sequence_head_width": 8,
        "pairwise_head_width": 8,
        "position_bins": 4,
        "max_recycles": 1,
        "chunk_size": None,
        "structure_module": {
            "sequence_dim": 32,
            "pairwise_dim": 16,
            "ipa_dim": 4,
            "resnet_dim": 8,
            "num_heads_ipa": 2,
            "num_qk_points": 2,
            "num_v_points": 2,
            "num_blocks": 1,
        },
    },
    "lddt_head_hid_dim": 8,
    "fp16_esm": False,
}


def _code(number: int) -> str:
    """Name a code of pictures as its vocabulary does: digits as letters."""
    return "IMGIMG" + "".join("ABCDEFGHIJ"[int(digit)] for digit in str(number)) + "Z"


RARE: Table = {
    "bark-fine": (
        "BarkFineModel",
        {
            "block_size": 32,
            "input_vocab_size": 40,
            "output_vocab_size": 40,
            "num_layers": 2,
            "num_heads": 4,
            "hidden_size": 32,
            "n_codes_total": 3,
        },
        {"codebook_idx": plain(2), "input_ids": ids(2, 7, 3, below=40)},
    ),
    "csm_depth_decoder": (
        "CsmDepthDecoderForCausalLM",
        DECODER | {"model_type": "csm_depth_decoder_model"},
        {"input_ids": ids(2, 3), "backbone_last_hidden_state": floats(2, 24)},
    ),
    "esmfold": (
        "EsmForProteinFolding",
        TINY
        | {
            "vocab_size": 33,
            "max_position_embeddings": 32,
            "position_embedding_type": "rotary",
            "pad_token_id": 1,
            "mask_token_id": 32,
            "is_folding_model": True,
            "esmfold_config": FOLDED,
            "vocab_list": [
                *["<cls>", "<pad>", "<eos>", "<unk>"],
                *"LAGVSERTIDPKQNFYMHWCXBUZO.-",
                "<null_1>",
                "<mask>",
            ],
        },
        {"input_ids": labels(1, 6, below=20), "attention_mask": ones(1, 6)},
    ),
    "superglue": (
        "SuperGlueForKeypointMatching",
        {
            "keypoint_detector_config": POINTS | {"model_type": "superpoint"},
            "hidden_size": 32,
            "keypoint_encoder_sizes": [8, 16],
            "gnn_layers_types": ["self", "cross"],
            "sinkhorn_iterations": 3,
        },
        {"pixel_values": floats(1, 2, 3, 32, 32)},
    ),
    "lightglue": (
        "LightGlueForKeypointMatching",
        {
            "keypoint_detector_config": POINTS | {"model_type": "superpoint"},
            "descriptor_dim": 32,
            "num_hidden_layers": 2,
        },
        {"pixel_values": floats(1, 2, 3, 32, 32)},
    ),
    "sam2": (
        "Sam2Model",
        {
            "vision_config": {
                "backbone_config": {
                    "model_type": "sam2_hiera_det_model",
                    "hidden_size": 8,
                    "image_size": [64, 64],
                    "blocks_per_stage": [1, 2, 1, 1],
                    "embed_dim_per_stage": [8, 16, 24, 32],
                    "num_attention_heads_per_stage": [1, 1, 2, 2],
                    "window_size_per_stage": [8, 4, 4, 2],
                    "global_attention_blocks": [2],
                    "window_positional_embedding_background_size": [4, 4],
                },
                "backbone_channel_list": [32, 24, 16, 8],
                "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
                "fpn_hidden_size": 32,
            },
            "prompt_encoder_config": {
                "hidden_size": 32,
                "image_size": 64,
                "patch_size": 16,
                "mask_input_channels": 4,
            },
            "mask_decoder_config": {
                "hidden_size": 32,
                "mlp_dim": 32,
                "num_attention_heads": 4,
                "iou_head_hidden_dim": 16,
            },
        },
        {
            "pixel_values": floats(1, 3, 64, 64),
            "input_points": fixed([[[[4.0, 9.0], [20.0, 7.0]]]]),
            "input_labels": fixed([[[1, 0]]]),
        },
    ),
    "lw_detr": (
        "LwDetrForObjectDetection",
        {
            "backbone_config": VIT
            | {
                "model_type": "lw_detr_vit",
                "image_size": 64,
                "pretrain_image_size": 64,
                "mlp_ratio": 2,
                "num_windows": 4,
                "window_block_indices": [0],
                "out_indices": [1, 2],
            },
            "projector_scale_factors": [1.0],
            "c2f_num_blocks": 1,
            "d_model": 32,
            "decoder_ffn_dim": 32,
            "decoder_layers": 2,
            "decoder_n_points": 2,
            "decoder_self_attention_heads": 4,
            "decoder_cross_attention_heads": 4,
            "num_queries": 5,
            "group_detr": 2,
        },
        LARGER,
    ),
    "chameleon": (
        "ChameleonForConditionalGeneration",
        LLAMA
        | {
            "model_type": "chameleon",
            "vq_config": VQ,
            "vocabulary_map": {"<image>": 98} | {_code(n): 50 + n for n in range(16)},
        },
        {"input_ids": with_token(64, token=98), "pixel_values": floats(2, 3, 16, 16)},
    ),
}
PROMPTS = {
    "csm_depth_decoder": ["input_ids", "backbone_last_hidden_state"],
    "chameleon": ["input_ids", "pixel_values"],
}

SPECIMENS: list[Specimen] = [
    specimen(name, "rare", *made, prompt=PROMPTS.get(name, [])) for name, made in RARE.items()
]
