"""Other architectures than the rules were tried on."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.divergences.case import Batch, Program
from benchmarks.divergences.models import adam, causal, copied, images, labelled, words


def llama() -> Program:
    """Return a small Llama of transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attn_implementation="eager",
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = LlamaForCausalLM(config)
    return Program(model.train(), causal, words(), adam(model))


class Twins(nn.Module):
    """One encoder that looks at both of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(20, 48), nn.ReLU(), nn.BatchNorm1d(48), nn.Linear(48, 16)
        )
        self.projection = nn.Linear(16, 8, bias=False)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Return how like they are."""
        left, right = (self.projection(self.encoder(x)) for x in (a, b))
        return F.cosine_similarity(left, right, dim=-1)


def siamese() -> Program:
    """Return a shared encoder."""
    model = Twins()

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return (1 - model(*batch)).square().mean()

    batches = [(torch.randn(16, 20), torch.randn(16, 20)) for _ in range(3)]
    return Program(model, loss, batches, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))


class Convolved(nn.Module):
    """Each node is told of its neighbours' mean."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.own, self.other = nn.Linear(into, out), nn.Linear(into, out, bias=False)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Return the new values of all nodes."""
        total = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
        count = torch.bincount(edges[1], minlength=len(x)).clamp(min=1)
        return self.own(x) + self.other(total / count[:, None])


class Graph(nn.Module):
    """Two graph convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.second = Convolved(12, 32), nn.ELU(), Convolved(32, 16)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 10)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Return logits of every node."""
        x = self.act(self.first(x, edges))
        return self.head(self.norm(self.second(x, edges)))


def graph() -> Program:
    """Return a graph network."""
    model = Graph()

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch[0], batch[1]), batch[2])

    batches = [
        (torch.randn(40, 12), torch.randint(0, 40, (2, 120)), torch.randint(0, 10, (40,)))
        for _ in range(3)
    ]
    return Program(model, loss, batches, adam(model))


class Timed(nn.Module):
    """A depthwise block that is told the time."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(size, size, 5, padding=2, groups=size)
        self.norm, self.time = nn.GroupNorm(1, size), nn.Linear(16, size)
        self.up, self.act = nn.Conv2d(size, 2 * size, 1), nn.GELU()
        self.down = nn.Conv2d(2 * size, size, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Return the block's input, and what it adds."""
        h = self.norm(self.depthwise(x)) + self.time(time)[..., None, None]
        return x + self.down(self.act(self.up(h)))


class Denoiser(nn.Module):
    """Predicts the noise in an image at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, 12, 3, padding=1), nn.ModuleList()
        for _ in range(3):
            self.blocks.append(Timed(12))
        self.embed, self.last = nn.Sequential(nn.Linear(1, 16), nn.SiLU()), nn.Conv2d(12, 3, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Return the noise."""
        t = self.embed(time[:, None])
        x = self.stem(x)
        for block in self.blocks:
            x = block(x, t)
        return self.last(x)


def denoiser() -> Program:
    """Return a diffusion model's network."""
    model = Denoiser()

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        noise, time = torch.randn_like(batch[0]), torch.rand(len(batch[0]))
        mixed = (1 - time)[:, None, None, None] * batch[0] + time[:, None, None, None] * noise
        return F.mse_loss(model(mixed, time), noise)

    return Program(model, loss, images(size=6, side=12), adam(model))


class Listener(nn.Module):
    """Dilated convolutions over a sequence, then a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(61, 20)
        self.wide = nn.ModuleList(
            nn.Conv1d(20, 20, 3, padding=2**n, dilation=2**n) for n in range(2)
        )
        self.act, self.gru = nn.Tanh(), nn.GRU(20, 24, batch_first=True, bidirectional=True)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(48, 61)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits."""
        x = self.embed(ids).transpose(1, 2)
        for layer in self.wide:
            x = x + self.act(layer(x))
        return self.head(self.drop(self.gru(x.transpose(1, 2))[0]))


def gru() -> Program:
    """Return convolutions and a GRU."""
    model = Listener()
    return Program(model, copied, words(), adam(model))


class Patches(nn.Module):
    """A vision transformer with a token for the class."""

    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, size, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, size) * 0.02)
        self.place = nn.Parameter(torch.randn(1, 17, size) * 0.02)
        self.layers = nn.ModuleList(Seen(size) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(size, eps=1e-6), nn.Linear(size, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.place
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x[:, 0]))


class Seen(nn.Module):
    """A block with torch's attention."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(size, eps=1e-6) for _ in range(2))
        self.attn = nn.MultiheadAttention(size, 4, batch_first=True)
        self.fc1, self.act, self.fc2 = nn.Linear(size, 64), nn.GELU(), nn.Linear(64, size)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then the rest; each is added."""
        h = self.norm1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


def vit() -> Program:
    """Return a vision transformer."""
    model = Patches()
    return Program(model, labelled, images(), adam(model))


class Variational(nn.Module):
    """An autoencoder that draws its code."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU(), nn.Flatten()
        )
        self.mean, self.spread = nn.Linear(128, 12), nn.Linear(128, 12)
        self.decoder = nn.Sequential(
            nn.Linear(12, 128), nn.ReLU(), nn.Unflatten(1, (8, 4, 4)),
            nn.ConvTranspose2d(8, 8, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(8, 3, 4, 2, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the image, and what its code was drawn from."""
        h = self.encoder(x)
        mean, spread = self.mean(h), self.spread(h)
        code = mean + torch.randn_like(mean) * (spread / 2).exp()
        return self.decoder(code), mean, spread


def vae() -> Program:
    """Return a variational autoencoder."""
    model = Variational()

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        found, mean, spread = model(batch[0])
        kept = (mean.square() + spread.exp() - 1 - spread).mean()
        return F.mse_loss(found, batch[0]) + 0.1 * kept

    return Program(model, loss, images(), adam(model))
