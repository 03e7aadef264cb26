"""Decoders of text that carry a state from token to token, alone or beside attention."""

from __future__ import annotations

from typing import Final

from tests.zoo.text_tools import each, having, specimens

_BOTH: Final = ["linear_attention", "full_attention"]

_RECIPES: Final = (
    each("falcon_h1 falcon_mamba lara_mini mamba nemotron_h olmo_hybrid rwkv")
    | each(
        "granitemoehybrid qwen3_5_moe_text qwen3_5_text qwen3_next",
        having(layer_types=_BOTH),
    )
    | each("bailing_hybrid kimi_linear", having(num_key_value_heads=4, layer_types=_BOTH))
    | each("lfm2 lfm2_moe lfm3", having(layer_types=["conv", "full_attention"]))
    | {
        "bamba": having(attn_layer_indices=[1]),
        "jamba": having(attn_layer_period=2, attn_layer_offset=1),
        "mamba2": having(num_heads=8),
        "qwen4_exp_text": having(
            layer_types=["linear_attention", "indexed_attention"],
            indexer_n_heads=4,
            indexer_kv_heads=1,
            indexer_head_dim=8,
            indexer_budget=4,
            indexer_compress_ratio=2,
            ple_layer_ids=[1],
            ngram_vocab_size_base=64,
            heads_per_ngram=2,
            split_ngram_parts=2,
            hc_lowrank=8,
        ),
        "recurrent_gemma": having(num_hidden_layers=3),
        "xlstm": having(hidden_size=128, embedding_dim=128),
        "zamba": having(num_hidden_layers=4, layers_block_type=["linear_attention", "hybrid"] * 2),
        "zamba2": having(num_hidden_layers=4, layers_block_type=["linear_attention", "hybrid"] * 2),
    }
)

SPECIMENS = specimens("state space", "AutoModelForCausalLM", _RECIPES)
