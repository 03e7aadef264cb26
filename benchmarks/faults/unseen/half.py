"""Held out: do not tune rules to it. Faults of half precision."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.faults.blocks import digits, mlp
from benchmarks.faults.case import UNSEEN, Program
from benchmarks.faults.proofs import born, finite, only_zeros


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = RMSNorm(width)
        self.ffn = mlp(width, 2 * width, width, act=nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.ffn(self.norm(x))


class Stack(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, width, padding_idx=0)
        self.layers = nn.ModuleList(Layer(width) for _ in range(3))
        self.head = nn.Linear(width, 30)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def _infer(model: nn.Module, prompts: Tensor) -> Program:
    def step(number: int) -> None:
        with torch.inference_mode():
            model(prompts[number])

    return Program(model, step, None, len(prompts))


@UNSEEN.fault(
    "float16: an eps of 1e-8 is 0, and a padded position is 0/0",
    at="layers.0.norm",
    kinds="nonfinite",
    proof=born("layers.0.norm"),
)
def eps_is_zero_in_float16(*, broken: bool) -> Program:
    model = Stack().half().eval()
    model.layers[0].norm.eps = 1e-8 if broken else 1e-4
    prompts = torch.randint(1, 30, (8, 4, 10))
    prompts[4:, :, 7:] = 0
    return _infer(model, prompts)


@UNSEEN.fault(
    "float16: the square in a norm overflows, so everything is divided by infinity",
    at="layers.1.norm",
    kinds=("dead", "overflow", "nonfinite"),
    proof=lambda t: finite()(t) and only_zeros("layers.1.norm", 0.99)(t),
)
def square_overflows_in_norm(*, broken: bool) -> Program:
    model = Stack().half().eval()
    if broken:
        model.layers[0].ffn[2].weight.data *= 3e3
    prompts = torch.randint(1, 30, (8, 4, 10))
    return _infer(model, prompts)


@UNSEEN.fault(
    "float16: one down projection of a Llama overflows",
    at="model.layers.2.mlp.down_proj",
    kinds="nonfinite",
    proof=born("model.layers.2.mlp.down_proj"),
)
def llama_overflows_in_float16(*, broken: bool) -> Program:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    model = LlamaForCausalLM(config).half().eval()
    if broken:
        mlp_ = model.model.layers[2].mlp
        for layer in (mlp_.gate_proj, mlp_.up_proj):
            layer.weight.data[:8] *= 200
        mlp_.down_proj.weight.data[:, :8] *= 10000
    prompts = torch.randint(0, 50, (6, 2, 12))

    def step(number: int) -> None:
        with torch.no_grad():
            model(input_ids=prompts[number], use_cache=False)

    return Program(model, step, None, 6)


class HalfAdapter(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.down = nn.Linear(32, 8, dtype=dtype)
        self.up = nn.Linear(8, 32, dtype=dtype)
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(torch.relu(self.down(x.to(self.dtype)))).float()


@UNSEEN.fault(
    "Adam steps float16 parameters: eps is 0 there, and so is the square of a small gradient",
    at=("adapter", "adapter.*"),
    kinds="nonfinite",
    proof=lambda t: (
        (first := t.first_bad()) is not None
        and first.role == "param"
        and first.module.startswith("adapter.")
    ),
)
def adam_in_float16(*, broken: bool) -> Program:
    model = nn.Sequential()
    model.add_module("flatten", nn.Flatten())
    model.add_module("stem", nn.Linear(64, 32))
    model.add_module("adapter", HalfAdapter(torch.float16 if broken else torch.float32))
    model.add_module("head", nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    batches = digits()

    def step(number: int) -> Tensor:
        x, y = batches[number]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return Program(model, step, optimizer)


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.SiLU())
        self.mid = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.SiLU())
        self.up = nn.ConvTranspose2d(8, 1, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.down(x)
        return self.up(h + self.mid(h))


@UNSEEN.fault(
    "float16 without a loss scale: a loss divided by the pixels of the whole data set underflows",
    at=("", "up"),
    kinds=("underflow", "vanishing", "dead"),
    proof=lambda t: finite()(t) and min(s.zeros for s in t.rows("grad_output", "up")) == 1.0,
)
def gradients_underflow(*, broken: bool) -> Program:
    model = Denoiser()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    batches = digits()

    def step(number: int) -> Tensor:
        x, _ = batches[number]
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(x + 0.1 * torch.randn_like(x))
        loss = F.mse_loss(out.float(), x, reduction="sum")
        optimizer.zero_grad()
        loss = loss / (64 * 64 * 1e7 if broken else 64)
        loss.backward()
        optimizer.step()
        return loss

    return Program(model, step, optimizer)
