"""The architectures that divergences are planted in: small, and written as users write them."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.divergences.case import Batch, Program


def labelled(model: nn.Module, batch: Batch) -> Tensor:
    """Return the cross entropy of a classifier."""
    return F.cross_entropy(model(batch[0]).float(), batch[1])


def copied(model: nn.Module, batch: Batch) -> Tensor:
    """Return the cross entropy of every position, of a model that tells its input again."""
    return F.cross_entropy(model(batch[0]).float().flatten(0, 1), batch[0].flatten())


def causal(model: nn.Module, batch: Batch) -> Tensor:
    """Return what a language model of transformers says its loss is."""
    found: Tensor = model(input_ids=batch[0], labels=batch[0]).loss
    return found


def images(number: int = 3, size: int = 8, side: int = 16, channels: int = 3) -> list[Batch]:
    """Return random images with labels."""
    return [
        (torch.randn(size, channels, side, side), torch.randint(0, 10, (size,)))
        for _ in range(number)
    ]


def words(number: int = 3, size: int = 4, length: int = 12, known: int = 61) -> list[Batch]:
    """Return random tokens; 0 does not appear."""
    return [(torch.randint(1, known, (size, length)),) for _ in range(number)]


def adam(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    """Return the optimizer that most of them use."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3, **options)


# -- a tower of linear layers --------------------------------------------------------------------


class Tower(nn.Module):
    """A multilayer perceptron with layer norm and dropout."""

    def __init__(self, size: int = 64) -> None:
        super().__init__()
        self.fc1, self.act1, self.norm1 = nn.Linear(32, size), nn.GELU(), nn.LayerNorm(size)
        self.drop = nn.Dropout(0.1)
        self.fc2, self.act2, self.norm2 = nn.Linear(size, size), nn.SiLU(), nn.LayerNorm(size)
        self.fc3, self.act3 = nn.Linear(size, size), nn.ReLU()
        self.head = nn.Linear(size, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.drop(self.norm1(self.act1(self.fc1(x))))
        x = self.norm2(self.act2(self.fc2(x)))
        return self.head(self.act3(self.fc3(x)))


def tower() -> Program:
    """Return a perceptron."""
    model = Tower()
    batches = [(torch.randn(24, 32), torch.randint(0, 10, (24,))) for _ in range(3)]
    return Program(model, labelled, batches, adam(model))


# -- convolutions --------------------------------------------------------------------------------


class Residual(nn.Module):
    """Two convolutions with batch norm, around which the input goes too."""

    def __init__(self, into: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, out, 3, stride, padding=1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(out), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.down = nn.Conv2d(into, out, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Add what the convolutions find."""
        found = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(found + self.down(x))


class ResNet(nn.Module):
    """A residual network of six convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.relu, self.pool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)
        self.layers = nn.Sequential(Residual(8, 8), Residual(8, 16, 2), Residual(16, 16))
        self.mean, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.layers(self.pool(self.relu(self.bn(self.stem(x)))))
        return self.head(self.mean(x).flatten(1))


def resnet() -> Program:
    """Return a residual network with batch norm."""
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    return Program(model, labelled, images(), optimizer)


# -- transformers --------------------------------------------------------------------------------


class Encoder(nn.Module):
    """torch's own encoder, over tokens of which some are padding."""

    def __init__(self, size: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(61, size, padding_idx=0)
        self.register_buffer("places", self._places(32, size))
        layer = nn.TransformerEncoderLayer(size, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth)
        self.head = nn.Linear(size, 61)

    @staticmethod
    def _places(length: int, size: int) -> Tensor:
        angle = torch.arange(length)[:, None] / 10_000 ** (torch.arange(0, size, 2) / size)
        return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits."""
        x = self.embed(ids) * math.sqrt(self.embed.embedding_dim) + self.places[: ids.shape[1]]
        return self.head(self.encoder(x, src_key_padding_mask=ids == 0))


def encoder() -> Program:
    """Return torch's encoder."""
    model = Encoder()
    batches = words()
    for (ids,) in batches:
        ids[1, 8:], ids[3, 10:] = 0, 0
    return Program(model, copied, batches, adam(model))


def gpt() -> Program:
    """Return a small GPT-2 of transformers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=61,
        n_positions=32,
        n_embd=48,
        n_layer=3,
        n_head=4,
        attn_implementation="eager",
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    return Program(model.train(), causal, words(), adam(model))


class Block(nn.Module):
    """Attention in its own code, and a feed-forward part."""

    def __init__(self, size: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.scale = heads, (size // heads) ** -0.5
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.q, self.k, self.v, self.o = (nn.Linear(size, size) for _ in range(4))
        self.up, self.act = nn.Linear(size, 2 * size), nn.GELU()
        self.down = nn.Linear(2 * size, size)

    def split(self, x: Tensor) -> Tensor:
        """Give each head its own."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend to what came before."""
        length = q.shape[-2]
        mask = torch.ones(length, length, dtype=torch.bool).tril().to(q.device)
        scores = (q @ k.transpose(-1, -2) * self.scale).masked_fill(~mask, -math.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then the rest; each is added."""
        h = self.norm1(x)
        x = x + self.o(self.attention(*(self.split(f(h)) for f in (self.q, self.k, self.v))))
        return x + self.down(self.act(self.up(self.norm2(x))))


class Decoder(nn.Module):
    """A causal transformer by hand."""

    def __init__(self, size: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(61, size), nn.Embedding(32, size)
        self.layers = nn.ModuleList(Block(size) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, 61)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits."""
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1]).to(ids.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def decoder() -> Program:
    """Return a transformer by hand."""
    model = Decoder()
    return Program(model, copied, words(), adam(model))


def deep() -> Program:
    """Return one of 24 layers."""
    model = Decoder(depth=24)
    return Program(model, copied, words(number=6), adam(model), steps=3)


# -- recurrent, in the shape of a U, and others --------------------------------------------------


class Tagger(nn.Module):
    """An LSTM over tokens, normalised and projected."""

    def __init__(self, size: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(61, size)
        self.lstm = nn.LSTM(size, size, num_layers=2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, 61)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits."""
        return self.head(self.norm(self.lstm(self.embed(ids))[0]))


def lstm() -> Program:
    """Return an LSTM."""
    model = Tagger()
    return Program(model, copied, words(), adam(model))


class Double(nn.Sequential):
    """Two convolutions."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__(
            nn.Conv2d(into, out, 3, padding=1), nn.GroupNorm(2, out), nn.SiLU(),
            nn.Conv2d(out, out, 3, padding=1), nn.SiLU(),
        )  # fmt: skip


class UNet(nn.Module):
    """Down, through the middle, up again, with what was seen on the way down beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.middle = Double(3, 8), Double(8, 16), Double(16, 16)
        self.pool = nn.MaxPool2d(2)
        self.up2 = nn.ConvTranspose2d(16, 16, 2, stride=2)
        self.right2 = Double(32, 8)
        self.up1 = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.right1, self.last = Double(16, 8), nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return an image of the same size."""
        first = self.down1(x)
        second = self.down2(self.pool(first))
        x = self.middle(self.pool(second))
        x = self.right2(torch.cat([second, self.up2(x)], 1))
        return self.last(self.right1(torch.cat([first, self.up1(x)], 1)))


def unet() -> Program:
    """Return a U-Net."""
    model = UNet()

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return F.mse_loss(model(batch[0]), batch[0].flip(-1))

    return Program(model, loss, images(size=4), adam(model))


class Adversaries(nn.Module):
    """A generator and what judges it."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32), nn.Tanh()
        )
        self.critic = nn.Sequential(
            nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 32), nn.LeakyReLU(0.2),
            nn.Linear(32, 1),
        )  # fmt: skip

    def forward(self, noise: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the critic says of what was made, and of what is real."""
        return self.critic(self.generator(noise)), self.critic(real)


def gan() -> Program:
    """Return a generator and its critic, trained on one loss."""
    model = Adversaries()

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        fake, real = model(*batch)
        return F.softplus(fake).mean() + F.softplus(-real).mean()

    batches = [(torch.randn(16, 16), torch.randn(16, 32)) for _ in range(3)]
    return Program(model, loss, batches, torch.optim.Adam(model.parameters(), 2e-4, (0.5, 0.999)))


class Expert(nn.Module):
    """One of several perceptrons."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(size, 48), nn.GELU(), nn.Linear(48, size)

    def forward(self, x: Tensor) -> Tensor:
        """Return what it makes of its tokens."""
        return self.down(self.act(self.up(x)))


class Mixture(nn.Module):
    """Each token goes to two of four experts."""

    def __init__(self, size: int, count: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(size, count, bias=False)
        self.experts = nn.ModuleList(Expert(size) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        """Return the weighted sum of what the experts say."""
        flat = x.flatten(0, -2)
        weights, chosen = self.router(flat).softmax(-1).topk(2)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            out = out.index_add(0, token, expert(flat[token]) * weights[token, place, None])
        return out.view_as(x)


class Sparse(nn.Module):
    """Tokens through two mixtures of experts."""

    def __init__(self, size: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(61, size)
        self.norm1, self.moe1 = nn.LayerNorm(size), Mixture(size)
        self.norm2, self.moe2 = nn.LayerNorm(size), Mixture(size)
        self.head = nn.Linear(size, 61)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits."""
        x = self.embed(ids)
        x = x + self.moe1(self.norm1(x))
        return self.head(x + self.moe2(self.norm2(x)))


def moe() -> Program:
    """Return a mixture of experts."""
    model = Sparse()
    return Program(model, copied, words(), adam(model))
