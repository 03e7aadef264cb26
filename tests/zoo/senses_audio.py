"""Architectures that hear: waves and spectrograms to words, codes or classes, and back to sound."""

from __future__ import annotations

import torch

from tests.zoo.senses_tools import (
    TEXT,
    TINY,
    Table,
    floats,
    ids,
    labels,
    ones,
    plain,
    specimens,
)
from tests.zoo.specimen import Specimen

WAVE = {"input_values": floats(2, 800)}
# numpy's generator, which is not seeded with torch's, draws the masks of SpecAugment and, in
# some classes, which layers are dropped
SEEDED = {"apply_spec_augment": False}
NO_DROP = {"layerdrop": 0.0}
ONE_KIND = {"vocab_size": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
CONVOLVED = (
    TINY
    | SEEDED
    | {
        "conv_dim": [16, 16, 16],
        "conv_stride": [5, 2, 2],
        "conv_kernel": [10, 3, 3],
        "num_feat_extract_layers": 3,
        "num_conv_pos_embeddings": 8,
        "num_conv_pos_embedding_groups": 2,
        "classifier_proj_size": 16,
        "tdnn_dim": [16, 16, 24],
        "tdnn_kernel": [5, 3, 1],
        "tdnn_dilation": [1, 2, 1],
        "xvector_output_dim": 16,
        "num_codevectors_per_group": 8,
        "codevector_dim": 16,
        "proj_codevector_dim": 16,
        "num_negatives": 5,
    }
)
CONFORMER = {"conv_depthwise_kernel_size": 5, "max_source_positions": 256}
TRANSCRIBED = WAVE | {"labels": labels(2, 5, below=30)}
CLASSED = WAVE | {"labels": labels(2)}
CODEC = {
    "num_filters": 4,
    "upsampling_ratios": [4, 2],
    "codebook_size": 16,
    "codebook_dim": 16,
    "hidden_size": 16,
}

HEARERS: Table = {
    "wav2vec2": (
        "Wav2Vec2ForPreTraining",
        CONVOLVED,
        WAVE
        | {
            "mask_time_indices": ones(2, 39, dtype=torch.bool),
            "sampled_negative_indices": labels(2, 39, 5, below=39),
        },
    ),
    "wav2vec2-bert": (
        "Wav2Vec2BertForCTC",
        CONVOLVED
        | CONFORMER
        | ONE_KIND
        | NO_DROP
        | {"feature_projection_input_dim": 16, "add_adapter": True, "output_hidden_size": 32},
        {"input_features": floats(2, 40, 16), "labels": labels(2, 5, below=30)},
    ),
    "wav2vec2-conformer": (
        "Wav2Vec2ConformerForCTC",
        CONVOLVED | CONFORMER | ONE_KIND,
        TRANSCRIBED,
    ),
    "hubert": ("HubertForCTC", CONVOLVED | {"conv_pos_batch_norm": True}, TRANSCRIBED),
    "wavlm": ("WavLMForXVector", CONVOLVED | {"num_buckets": 16}, CLASSED),
    "unispeech": (
        "UniSpeechForPreTraining",
        CONVOLVED | {"num_ctc_classes": 16},
        WAVE,
    ),
    "unispeech-sat": ("UniSpeechSatForAudioFrameClassification", CONVOLVED, WAVE),
    "data2vec-audio": (
        "Data2VecAudioForCTC",
        CONVOLVED | NO_DROP | {"add_adapter": True},
        TRANSCRIBED,
    ),
    "sew": ("SEWForCTC", CONVOLVED, TRANSCRIBED),
    "sew-d": (
        "SEWDForSequenceClassification",
        CONVOLVED | {"position_buckets": 8, "max_position_embeddings": 64},
        CLASSED,
    ),
    "audio-spectrogram-transformer": (
        "ASTForAudioClassification",
        TINY | {"max_length": 24, "num_mel_bins": 16, "patch_size": 4},
        {"input_values": floats(2, 24, 16), "labels": labels(2)},
    ),
    "clap": (
        "ClapModel",
        {
            "text_config": TINY | {"vocab_size": 99, "max_position_embeddings": 32},
            "audio_config": {
                "window_size": 4,
                "num_mel_bins": 16,
                "spec_size": 64,
                "hidden_size": 32,
                "patch_size": 4,
                "depths": [1, 1],
                "num_attention_heads": [2, 2],
                "patch_embeds_hidden_size": 16,
                "num_hidden_layers": 2,
            },
            "projection_dim": 16,
        },
        TEXT | {"input_features": floats(2, 1, 256, 16), "return_loss": plain(True)},
    ),
}

CODECS: Table = {
    "encodec": (
        "EncodecModel",
        CODEC | {"target_bandwidths": [16.0], "num_lstm_layers": 1, "sampling_rate": 4000},
        {"input_values": floats(2, 1, 256)},
    ),
    "dac": (
        "DacModel",
        {
            "encoder_hidden_size": 8,
            "decoder_hidden_size": 32,
            "downsampling_ratios": [2, 4],
            "upsampling_ratios": [4, 2],
            "n_codebooks": 2,
            "codebook_size": 16,
        },
        {"input_values": floats(2, 1, 256)},
    ),
    "mimi": (
        "MimiModel",
        CODEC
        | TINY
        | {
            "hidden_size": 32,
            "num_key_value_heads": 4,
            "num_quantizers": 4,
            "vector_quantization_hidden_dimension": 16,
            "upsample_groups": 32,
            "max_position_embeddings": 64,
            "sliding_window": 8,
            "frame_rate": 1500,
        },
        {"input_values": floats(2, 1, 256)},
    ),
    "vits": (
        "VitsModel",
        NO_DROP
        | {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "ffn_dim": 64,
            "flow_size": 16,
            "spectrogram_bins": 9,
            "upsample_initial_channel": 16,
            "upsample_rates": [4, 2],
            "upsample_kernel_sizes": [8, 4],
            "resblock_kernel_sizes": [3],
            "resblock_dilation_sizes": [[1, 3]],
            "duration_predictor_filter_channels": 16,
            "duration_predictor_num_flows": 2,
            "prior_encoder_num_flows": 2,
            "prior_encoder_num_wavenet_layers": 2,
            "posterior_encoder_num_wavenet_layers": 2,
        },
        {"input_ids": ids(2, 7, below=38)},
    ),
    "univnet": (
        "UnivNetModel",
        {
            "model_in_channels": 8,
            "model_hidden_channels": 8,
            "num_mel_bins": 16,
            "resblock_kernel_sizes": [3, 3],
            "resblock_stride_sizes": [4, 4],
            "resblock_dilation_sizes": [[1, 3], [1, 3]],
            "kernel_predictor_hidden_channels": 8,
        },
        {"input_features": floats(2, 7, 16), "noise_sequence": floats(2, 7, 8)},
    ),
    "fastspeech2_conformer": (
        "FastSpeech2ConformerModel",
        {
            "hidden_size": 32,
            "num_mel_bins": 8,
            "encoder_layers": 1,
            "encoder_linear_units": 32,
            "decoder_layers": 1,
            "decoder_linear_units": 32,
            "decoder_kernel_size": 7,
            "speech_decoder_postnet_layers": 2,
            "speech_decoder_postnet_units": 16,
            "duration_predictor_channels": 16,
            "energy_predictor_channels": 16,
            "pitch_predictor_channels": 16,
            "pitch_predictor_layers": 2,
        },
        {
            "input_ids": ids(2, 7, below=70),
            "duration_labels": ones(2, 7),
            "pitch_labels": floats(2, 7, 1),
            "energy_labels": floats(2, 7, 1),
            "spectrogram_labels": floats(2, 7, 8),
        },
    ),
    "speecht5_hifigan": (
        "SpeechT5HifiGan",
        {
            "model_in_dim": 16,
            "upsample_initial_channel": 16,
            "upsample_rates": [4, 2],
            "upsample_kernel_sizes": [8, 4],
            "resblock_kernel_sizes": [3],
            "resblock_dilation_sizes": [[1, 3]],
        },
        {"spectrogram": floats(2, 7, 16)},
    ),
}

SPECIMENS: list[Specimen] = [
    *specimens("speech encoder", HEARERS),
    *specimens("sound codec and vocoder", CODECS),
]
