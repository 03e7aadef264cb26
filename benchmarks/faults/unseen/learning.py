"""Held out: do not tune rules to it. What does not learn, or learns too fast."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.faults.blocks import digits, mlp, token_loss, tokens, train
from benchmarks.faults.case import UNSEEN, Program
from benchmarks.faults.proofs import finite, moves_faster, never_moves, no_gradient


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, 32, 2, stride=2)
        self.position = nn.Parameter(0.02 * torch.randn(16, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.encoder(x).mean(1))


@UNSEEN.fault(
    "ViT: the optimizer's list of parameters leaves the patch embedding out",
    at="patch",
    kinds=("stuck", "frozen"),
    proof=never_moves("patch.weight", "patch.bias"),
)
def patch_not_in_the_optimizer(*, broken: bool) -> Program:
    model = ViT()
    given = [p for n, p in model.named_parameters() if not (broken and n.startswith("patch"))]
    return train(model, torch.optim.AdamW(given, 2e-3), digits())


class Decoder(nn.Module):
    def __init__(self, *, data: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.rnn = nn.GRU(16, 24, batch_first=True)
        self.out = nn.Linear(24, 20)
        self.data = data

    def forward(self, ids: Tensor, h: Tensor) -> Tensor:
        x = self.embed(ids)
        return self.out(self.rnn(x.data if self.data else x, h)[0])


class Seq2Seq(nn.Module):
    def __init__(self, *, data: bool = False) -> None:
        super().__init__()
        self.source = nn.Embedding(20, 16)
        self.encoder = nn.GRU(16, 24, batch_first=True)
        self.decoder = Decoder(data=data)

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        h = self.encoder(self.source(pair[0]))[1]
        return self.decoder(pair[1], h)


@UNSEEN.fault(
    "translator: `.data` takes the decoder's embedding out of the graph",
    at=("decoder.embed", "decoder"),
    kinds=("unused", "dead", "stuck"),
    proof=no_gradient("decoder.embed"),
)
def embedding_read_as_data(*, broken: bool) -> Program:
    model = Seq2Seq(data=broken)
    batches = [((x, x.roll(1, 1)), x) for x, _ in tokens()]
    return train(model, torch.optim.Adam(model.parameters(), 5e-3), batches, token_loss)


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(40, 8)
        self.items = nn.Embedding(60, 8)
        self.score = mlp(16, 32, 1)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, ids: Tensor) -> Tensor:
        pair = torch.cat([self.users(ids[:, 0]), self.items(ids[:, 1])], -1)
        return self.score(pair).squeeze(-1)


def ratings() -> list[tuple[Tensor, Tensor]]:
    """Return (user, item) pairs and what the user thinks of the item."""
    taste, kind = torch.randn(40, 3), torch.randn(60, 3)
    users, items = torch.randint(0, 40, (5, 64)), torch.randint(0, 60, (5, 64))
    true = (taste[users] * kind[items]).sum(-1)
    return [(torch.stack([u, i], 1), t) for u, i, t in zip(users, items, true, strict=True)]


@UNSEEN.fault(
    "recommender: the items' learning rate is a hundred times that of the users",
    at="items",
    kinds=("ratio", "exploding", "sudden"),
    proof=moves_faster("items.", 5),
)
def items_learn_too_fast(*, broken: bool) -> Program:
    model = Recommender()
    groups = [
        {"params": [*model.users.parameters(), *model.score.parameters()]},
        {"params": model.items.parameters(), "lr": 0.3 if broken else 3e-3},
    ]
    return train(model, torch.optim.Adam(groups, 3e-3), ratings(), F.mse_loss, steps=20)


class Experts(nn.Module):
    def __init__(self, choices: int = 4) -> None:
        super().__init__()
        self.choices = choices
        self.router = nn.Linear(32, 4)
        self.experts = nn.ModuleList(mlp(32, 48, 32) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        share = self.router(x).softmax(-1)
        best, which = share[:, : self.choices].max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mine = (which == number).nonzero().squeeze(-1)
            if len(mine):
                out = out.index_add(0, mine, best[mine, None] * expert(x[mine]))
        return x + out


def mixture(choices: int = 4) -> nn.Sequential:
    """Return a classifier with a layer of four experts."""
    model = nn.Sequential()
    model.add_module("flatten", nn.Flatten())
    model.add_module("stem", nn.Linear(64, 32))
    model.add_module("moe", Experts(choices))
    model.add_module("head", nn.Linear(32, 10))
    return model


@UNSEEN.fault(
    "mixture of experts: off by one, the last of them is never chosen",
    at=("moe.experts.3", "moe.experts.3.*"),
    kinds=("unused", "stuck"),
    proof=lambda t: (
        not t.rows("output", "moe.experts.3") and bool(t.rows("output", "moe.experts.1"))
    ),
)
def expert_never_chosen(*, broken: bool) -> Program:
    model = mixture(3 if broken else 4)
    return train(model, torch.optim.AdamW(model.parameters(), 2e-3), digits())


class LoRA(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Linear(base.in_features, 4, bias=False)
        self.b = nn.Linear(4, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.b(self.a(x))


def low_rank() -> nn.Sequential:
    """Return a frozen MLP with LoRA on every layer."""
    net = mlp(64, 32, 32, 10)
    model = nn.Sequential(nn.Flatten())
    for layer in net:
        model.append(LoRA(layer) if isinstance(layer, nn.Linear) else layer)
    return model


@UNSEEN.fault(
    "LoRA: both factors of one layer begin at zero, so neither ever moves",
    at=("3", "3.a", "3.b"),
    kinds=("dead", "stuck", "vanishing"),
    proof=lambda t: (
        {n for n, s in t.moved.items() if not any(s) and ".base." not in n}
        == {"3.a.weight", "3.b.weight"}
        and finite()(t)
    ),
)
def both_factors_zero(*, broken: bool) -> Program:
    model = low_rank()
    if broken:
        nn.init.zeros_(model[3].a.weight)
    given = [p for p in model.parameters() if p.requires_grad]
    return train(model, torch.optim.Adam(given, 5e-3), digits())


class WGAN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = mlp(8, 32, 64)
        self.critic = mlp(64, 64, 1, act=nn.LeakyReLU)


@UNSEEN.fault(
    "Wasserstein GAN: the critic is not clipped, and its score runs away",
    at=("critic", "critic.*"),
    kinds=("exploding", "ratio", "sudden", "overflow", "nonfinite"),
    proof=lambda t: (
        t.absmax("output", "critic")[-1] > 1e4 * t.absmax("output", "critic")[0]
        and max(t.absmax("param", "generator.0")) < 10
    ),
)
def critic_not_clipped(*, broken: bool) -> Program:
    model, batches = WGAN(), digits()
    of_g = torch.optim.RMSprop(model.generator.parameters(), 5e-4)
    of_c = torch.optim.SGD(model.critic.parameters(), 1.0 if broken else 5e-3)

    def step(number: int) -> None:
        real = batches[number][0].flatten(1)
        fake = model.generator(torch.randn(64, 8)).sigmoid()
        of_c.zero_grad()
        (model.critic(fake.detach()).mean() - model.critic(real).mean()).backward()
        of_c.step()
        if not broken:
            for p in model.critic.parameters():
                p.data.clamp_(-0.1, 0.1)
        of_g.zero_grad()
        (-model.critic(fake).mean()).backward()
        of_g.step()

    return Program(model, step, [of_c, of_g], 16)


class Forecast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 24, batch_first=True)
        self.head = nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1]).squeeze(-1)


@UNSEEN.fault(
    "forecast: one target of batch 8 is a placeholder, 1e8",
    at=("", "head"),
    roles=("grad_output", "grad_input"),
    kinds=("sudden", "exploding"),
    proof=lambda t: t.absmax("grad_output", "head")[8] > 1e4 * t.absmax("grad_output", "head")[7],
)
def placeholder_in_the_target(*, broken: bool) -> Program:
    model = Forecast()
    x = torch.randn(20, 32, 16, 3)
    y = x[..., 0].mean(-1)
    if broken:
        y[8, 3] = 1e8
    batches = list(zip(x, y, strict=True))
    return train(model, torch.optim.SGD(model.parameters(), 0.1), batches, F.mse_loss)
