"""Where the probabilities of an attention are had from, without asking it for anything.

Three kinds are known. `nn.MultiheadAttention`: from what it is called with, by its own weights. A
module that is called with queries and keys of four dimensions: from these. `nn.Softmax`, and a
module whose second result are its weights (as in transformers): from what they give.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from probe_nb import devices
from probe_nb.stats.extras import causal, computing, entropy_of, entropy_of_scores, scores

Leaf = tuple[str, Tensor]

_NAMES: Final = {
    "0": "query",
    "1": "key",
    "2": "value",
    "3": "key_padding_mask",
    "5": "attn_mask",
    **{
        f"kwargs.{name}": name
        for name in ("query", "key", "value", "key_padding_mask", "attn_mask", "attention_mask")
    },
}
_TO_HEADS: Final = {"bhsd": (0, 1, 2, 3), "sbhd": (1, 2, 0, 3), "bshd": (0, 2, 1, 3)}
_PLAIN: Final = (Tensor, nn.Parameter)
_DIMS: Final = 4
_BATCHED: Final = 3


def of_inputs(
    module: nn.Module, leaves: Sequence[Leaf], order: str, *, masked: bool
) -> tuple[Tensor, Tensor] | None:
    """Return entropy and softmax maximum from what an attention is called with, if that tells.

    `masked` says that each place sees only those before it, whatever mask is given.
    """
    given = {_NAMES[leaf]: t for leaf, t in leaves if leaf in _NAMES}
    q, k = given.get("query"), given.get("key")
    if q is None or k is None or not (_plain(q) and _plain(k)):
        return None
    return _of_query(q, k, module, given, order, masked=masked)


@computing
def _of_query(
    q: Tensor, k: Tensor, module: nn.Module, given: dict[str, Tensor], order: str, *, masked: bool
) -> tuple[Tensor, Tensor] | None:
    if isinstance(module, nn.MultiheadAttention):
        s = _multihead(module, given)
    elif q.dim() == k.dim() == _DIMS and q.shape[-1] == k.shape[-1]:
        s = scores(q.permute(_TO_HEADS[order]), _as_many(q, k, order))
    else:
        return None
    return None if s is None else entropy_of_scores(causal(s) if masked else s)


def of_results(module: nn.Module, leaves: Sequence[Leaf]) -> tuple[Tensor, Tensor] | None:
    """Return the same from the probabilities that a module gives, None if it gives none."""
    found = dict(leaves)
    softmax = isinstance(module, nn.Softmax)
    p = found.get("0" if softmax else "1", found.get("attentions", found.get("attn_weights")))
    dim = module.dim if isinstance(module, nn.Softmax) else -1
    if p is None or not _plain(p) or not p.is_floating_point() or dim is None:
        return None
    if not softmax and p.dim() != _DIMS:
        return None
    return _of_probabilities(p, dim)


def of_experts(leaves: Sequence[Leaf]) -> Tensor | None:
    """Return the mean entropy over experts of what a router gives, its logits."""
    for _, t in leaves:
        if _plain(t) and t.is_floating_point() and t.dim() and t.numel():
            return _of_logits(t)
    return None


_of_probabilities = computing(entropy_of)


@computing
def _of_logits(t: Tensor) -> Tensor:
    return entropy_of_scores(t.to(torch.promote_types(t.dtype, torch.float32)))[0]


def _plain(t: Tensor) -> bool:
    """Tell whether no class of the user's would see what is computed of a tensor."""
    return (type(t) in _PLAIN or devices.is_its_class(t)) and t.layout == torch.strided


def _as_many(q: Tensor, k: Tensor, order: str) -> Tensor:
    """Return the keys, each head as often as queries share it (grouped-query attention)."""
    q, k = q.permute(_TO_HEADS[order]), k.permute(_TO_HEADS[order])
    times = q.shape[1] // max(k.shape[1], 1)
    return k.repeat_interleave(times, 1) if times > 1 else k


def _multihead(module: nn.MultiheadAttention, given: dict[str, Tensor]) -> Tensor | None:
    weights = _projections(module)
    if weights is None or module.bias_k is not None or module.add_zero_attn:
        return None
    heads = module.num_heads
    q, k = (
        _heads(given[name], *weights[place], heads, batch_first=module.batch_first)
        for place, name in enumerate(("query", "key"))
    )
    s = scores(q, k)
    for name in ("attn_mask", "key_padding_mask"):
        if (mask := given.get(name)) is not None:
            s = _masked(s, mask, of_keys=name == "key_padding_mask")
    return s


def _projections(module: nn.MultiheadAttention) -> list[tuple[Tensor, Tensor | None]] | None:
    """Return weight and bias of queries and of keys; None where they are no plain parameters."""
    own: dict[str, Any] = module.__dict__["_parameters"]
    whole, e, b = own.get("in_proj_weight"), module.embed_dim, own.get("in_proj_bias")
    parts: list[Any] = [own.get("q_proj_weight"), own.get("k_proj_weight")]
    if whole is not None and _plain(whole):
        parts = [whole[:e], whole[e : 2 * e]]
    if any(each is None or not _plain(each) for each in parts):
        return None
    biases = [None, None] if b is None else [b[:e], b[e : 2 * e]]
    return list(zip(parts, biases, strict=True))


def _heads(
    t: Tensor, weight: Tensor, bias: Tensor | None, heads: int, *, batch_first: bool
) -> Tensor:
    """Return (batch, head, place, numbers) of queries or keys."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    t = functional.linear(t.to(wide), weight.to(wide), None if bias is None else bias.to(wide))
    if t.dim() < _BATCHED:
        t = t.unsqueeze(0)
    elif not batch_first:
        t = t.transpose(0, 1)
    parted: Tensor = t.unflatten(-1, (heads, -1))
    return parted.transpose(1, 2)


def _masked(s: Tensor, mask: Tensor, *, of_keys: bool) -> Tensor:
    """Return scores with a mask put on: True is masked, numbers are added."""
    if of_keys:
        mask = mask.reshape(-1, 1, 1, mask.shape[-1])
    elif mask.dim() == _BATCHED:
        mask = mask.unflatten(0, (-1, s.shape[1]))
    return s.masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else s + mask
