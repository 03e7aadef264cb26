"""A seeded program of many functions of torch, in all the ways in which they are imported and called."""

# ruff: noqa: B015, B018, PLR0915 - that it is called matters, not what comes of it

from __future__ import annotations

import math
import operator

import torch
import torch as th
import torch.nn.functional
import torch.nn.functional as F
from torch import matmul, nn, relu, sigmoid
from torch import nn as layers
from torch.nn import functional
from torch.nn.functional import gelu, linear
from torch.nn.functional import softmax as soft


def of_functional(x, image, words):
    """Call functions of `torch.nn.functional`."""
    weight, square = torch.ones(5, 4), torch.full((3, 4), 0.5)
    labels = torch.tensor([0, 3, 1])
    F.relu(x)
    torch.nn.functional.relu6(x)
    functional.leaky_relu(x, 0.1)
    gelu(x)
    linear(x, weight)
    soft(x, dim=-1)
    F.log_softmax(x, dim=1)
    F.softplus(x)
    F.softsign(x)
    F.softmin(x, dim=0)
    F.tanhshrink(x)
    F.hardtanh(x)
    F.hardswish(x)
    F.hardsigmoid(x)
    F.hardshrink(x)
    F.softshrink(x)
    F.elu(x)
    F.selu(x)
    F.celu(x)
    F.silu(x)
    F.mish(x)
    F.glu(x)
    F.logsigmoid(x)
    F.prelu(x, torch.tensor([0.25]))
    F.rrelu(x)
    F.threshold(x, 0.1, 0.0)
    F.sigmoid(x)
    F.tanh(x)
    F.normalize(x, dim=1)
    F.dropout(x, 0.5)
    F.alpha_dropout(x, 0.5)
    F.layer_norm(x, (4,))
    F.group_norm(image, 2)
    F.batch_norm(image, None, None, training=True)
    F.instance_norm(image)
    F.local_response_norm(image, 2)
    F.conv2d(image, torch.ones(3, 2, 3, 3))
    F.conv1d(image[0], torch.ones(1, 6, 2))
    F.conv_transpose2d(image, torch.ones(2, 1, 2, 2))
    F.max_pool2d(image, 2)
    F.avg_pool2d(image, 2)
    F.adaptive_avg_pool2d(image, 2)
    F.adaptive_max_pool2d(image, 2)
    F.lp_pool2d(image.abs(), 2.0, 2)
    F.interpolate(image, scale_factor=2)
    F.pad(image, (1, 1))
    F.unfold(image, 2)
    F.pixel_shuffle(torch.ones(1, 4, 2, 2), 2)
    F.grid_sample(image, torch.zeros(1, 2, 2, 2), align_corners=False)
    F.affine_grid(torch.zeros(1, 2, 3), (1, 1, 2, 2), align_corners=False)
    F.embedding(words, weight)
    F.embedding_bag(words, weight, torch.tensor([0]))
    F.one_hot(words, 6)
    F.cross_entropy(x, labels)
    F.nll_loss(x.log_softmax(1), labels)
    F.mse_loss(x, square)
    F.l1_loss(x, square)
    F.smooth_l1_loss(x, square)
    F.huber_loss(x, square)
    F.kl_div(x.log_softmax(1), square, reduction="sum")
    F.binary_cross_entropy(sigmoid(x), square)
    F.binary_cross_entropy_with_logits(x, square)
    F.cosine_similarity(x, square)
    F.cosine_embedding_loss(x, square, torch.ones(3))
    F.margin_ranking_loss(x[0], square[0], torch.ones(4))
    F.triplet_margin_loss(x, square, -square)
    F.bilinear(x, x, torch.ones(2, 4, 4))
    F.pairwise_distance(x, square)
    F.scaled_dot_product_attention(x[None], x[None], x[None])


def of_torch(x, square):
    """Call functions of `torch`."""
    relu(x)
    matmul(x, square)
    th.mm(x, square)
    torch.bmm(x[None], square[None])
    torch.addmm(x, x, square)
    torch.einsum("ij,jk->ik", x, square)
    torch.tensordot(x, square, 1)
    torch.dot(x[0], x[1])
    torch.outer(x[0], x[1])
    torch.add(x, 1)
    torch.sub(x, 1)
    torch.mul(x, x)
    torch.div(x, 2)
    torch.pow(x, 2)
    torch.exp(x)
    torch.log(x.abs() + 1)
    torch.log1p(x.abs())
    torch.sqrt(x.abs())
    torch.rsqrt(x.abs() + 1)
    torch.sin(x)
    torch.cos(x)
    torch.tan(x)
    torch.atan2(x, x + 2)
    torch.tanh(x)
    torch.sigmoid(x)
    torch.erf(x)
    torch.abs(x)
    torch.neg(x)
    torch.sign(x)
    torch.floor(x)
    torch.ceil(x)
    torch.round(x)
    torch.clamp(x, -1, 1)
    torch.maximum(x, -x)
    torch.minimum(x, -x)
    torch.where(x > 0, x, -x)
    torch.sum(x)
    torch.mean(x, dim=0)
    torch.var(x)
    torch.std(x)
    torch.prod(x)
    torch.max(x)
    torch.min(x, dim=1)
    torch.argmax(x)
    torch.topk(x, 2)
    torch.sort(x)
    torch.cumsum(x, 0)
    torch.cumprod(x, 0)
    torch.norm(x)
    torch.linalg.norm(x)
    torch.linalg.vector_norm(x)
    torch.fft.fft(x)
    torch.softmax(x, 1)
    torch.log_softmax(x, 1)
    torch.logsumexp(x, 1)
    torch.cat([x, x])
    torch.stack([x, x])
    torch.split(x, 2)
    torch.chunk(x, 2)
    torch.transpose(x, 0, 1)
    torch.permute(x, (1, 0))
    torch.reshape(x, (-1,))
    torch.flatten(x)
    torch.squeeze(x[None])
    torch.unsqueeze(x, 0)
    torch.gather(x, 0, torch.zeros(1, 4, dtype=torch.long))
    torch.index_select(x, 0, torch.tensor([0, 2]))
    torch.masked_select(x, x > 0)
    torch.triu(x)
    torch.tril(x)
    torch.diag(square)
    torch.flip(x, [0])
    torch.roll(x, 1)
    torch.repeat_interleave(x, 2)
    torch.isnan(x)
    torch.isfinite(x)
    torch.eq(x, x)
    torch.logical_not(x > 0)
    torch.bitwise_and(torch.tensor([3]), torch.tensor([1]))
    torch.zeros_like(x)
    torch.ones_like(x)
    torch.full((2,), 1.5)
    torch.arange(3)
    torch.add(x.detach(), 1, out=torch.empty(3, 4))
    torch.matmul(x.detach(), square.detach(), out=torch.empty(3, 4))
    torch.ops.aten.relu(x)


def of_tensors(x, square):
    """Call methods and operators."""
    x.add(1)
    x.sub(1)
    x.mul(2)
    x.div(2)
    x.pow(2)
    x.exp()
    x.sum()
    x.mean(1)
    x.matmul(square)
    x.softmax(1)
    x.relu()
    x.tanh()
    x.sigmoid()
    x.view(4, 3)
    x.reshape(-1)
    x.transpose(0, 1)
    x.permute(1, 0)
    x.contiguous()
    x.clone()
    x.detach()
    x.to(torch.float64)
    x.float()
    x.masked_fill(x > 0, 0.0)
    x.expand(2, 3, 4)
    x.squeeze()
    x.unsqueeze(0)
    x.flatten()
    x.max(1)
    x.argmax()
    x.clamp(min=0)
    x.norm()
    x.type_as(x)
    x + 1
    1 + x
    x - 1
    1 - x
    x * 2
    2 * x
    x / 2
    x @ square
    x**2
    x > 0
    x >= 0
    x < 1
    x <= 1
    x == 1
    x != 1
    x % 2
    x // 2
    ~(x > 0)
    (x > 0) & (x < 1)
    (x > 0) | (x < 1)
    (x > 0) ^ (x < 1)
    abs(x)
    math.tau * x
    sum(x)
    own = x.detach().clone()
    own += 1
    own -= 1
    own *= 2
    own.add_(1)
    own.relu_()
    own.zero_()
    own.copy_(x.detach())
    own.masked_fill_(own > 0, 1.0)
    torch.relu_(own)
    F.relu(own, inplace=True)
    operator.matmul(own, square.detach())


class Net(layers.Module):
    """Functions called by layers."""

    def __init__(self):
        super().__init__()
        self.fc, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.drop, self.act = nn.Dropout(0.1), nn.GELU()

    def forward(self, x):
        return self.drop(self.act(self.norm(self.fc(x)))) + x


def program():
    """Run everything, forward and backward."""
    torch.manual_seed(0)
    x = torch.randn(3, 4, requires_grad=True)
    square = torch.randn(4, 4, requires_grad=True)
    image = torch.randn(1, 2, 6, 6)
    of_functional(x, image, torch.tensor([0, 2, 4]))
    of_torch(x, square)
    of_tensors(x, square)
    net = Net()
    F.cross_entropy(net(x), torch.tensor([0, 1, 2])).backward()
