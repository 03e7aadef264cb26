"""Encoders of text, trained to find masked tokens."""

from __future__ import annotations

from typing import Final

from tests.zoo.text_tools import LENGTH, Recipe, each, first_token_sees_all, having, specimens

_RECIPES: Final = each(
    "albert bert camembert convbert data2vec-text deberta deberta-v2 distilbert electra ernie esm "
    "eurobert flaubert fnet funnel gte ibert jina_embeddings_v3 luke megatron-bert modernbert mpnet "
    "nomic_bert nystromformer rembert roberta roberta-prelayernorm roc_bert roformer squeezebert "
    "tapas xlm xlm-roberta xlm-roberta-xl yoso"
) | {
    "big_bird": Recipe({"block_size": 4, "num_random_blocks": 1}, length=64),
    "esmc": having(num_key_value_heads=4),
    "longformer": Recipe({}, also=first_token_sees_all),
    "mobilebert": having(embedding_size=16),
    # without its CUDA kernel its attention gives zeros, which require grad: a leaf amid the graph
    "mra": Recipe({}, length=64),
    "neomme": having(head_dim=16, layer_types=["sliding_attention", "full_attention"]),
    "perceiver": having(
        max_position_embeddings=LENGTH,
        d_latents=32,
        num_latents=4,
        num_self_attends_per_block=2,
        num_self_attention_heads=4,
        num_cross_attention_heads=4,
    ),
    # in each training step it seeds torch anew, from what nobody can repeat
    "reformer": having(
        attn_layers=["local", "lsh"],
        axial_pos_shape=(2, 4),
        axial_pos_embds_dim=(16, 16),
        local_attn_chunk_length=4,
        lsh_attn_chunk_length=4,
        num_buckets=2,
    ),
    "ultrabert": having(layer_types=["sliding_attention", "full_attention"]),
    "xmod": having(default_language="en_XX"),
}

SPECIMENS = specimens("encoder", "AutoModelForMaskedLM", _RECIPES)
