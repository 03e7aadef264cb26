"""Decoders of text: one dense block after the other."""

from __future__ import annotations

from typing import Final

from tests.zoo.text_tools import each, having, specimens

_LOCAL_AND_GLOBAL: Final = having(layer_types=["sliding_attention", "full_attention"])

_ROTATION: Final = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}

_RECIPES: Final = (
    each(
        "apertus apertus1p5_text arcee bert-generation biogpt bitnet bloom codegen cohere cpmant "
        "ctrl cwm diffllama ernie4_5 falcon gemma gemma2 gemma4_text gemma4_unified_text glm glm4 "
        "gpt2 gpt_bigcode gpt_neox gpt_neox_japanese gptj granite granite_swa helium hrm_text "
        "hunyuan_v1_dense hyperclovax jais2 llama ministral3 mistral modernbert-decoder mpt "
        "nanochat nemotron olmo olmo2 openai-gpt opt persimmon phi phi3 qwen2 qwen3 seed_oss "
        "smollm3 stablelm starcoder2 vaultgemma xglm xlnet"
    )
    | each("cohere2 exaone4 gemma3_text ministral olmo3", _LOCAL_AND_GLOBAL)
    | {
        "blt": having(
            patcher_config={"model_type": "blt_patcher"},
            encoder_config={"model_type": "blt_local_encoder"},
            decoder_config={"model_type": "blt_local_decoder"},
            global_config={"model_type": "blt_global_transformer"},
            encoder_hash_byte_group_vocab=64,
            use_cache=False,  # its own configuration lacks what a cache asks for
        ),
        "cohere_compass_text": having(
            layer_types=["sliding_attention", "full_attention"],
            rope_parameters=dict.fromkeys(["sliding_attention", "full_attention"], _ROTATION),
        ),
        "dory": having(
            num_hidden_layers=3,
            n_input_layers=1,
            n_output_layers=1,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
        "gemma3n_text": having(
            num_hidden_layers=4,
            num_kv_shared_layers=2,
            layer_types=["sliding_attention", "full_attention"] * 2,
        ),
        "gpt_neo": having(attention_types=[[["global", "local"], 1]]),
        "minicpm3": having(num_key_value_heads=4),
    }
)

SPECIMENS = specimens("decoder", "AutoModelForCausalLM", _RECIPES)

LEFT_OUT: Final = {
    "exaone": "the classes of llama under another name",
    "gpt-sw3": "the classes of gpt2 under another name",
    "internlm3": "the classes of llama under another name",
    "iquestcoder": "the classes of llama under another name",
    "sarvam_mla": "the classes of deepseek_v3 under another name",
    "sarvam_moe": "the classes of glm4_moe under another name",
}
