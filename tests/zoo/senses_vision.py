"""Architectures that see one picture and say what it is."""

from __future__ import annotations

from tests.zoo.senses_tools import (
    IMAGE,
    VIT,
    Table,
    fixed,
    floats,
    ids,
    labels,
    specimen,
    specimens,
)
from tests.zoo.specimen import Specimen

CLASSED = IMAGE | {"labels": labels(2)}
SWIN = {
    "image_size": 32,
    "patch_size": 4,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 2,
    "encoder_stride": 8,
}
STAGES = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
RESNET = STAGES | {"embedding_size": 8}
SEGFORMER = STAGES | {
    "num_attention_heads": [1, 2, 2, 4],
    "mlp_ratios": [2, 2, 2, 2],
    "sr_ratios": [4, 2, 1, 1],
    "decoder_hidden_size": 16,
}
DINO = VIT | {"mlp_ratio": 2}

TRANSFORMERS: Table = {
    "vit": ("ViTForImageClassification", VIT, CLASSED),
    "deit": ("DeiTForImageClassificationWithTeacher", VIT, IMAGE),
    "beit": (
        "BeitForImageClassification",
        VIT | {"use_relative_position_bias": True, "use_mask_token": True},
        CLASSED,
    ),
    "data2vec-vision": (
        "Data2VecVisionForImageClassification",
        VIT | {"use_shared_relative_position_bias": True},
        CLASSED,
    ),
    "dinov2": ("Dinov2ForImageClassification", DINO | {"use_swiglu_ffn": True}, CLASSED),
    "dinov2_with_registers": ("Dinov2WithRegistersForImageClassification", DINO, CLASSED),
    "dinov3_vit": ("DINOv3ViTModel", VIT | {"num_register_tokens": 2}, IMAGE),
    "ijepa": ("IJepaForImageClassification", VIT, CLASSED),
    "vit_msn": ("ViTMSNForImageClassification", VIT, CLASSED),
    "vit_mae": (
        "ViTMAEForPreTraining",
        VIT
        | {
            "decoder_hidden_size": 16,
            "decoder_num_hidden_layers": 1,
            "decoder_num_attention_heads": 2,
            "decoder_intermediate_size": 32,
        },
        IMAGE,
    ),
    "swin": ("SwinForImageClassification", SWIN, CLASSED),
    "swinv2": ("Swinv2ForImageClassification", SWIN, CLASSED),
    "donut-swin": ("DonutSwinModel", SWIN, IMAGE),
    "maskformer-swin": ("MaskFormerSwinModel", SWIN, IMAGE),
    "cvt": (
        "CvtForImageClassification",
        {"embed_dim": [8, 16, 32], "num_heads": [1, 2, 4], "depth": [1, 2, 3]},
        CLASSED,
    ),
    "levit": (
        "LevitForImageClassificationWithTeacher",
        {
            "image_size": 64,
            "hidden_sizes": [16, 24, 32],
            "num_attention_heads": [2, 2, 4],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
        },
        {"pixel_values": floats(2, 3, 64, 64)},
    ),
    "pvt": (
        "PvtForImageClassification",
        SEGFORMER | {"image_size": 32, "num_labels": 2, "sequence_reduction_ratios": [4, 2, 1, 1]},
        CLASSED,
    ),
    "pvt_v2": ("PvtV2ForImageClassification", SEGFORMER | {"image_size": 32}, CLASSED),
    "hiera": (
        "HieraForImageClassification",
        {
            "embed_dim": 8,
            "image_size": [32, 32],
            "patch_size": [3, 3],
            "patch_stride": [2, 2],
            "patch_padding": [1, 1],
            "masked_unit_size": [4, 4],
            "depths": [1, 1, 1],
            "num_heads": [1, 2, 4],
            "num_query_pool": 2,
            "masked_unit_attention": [True, True, False],
        },
        CLASSED,
    ),
    "focalnet": (
        "FocalNetForImageClassification",
        {
            "image_size": 32,
            "embed_dim": 8,
            "hidden_sizes": [16, 32],
            "depths": [1, 1],
            "focal_levels": [2, 2],
            "focal_windows": [3, 3],
            "use_layerscale": True,
        },
        CLASSED,
    ),
    "swiftformer": (
        "SwiftFormerForImageClassification",
        {
            "image_size": 64,
            "embed_dims": [8, 16, 24, 32],
            "depths": [1, 1, 1, 1],
            "mlp_ratio": 2,
        },
        {"pixel_values": floats(2, 3, 64, 64), "labels": labels(2)},
    ),
    "poolformer": ("PoolFormerForImageClassification", STAGES, CLASSED),
    "mobilevit": (
        "MobileViTForImageClassification",
        {
            "image_size": 64,
            "hidden_sizes": [16, 24, 32],
            "neck_hidden_sizes": [4, 4, 8, 8, 16, 16, 32],
            "num_attention_heads": 2,
        },
        {"pixel_values": floats(2, 3, 64, 64), "labels": labels(2)},
    ),
    "mobilevitv2": (
        "MobileViTV2ForImageClassification",
        {
            "image_size": 64,
            "base_attn_unit_dims": [16, 16, 16],
            "n_attn_blocks": [1, 1, 1],
            "width_multiplier": 0.25,
        },
        {"pixel_values": floats(2, 3, 64, 64), "labels": labels(2)},
    ),
    "mgp-str": (
        "MgpstrForSceneTextRecognition",
        VIT
        | {
            "image_size": [32, 32],
            "max_token_length": 5,
            "num_bpe_labels": 50,
            "num_wordpiece_labels": 60,
        },
        IMAGE,
    ),
    "siglip_vision_model": ("SiglipVisionModel", VIT, IMAGE),
    "aimv2_vision_model": ("Aimv2VisionModel", VIT, IMAGE),
    "mlcd_vision_model": ("MLCDVisionModel", VIT, IMAGE),
    "pixtral": (
        "PixtralVisionModel",
        VIT,
        IMAGE | {"image_sizes": fixed([[32, 32], [32, 24]])},
    ),
    "pixio": ("PixioModel", DINO | {"n_cls_tokens": 2}, IMAGE),
}

CONVOLUTIONS: Table = {
    "resnet": ("ResNetForImageClassification", RESNET, CLASSED),
    "regnet": ("RegNetForImageClassification", RESNET | {"groups_width": 8}, CLASSED),
    "bit": ("BitForImageClassification", RESNET | {"num_groups": 2}, CLASSED),
    "convnext": ("ConvNextForImageClassification", STAGES, CLASSED),
    "convnextv2": ("ConvNextV2ForImageClassification", STAGES, CLASSED),
    "dinov3_convnext": ("DINOv3ConvNextModel", STAGES, IMAGE),
    "mobilenet_v1": ("MobileNetV1ForImageClassification", {"depth_multiplier": 0.25}, CLASSED),
    "mobilenet_v2": ("MobileNetV2ForImageClassification", {"depth_multiplier": 0.25}, CLASSED),
    "efficientnet": (
        "EfficientNetForImageClassification",
        {
            "image_size": 32,
            "width_coefficient": 0.25,
            "depth_coefficient": 1.0,
            "hidden_dim": 320,
            "kernel_sizes": [3, 3, 5],
            "in_channels": [32, 16, 24],
            "out_channels": [16, 24, 320],
            "strides": [1, 2, 2],
            "num_block_repeats": [1, 2, 1],
            "expand_ratios": [1, 6, 6],
        },
        CLASSED,
    ),
    "hgnet_v2": (
        "HGNetV2ForImageClassification",
        RESNET
        | {
            "stem_channels": [3, 8, 8],
            "stage_in_channels": [8, 8, 16, 24],
            "stage_mid_channels": [4, 8, 8, 8],
            "stage_out_channels": [8, 16, 24, 32],
            "stage_num_blocks": [1, 1, 2, 1],
            "stage_numb_of_layers": [2, 2, 2, 2],
        },
        CLASSED,
    ),
    "textnet": (
        "TextNetForImageClassification",
        {
            "image_size": [32, 32],
            "stem_out_channels": 8,
            "hidden_sizes": [8, 8, 16, 24, 32],
            "conv_layer_kernel_sizes": [[[3, 3]], [[3, 3]], [[3, 1]], [[1, 3]]],
            "conv_layer_strides": [[1], [2], [2], [1]],
        },
        CLASSED,
    ),
}

SPECIMENS: list[Specimen] = [
    *specimens("vision transformer", TRANSFORMERS),
    *specimens("vision, convolutions", CONVOLUTIONS),
    specimen(
        "imagegpt",
        "vision decoder",
        "ImageGPTForCausalImageModeling",
        {"vocab_size": 99, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4},
        {"input_ids": ids(2, 9), "labels": ids(2, 9)},
        prompt=["input_ids"],
    ),
]
