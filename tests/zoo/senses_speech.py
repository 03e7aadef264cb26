"""Architectures that answer to sound with words, or write sound token by token."""

from __future__ import annotations

from tests.zoo.senses_audio import CONVOLVED, ONE_KIND, WAVE
from tests.zoo.senses_tools import (
    LLAMA,
    THREE_TOKENS,
    TINY,
    Table,
    floats,
    ids,
    labels,
    ones,
    specimen,
    with_token,
)
from tests.zoo.specimen import Specimen

SPECTRA = {"input_features": floats(2, 16, 60)}
AFTER = {"decoder_start_token_id": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TWO_SIDED = AFTER | {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}
WHISPER = TWO_SIDED | {
    "num_mel_bins": 16,
    "max_source_positions": 30,
    "max_target_positions": 32,
    "begin_suppress_tokens": None,
}

SEAMLESS = TWO_SIDED | {
    "hidden_size": 32,
    "t2u_vocab_size": 40,
    "max_position_embeddings": 64,
    "speech_encoder_layers": 2,
    "speech_encoder_attention_heads": 4,
    "speech_encoder_intermediate_size": 64,
    "feature_projection_input_dim": 16,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "adaptor_kernel_size": 4,
    "adaptor_stride": 4,
    "max_source_positions": 64,
    "conv_depthwise_kernel_size": 5,
    "left_max_position_embeddings": 8,
    "right_max_position_embeddings": 8,
}
ANSWERED = {"labels": ids(2, 5)}

SPEAKERS: Table = {
    "parakeet_ctc": (
        "ParakeetForCTC",
        ONE_KIND
        | {
            "encoder_config": TINY
            | {
                "num_mel_bins": 16,
                "subsampling_conv_channels": 8,
                "conv_kernel_size": 5,
                "max_position_embeddings": 64,
                "dropout": 0.0,
            },
        },
        {
            "input_features": floats(2, 96, 16),
            "attention_mask": ones(2, 96),
            "labels": labels(2, 2, below=30),
        },
    ),
    "whisper": ("WhisperForConditionalGeneration", WHISPER, SPECTRA | ANSWERED),
    "speech_to_text": (
        "Speech2TextForConditionalGeneration",
        TWO_SIDED
        | {
            "max_source_positions": 64,
            "max_target_positions": 32,
            "conv_channels": 16,
            "input_feat_per_channel": 8,
        },
        {"input_features": floats(2, 40, 8), "attention_mask": ones(2, 40)} | ANSWERED,
    ),
    "speecht5": (
        "SpeechT5ForSpeechToText",
        CONVOLVED | TWO_SIDED | {"num_mel_bins": 8, "max_text_positions": 32},
        WAVE | ANSWERED,
    ),
    "seamless_m4t": (
        "SeamlessM4TForSpeechToText",
        SEAMLESS,
        {"input_features": floats(2, 40, 16)} | ANSWERED,
    ),
    "seamless_m4t_v2": (
        "SeamlessM4Tv2ForSpeechToText",
        SEAMLESS,
        {"input_features": floats(2, 40, 16)} | ANSWERED,
    ),
    "moonshine": (
        "MoonshineForConditionalGeneration",
        AFTER
        | {
            "vocab_size": 99,
            "hidden_size": 32,
            "intermediate_size": 64,
            "encoder_num_hidden_layers": 2,
            "decoder_num_hidden_layers": 2,
            "encoder_num_attention_heads": 4,
            "decoder_num_attention_heads": 4,
            "max_position_embeddings": 64,
        },
        {"input_values": floats(2, 2000)} | ANSWERED,
    ),
    "pop2piano": (
        "Pop2PianoForConditionalGeneration",
        AFTER
        | {
            "vocab_size": 99,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
        },
        {"input_features": floats(2, 9, 32)} | ANSWERED,
    ),
    "musicgen_decoder": (
        "MusicgenForCausalLM",
        TINY
        | {
            "vocab_size": 99,
            "max_position_embeddings": 64,
            "ffn_dim": 64,
            "num_codebooks": 2,
            "pad_token_id": 98,
            "bos_token_id": 98,
        },
        {"input_ids": ids(4, 7), "attention_mask": ones(2, 7)},
    ),
    "qwen2_audio": (
        "Qwen2AudioForConditionalGeneration",
        {
            "audio_config": TWO_SIDED | {"num_mel_bins": 16, "max_source_positions": 30},
            "text_config": LLAMA | {"model_type": "qwen2"},
            "audio_token_index": 98,
        },
        {
            "input_ids": with_token(15, token=98),
            "input_features": floats(2, 16, 60),
            "attention_mask": ones(2, 20),
            "feature_attention_mask": ones(2, 60),
        },
    ),
}
PROMPTS = {
    "parakeet_ctc": ["input_features", "attention_mask"],
    "pop2piano": [],  # it generates for a composer of its published vocabulary
    "musicgen_decoder": ["input_ids"],
    "qwen2_audio": ["input_ids", "input_features", "attention_mask", "feature_attention_mask"],
    "moonshine": ["input_values"],
    "speecht5": ["input_values"],
}
TOLD = {
    "musicgen_decoder": THREE_TOKENS
    | {"pad_token_id": 98, "decoder_start_token_id": 98, "num_return_sequences": 1}
}

SPECIMENS: list[Specimen] = [
    specimen(
        name,
        "speech encoder-decoder",
        *made,
        prompt=PROMPTS.get(name, ["input_features"]),
        told=TOLD.get(name, THREE_TOKENS),
    )
    for name, made in SPEAKERS.items()
]
