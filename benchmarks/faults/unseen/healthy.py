"""Held out: do not tune rules to it. Models that train as they should."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.faults.blocks import ResNet, counting, digits, mlp, token_loss, tokens, train
from benchmarks.faults.case import UNSEEN, Program
from benchmarks.faults.unseen.learning import Recommender, Seq2Seq, ViT, low_rank, mixture, ratings
from benchmarks.faults.unseen.numbers import TwoTowers, contrastive


@UNSEEN.sound("GPT-2 of transformers, random weights, AdamW with a warm-up")
def gpt2() -> Program:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=20,
        n_positions=32,
        n_embd=32,
        n_layer=3,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    model, batches = GPT2LMHeadModel(config).train(), counting()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 10)

    def step(number: int) -> Tensor:
        ids, labels = batches[number % 20]
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return loss

    return Program(model, step, optimizer, 24)


@UNSEEN.sound("BERT of transformers on padded sentences")
def bert() -> Program:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=20,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        num_labels=3,
    )
    model, batches = BertForSequenceClassification(config).train(), tokens()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)

    def step(number: int) -> Tensor:
        ids, _ = batches[number % 20]
        keep = torch.arange(12) < torch.randint(4, 13, (16, 1))
        loss = model(input_ids=ids * keep, attention_mask=keep.long(), labels=ids[:, 0] % 3).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return Program(model, step, optimizer, 24)


@UNSEEN.sound("translator of two GRUs, Adam")
def translator() -> Program:
    model = Seq2Seq()
    batches = [((x, x.roll(1, 1)), x) for x, _ in counting()]
    return train(model, torch.optim.Adam(model.parameters(), 1e-2), batches, token_loss, steps=24)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.down = nn.Sequential(nn.Conv2d(8, 16, 2, stride=2), nn.GroupNorm(4, 16), nn.SiLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.leave = nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.enter(x)
        return self.leave(torch.cat([a, self.up(self.down(a))], 1))


@UNSEEN.sound("U-Net with GroupNorm removes noise, exponential moving average of its weights")
def unet() -> Program:
    model = UNet()
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    batches = [(x + 0.2 * torch.randn_like(x), x) for x, _ in digits()]
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    inner = train(model, optimizer, batches, F.mse_loss)

    def step(number: int) -> object:
        loss = inner.step(number)
        average.update_parameters(model)
        return loss

    return Program(model, step, optimizer, 24)


@UNSEEN.sound("recommender: embeddings of which a step sees some rows only")
def recommender() -> Program:
    model = Recommender()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    return train(model, optimizer, ratings(), F.mse_loss, steps=30)


@UNSEEN.sound("LoRA on a frozen MLP; one factor begins at zero, as it should")
def lora() -> Program:
    model = low_rank()
    given = [p for p in model.parameters() if p.requires_grad]
    return train(model, torch.optim.Adam(given, 2e-2), digits(), steps=24)


@UNSEEN.sound("mixture of four experts, all of them used")
def experts() -> Program:
    model = mixture()
    return train(model, torch.optim.AdamW(model.parameters(), 2e-3), digits(), steps=24)


@UNSEEN.sound("contrastive pair of towers with a learned temperature")
def towers() -> Program:
    return contrastive(TwoTowers(1.0))


@UNSEEN.sound("ResNet, SGD with Nesterov momentum and a cosine schedule that ends at 0")
def cosine() -> Program:
    model = ResNet(2, 16)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    inner = train(model, optimizer, digits())

    def step(number: int) -> object:
        loss = inner.step(number)
        schedule.step()
        return loss

    return Program(model, step, optimizer, 20)


@UNSEEN.sound("ViT, AdamW")
def vit() -> Program:
    model = ViT()
    return train(model, torch.optim.AdamW(model.parameters(), 2e-3), digits(), steps=24)


@UNSEEN.sound("MLP with dropout in bfloat16 throughout, SGD")
def all_bfloat16() -> Program:
    model = nn.Sequential(nn.Flatten(), *mlp(64, 64, 64, 10))
    model.insert(3, nn.Dropout(0.2))
    model = model.bfloat16()
    batches = [(x.bfloat16(), y) for x, y in digits()]
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    return train(
        model, optimizer, batches, lambda out, y: F.cross_entropy(out.float(), y), steps=30
    )
