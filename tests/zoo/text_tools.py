"""How a text model of transformers is made small, fed and asked to generate.

Nothing here imports transformers before a specimen is built: listing the zoo costs nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from tests.zoo.specimen import Feed, Specimen

_SIZES: Final = {
    128: "vocab_size src_vocab_size tgt_vocab_size unpadded_vocab_size entity_vocab_size "
    "pronunciation_vocab_size shape_vocab_size vocab_size_per_layer_input",
    64: "max_position_embeddings n_positions n_ctx max_seq_len max_source_positions "
    "max_target_positions max_encoder_position_embeddings max_decoder_position_embeddings "
    "original_max_position_embeddings context_length prompt_length "
    "intermediate_size encoder_ffn_dim decoder_ffn_dim ffn_dim d_ff dim_ff dff d_inner hidden_dim "
    "ffn_hidden_size feed_forward_size n_inner intermediate_size_mlp mamba_d_ssm",
    32: "hidden_size hidden_size_global d_model n_embd emb_dim dim embedding_size embedding_dim "
    "input_embedding_size output_embedding_size embedding_rank entity_emb_size "
    "pronunciation_embed_dim shape_embed_dim moe_intermediate_size expert_ffn_hidden_size "
    "shared_expert_intermediate_size shared_experts_intermediate_size shared_intermediate_size "
    "moe_shared_expert_intermediate_size dense_intermediate_size router_hidden_size",
    16: "kv_lora_rank q_lora_rank o_lora_rank state_size ssm_state_size mamba_d_state chunk_size "
    "mamba_chunk_size mamba_head_dim mamba_d_head sliding_window sliding_window_size window_size "
    "attention_window_size attention_chunk_size local_attention prompt_mid_dim rel_extent",
    8: "head_dim kv_channels d_kv d_head dim_head v_head_dim qk_rope_head_dim qk_nope_head_dim "
    "swa_head_dim linear_head_dim linear_key_head_dim linear_value_head_dim index_head_dim "
    "attention_head_size query_pre_attn_scalar rotary_dim hidden_size_per_layer_input",
    4: "num_attention_heads encoder_attention_heads decoder_attention_heads attention_heads n_head "
    "n_heads num_heads num_encoder_attention_heads num_decoder_attention_heads mamba_n_heads "
    "mamba_num_heads swa_num_attention_heads linear_num_value_heads linear_num_heads index_n_heads "
    "num_experts n_routed_experts num_local_experts moe_num_experts index_topk attention_window",
    2: "num_hidden_layers encoder_layers decoder_layers n_layer n_layers num_layers eos_token_id "
    "num_encoder_layers num_decoder_layers num_key_value_heads swa_num_key_value_heads "
    "linear_num_key_heads num_experts_per_tok moe_topk moe_k",
    1: "n_group topk_group n_groups bos_token_id decoder_start_token_id",
    0: "pad_token_id",
}
SMALL: Final = {name: size for size, names in _SIZES.items() for name in names.split()}
"""What a dimension is, by the name that it has in any configuration."""

ROWS: Final = 2
LENGTH: Final = 8

_GENERATING: Final = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What one family needs beyond small dimensions."""

    overrides: dict[str, Any]
    length: int = LENGTH
    also: Callable[[Tensor], dict[str, Any]] = lambda tokens: {}
    """More inputs than tokens, their mask and labels."""


def having(**overrides: Any) -> Recipe:
    """Return a recipe whose configuration differs from the small one."""
    return Recipe(overrides)


def each(names: str, recipe: Recipe | None = None) -> dict[str, Recipe]:
    """Return one recipe for many families; by default small dimensions are enough."""
    return dict.fromkeys(names.split(), recipe or having())


def tiny(model_type: str, **overrides: Any) -> Any:
    """Return a small configuration; an override `{"model_type": ...}` becomes one too."""
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    known = {field.name for field in dataclasses.fields(kind)}
    nested = {
        name: tiny(**value).to_dict()
        for name, value in overrides.items()
        if isinstance(value, dict) and "model_type" in value
    }
    return kind(**{k: v for k, v in SMALL.items() if k in known} | overrides | nested)


def specimens(family: str, head: str, recipes: dict[str, Recipe]) -> list[Specimen]:
    """Return the specimens of a table; `head` is one of the Auto classes of transformers."""
    return [
        Specimen(
            name=name,
            family=family,
            build=partial(_build, head, name, recipe),
            feed=partial(_feed, recipe),
            generate=_generate if head in _GENERATING else None,
        )
        for name, recipe in recipes.items()
    ]


def _build(head: str, name: str, recipe: Recipe) -> nn.Module:
    import transformers

    config = tiny(name, **recipe.overrides)
    return getattr(transformers, head).from_config(config)


def _feed(recipe: Recipe, model: nn.Module) -> Feed:
    """Return tokens and labels; the last tokens of the second row are padding."""
    tokens = _random_tokens(recipe.length)
    mask = torch.ones_like(tokens)
    mask[1, -2:] = 0
    tokens = tokens * mask
    labels = tokens.masked_fill(mask == 0, -100)
    named = {"input_ids": tokens, "attention_mask": mask, "labels": labels}
    return (), named | recipe.also(tokens)


def _generate(model: nn.Module) -> Any:
    """Generate three tokens, the likeliest each time."""
    tokens = _random_tokens(LENGTH)
    mask = torch.ones_like(tokens)
    return model.generate(tokens, attention_mask=mask, max_new_tokens=3, do_sample=False)


def _random_tokens(length: int) -> Tensor:
    """Return tokens of which none is a special one."""
    return torch.randint(3, SMALL["vocab_size"], (ROWS, length))


def first_token_sees_all(tokens: Tensor) -> dict[str, Any]:
    """Return the mask of models whose attention is local but for a few tokens."""
    mask = torch.zeros_like(tokens)
    mask[:, 0] = 1
    return {"global_attention_mask": mask}
