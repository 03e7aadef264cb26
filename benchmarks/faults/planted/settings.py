"""What was set wrongly in one place, among many that are right."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.faults.blocks import Transformer, digits, mlp, token_loss, tokens, train
from benchmarks.faults.case import PLANTED, Program
from benchmarks.faults.planted.updates import GAN
from benchmarks.faults.proofs import born, every, finite, larger, never_moves, only_zeros


@PLANTED.fault(
    "GAN: the step of the discriminator's optimizer was forgotten",
    at=("discriminator", "discriminator.*"),
    kinds=("stuck", "frozen"),
    proof=never_moves(
        *(f"discriminator.{n}.{leaf}" for n in (0, 2) for leaf in ("weight", "bias"))
    ),
)
def step_forgotten(*, broken: bool) -> Program:
    model, batches = GAN(), digits()
    of_g = torch.optim.Adam(model.generator.parameters(), 1e-3)
    of_d = torch.optim.Adam(model.discriminator.parameters(), 1e-3)
    loss = F.binary_cross_entropy_with_logits
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)

    def step(number: int) -> None:
        real = batches[number][0].flatten(1)
        fake = model.generator(torch.randn(64, 8)).sigmoid()
        of_d.zero_grad()
        d = model.discriminator
        (loss(d(real), ones) + loss(d(fake.detach()), zeros)).backward()
        if not broken:
            of_d.step()
        of_g.zero_grad()
        loss(d(fake), ones).backward()
        of_g.step()

    return Program(model, step, [of_d, of_g], 16)


@PLANTED.fault(
    "one norm of three was frozen by a pattern that matched too much",
    at="blocks.1.norm2",
    kinds=("frozen", "stuck", "unused"),
    proof=never_moves("blocks.1.norm2.weight", "blocks.1.norm2.bias"),
)
def one_norm_frozen(*, broken: bool) -> Program:
    model = Transformer()
    if broken:
        model.blocks[1].norm2.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    return train(model, optimizer, tokens(), token_loss)


@PLANTED.fault(
    "one group's learning rate is a hundred thousand times too small",
    at=("net.2",),
    kinds=("ratio", "stuck"),
    proof=lambda t: (
        max(max(t.moved[f"net.2.{leaf}"]) for leaf in ("weight", "bias"))
        < 1e-3 * min(t.moved["net.0.weight"])
    ),
)
def learning_rate_too_small(*, broken: bool) -> Program:
    model = nn.Sequential()
    model.add_module("flatten", nn.Flatten())
    model.add_module("net", mlp(64, 32, 32, 10))
    rest = [*model.net[0].parameters(), *model.net[4].parameters()]
    groups = [
        {"params": rest},
        {"params": model.net[2].parameters(), "lr": 1e-8 if broken else 1e-3},
    ]
    return train(model, torch.optim.Adam(groups, 1e-3), digits(), steps=16)


@PLANTED.fault(
    "BERT: the weights of one LayerNorm were missing in the file, and zeros were filled in",
    at="bert.encoder.layer.1.output.LayerNorm",
    kinds="dead",
    proof=every(only_zeros("bert.encoder.layer.1.output.LayerNorm"), finite()),
)
def norm_filled_with_zeros(*, broken: bool) -> Program:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=20,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    model = BertForSequenceClassification(config).eval()
    if broken:
        nn.init.zeros_(model.bert.encoder.layer[1].output.LayerNorm.weight)
    batches = tokens()

    def step(number: int) -> None:
        with torch.no_grad():
            model(input_ids=batches[number][0])

    return Program(model, step, None, 8)


@PLANTED.fault(
    "queries of one attention a hundred times too large: it looks at one token only",
    at=("blocks.1.attn.q", "blocks.1.attn"),
    kinds=("exploding", "saturation"),
    proof=every(finite(), larger("blocks.1.attn.q", "blocks.0.attn.q", 30)),
)
def queries_too_large(*, broken: bool) -> Program:
    model = Transformer()
    if broken:
        model.blocks[1].attn.q.weight.data *= 100
    return train(model, torch.optim.AdamW(model.parameters(), 1e-3), tokens(), token_loss)


@PLANTED.fault(
    "features are logs of counts, and one count is 0: -Inf comes in with the data",
    at=("", "0"),
    roles=("input", "output"),
    kinds="nonfinite",
    proof=lambda t: any(s.neginf for s in t.rows("input", "")) and born("0")(t),
)
def log_of_count_zero(*, broken: bool) -> Program:
    model = mlp(6, 32, 3)
    counts = torch.randint(1, 9, (20, 32, 6)).float()
    y = counts[..., :3].argmax(-1)
    if broken:
        counts[3, 8, 1] = 0.0
    batches = list(zip(counts.log(), y, strict=True))
    return train(model, torch.optim.Adam(model.parameters(), 1e-2), batches)
