"""Encoder-decoders of text."""

from __future__ import annotations

from typing import Final

from tests.zoo.text_tools import Recipe, each, first_token_sees_all, having, specimens

_GEMMA: Final = {"model_type": "t5_gemma_module"}

_RECIPES: Final = (
    each(
        "bart bigbird_pegasus blenderbot blenderbot-small fsmt m2m_100 marian mbart mvp nllb-moe "
        "pegasus pegasus_x plbart prophetnet"
    )
    | each("longt5 mt5 switch_transformers t5 umt5", having(decoder_start_token_id=0))
    | {
        "encoder-decoder": having(
            encoder={"model_type": "bert"},
            decoder={"model_type": "bert", "is_decoder": True, "add_cross_attention": True},
            decoder_start_token_id=1,
            pad_token_id=0,
        ),
        "led": Recipe({}, also=first_token_sees_all),
        "t5gemma": having(encoder=_GEMMA, decoder=_GEMMA, vocab_size=128, decoder_start_token_id=1),
    }
)

SPECIMENS = specimens("encoder-decoder", "AutoModelForSeq2SeqLM", _RECIPES)
