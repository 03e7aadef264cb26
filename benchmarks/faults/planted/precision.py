"""Faults of half precision."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.faults.blocks import ConvNet, Transformer, digits, mlp, token_loss, tokens, train
from benchmarks.faults.case import PLANTED, Program
from benchmarks.faults.proofs import born, finite, never_moves


@PLANTED.fault(
    "float16: the attention scores of one block overflow before the softmax",
    at="blocks.1.attn",
    kinds="nonfinite",
    proof=born("blocks.1.attn"),
)
def scores_overflow_in_float16(*, broken: bool) -> Program:
    model = Transformer()
    if broken:  # as in a checkpoint that was trained in bfloat16
        model.blocks[1].attn.q.weight.data *= 400
        model.blocks[1].attn.k.weight.data *= 400
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    batches = tokens()

    def step(number: int) -> None:
        ids, labels = batches[number]
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(ids)
        scaler.scale(token_loss(logits.float(), labels)).backward()
        scaler.step(optimizer)
        scaler.update()

    return Program(model, step, optimizer, scaler=scaler)


@PLANTED.fault(
    "float16: the MLP of one block of a GPT-2 overflows",
    at="transformer.h.1.mlp.c_proj",
    kinds="nonfinite",
    proof=born("transformer.h.1.mlp.c_proj"),
)
def gpt2_overflows_in_float16(*, broken: bool) -> Program:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=50,
        n_positions=32,
        n_embd=32,
        n_layer=3,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config).half().eval()
    if broken:  # outlier channels, as large models have them
        model.transformer.h[1].mlp.c_fc.weight.data[:, :16] *= 300
        model.transformer.h[1].mlp.c_proj.weight.data[:16] *= 80000
    prompts = torch.randint(0, 50, (8, 2, 12))

    def step(number: int) -> None:
        with torch.no_grad():
            model(prompts[number], use_cache=False)

    return Program(model, step, None, 8)


@PLANTED.fault(
    "bfloat16 accumulates nothing: the updates of one part are smaller than half its last bit",
    at=("trunk", "trunk.*"),
    kinds=("stuck", "ratio", "underflow"),
    proof=never_moves("trunk.0.weight", "trunk.2.weight"),
)
def updates_rounded_away(*, broken: bool) -> Program:
    model = nn.Sequential()
    model.add_module("flatten", nn.Flatten())
    model.add_module("stem", nn.Linear(64, 32))
    trunk = nn.Sequential(
        nn.Linear(32, 32, bias=False), nn.ReLU(), nn.Linear(32, 32, bias=False), nn.ReLU()
    )
    for layer in trunk[::2]:
        layer.weight.data = layer.weight.data.sign() * (0.1 + 0.1 * torch.rand(32, 32))
    model.add_module("trunk", trunk)
    model.add_module("head", nn.Linear(32, 10))
    if broken:
        model.trunk.to(torch.bfloat16)
        model.trunk.register_forward_pre_hook(lambda _, args: (args[0].bfloat16(),))
        model.head.register_forward_pre_hook(lambda _, args: (args[0].float(),))
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    return train(model, optimizer, digits())


@PLANTED.fault(
    "loss scale too high: every gradient overflows and no step is taken",
    at=("", "head"),
    kinds=("scale", "nonfinite"),
    proof=lambda t: (
        not any(any(steps) for steps in t.moved.values())
        and t.forward_is_finite(0)
        and {s.module for s in t.rows("grad_output") if s.bad or s.neginf} >= {"head"}
    ),
)
def loss_scale_too_high(*, broken: bool) -> Program:
    model, batches = ConvNet(), digits()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=2.0**40 if broken else 2.0**10, backoff_factor=0.99 if broken else 0.5
    )

    def step(number: int) -> None:
        x, y = batches[number]
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return Program(model, step, optimizer, 16, scaler)


class Match(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return (self.scale * a) @ (self.scale * b).T


class Scorer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = mlp(64, 32, 16)
        self.key = mlp(64, 32, 16)
        self.match = Match()

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.match(self.query(x), self.key(x.flip(1)))


@PLANTED.fault(
    "float16: the scores come within a tenth of the end of the range, for their scale is too large",
    at="match",
    kinds=("overflow", "exploding", "nonfinite"),
    proof=lambda t: finite()(t) and max(t.absmax("output", "match")) > 0.9 * 65504,
)
def close_to_the_end_of_float16(*, broken: bool) -> Program:
    model, batches = Scorer(), [x for x, _ in digits()][:8]
    if broken:
        with torch.no_grad():
            largest = max(float(model(x).abs().max()) for x in batches)
            model.match.scale.fill_((62000 / largest) ** 0.5)

    def step(number: int) -> None:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
            model(batches[number])

    return Program(model, step, None, 8)
