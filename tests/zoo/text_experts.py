"""Decoders of text whose feed-forward blocks are mixtures of experts."""

from __future__ import annotations

from typing import Final

from tests.zoo.text_tools import each, having, specimens

_LOCAL_AND_GLOBAL: Final = ["sliding_attention", "full_attention"]
_DENSE_AND_SPARSE: Final = ["dense", "sparse"]

_RECIPES: Final = (
    each(
        "aria_text doge ernie4_5_moe exaone_moe flex_olmo glm4_moe gpt_oss granitemoe "
        "granitemoe_swa granitemoeshared hunyuan_v1_moe hy_v3 hy_v4 jetmoe mellum mimo_v2_flash "
        "minimax minimax_m2 mixtral olmoe phimoe qwen2_moe qwen3_moe solar_open"
    )
    # attention over a compressed cache knows no groups of heads
    | each("axk1 axk2 glm4_moe_lite youtu", having(num_key_value_heads=4))
    | each("deepseek_v2 deepseek_v3", having(num_key_value_heads=4, first_k_dense_replace=1))
    | each(
        "deepseek_v32 dots3_note_text glm_moe_dsa",
        having(num_key_value_heads=4, mlp_layer_types=_DENSE_AND_SPARSE),
    )
    | each("afmoe cohere2_moe kolibri1 laguna", having(layer_types=_LOCAL_AND_GLOBAL))
    | each(
        "inkling2_loop_text inkling2_text inkling_text",
        having(layer_types=["hybrid_sliding", "hybrid"]),
    )
    | {
        "beam": having(mlp_layer_types=_DENSE_AND_SPARSE),
        "dbrx": having(
            attn_config={"kv_n_heads": 2, "rope_theta": 10_000.0, "clip_qkv": 8.0},
            ffn_config={"hidden_size": 32, "ffn_hidden_size": 64, "moe_top_k": 2},
        ),
        "deepseek_v4": having(
            num_key_value_heads=1,
            layer_types=["heavily_compressed_attention", "compressed_sparse_attention"],
            mlp_layer_types=["hash_moe", "moe"],
        ),
        "dots1": having(n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1),
        "flint": having(mlp_only_layers=[0]),
        "longcat_flash": having(num_key_value_heads=4, zero_expert_num=1),
        "llama4_text": having(layer_types=["chunked_attention", "full_attention"]),
        "minimax_m3_vl_text": having(layer_types=["full_attention", "minimax_m3_sparse"]),
        "zaya": having(num_experts_per_tok=1),
    }
)

SPECIMENS = specimens("mixture of experts", "AutoModelForCausalLM", _RECIPES)
