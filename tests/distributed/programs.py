"""What each process of a distributed test does. Nothing here is asserted; the tests do that.

A program trains a small model twice, without and with a watch, and gives back what it saw.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import probe_nb as probe
from tests.distributed.collectives import collectives
from tests.distributed.jobs import JOBS
from tests.distributed.monitored import monitored
from tests.models import no_faults

STEPS, MICRO_STEPS = 2, 2


class Net(nn.Module):
    """A few layers, one of them nested, one with buffers, one that only some processes use."""

    def __init__(self, *, optional: bool = False, norm: type[nn.Module] = nn.BatchNorm1d) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 6)
        self.norm = norm(6)
        self.block = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.head = nn.Linear(6, 2)
        if optional:
            self.extra = nn.Linear(6, 6)

    def forward(self, x: Tensor, *, extra: bool = False) -> Tensor:
        y = self.block(self.norm(self.stem(x)))
        return self.head(self.extra(y) if extra else y)


def net(**options: Any) -> Net:
    torch.manual_seed(0)
    return Net(**options)


def batch(rank: int, step: int, micro_step: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * rank + 10 * step + micro_step)
    return torch.randn(5, 4, generator=generator)


def loss_of(output: Tensor) -> Tensor:
    return output.square().sum()


@dataclass
class Seen:
    """What one process saw of one training."""

    losses: list[Tensor] = field(default_factory=list)
    states: list[dict[str, Tensor]] = field(default_factory=list)
    """Parameters and buffers, as this process holds them, before each micro step and at the end."""
    gradients: list[dict[str, Tensor | None]] = field(default_factory=list)
    """`.grad`, as this process holds it, after each micro step."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


def mine(t: Tensor | None) -> Tensor | None:
    """Return a copy of what this process holds of a tensor."""
    if t is None:
        return None
    return (t.to_local() if isinstance(t, DTensor) else t).detach().clone()


def state(model: nn.Module) -> dict[str, Tensor]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: mine(t) for name, t in named}


@dataclass
class Program:
    """How a model is wrapped, fed and watched."""

    wrap: Callable[[nn.Module], nn.Module]
    feed: Callable[[int], dict[str, Any]] = lambda _: {}
    model: Callable[[], nn.Module] = net
    options: Callable[[int], dict[str, Any] | None] = lambda _: {}
    """What a process passes to `watch`; None: it does not watch."""
    no_sync: bool = False
    data: Callable[[int, int, int], Tensor] = batch

    def train(self, *, watch: bool) -> Seen:
        rank, seen = dist.get_rank(), Seen()
        model = self.wrap(self.model())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = self.options(rank) if watch else None
        if options is None:
            self._steps(model, optimizer, seen)
            return seen
        with no_faults(), probe.watch(model, optimizer=optimizer, live=False, **options) as run:
            self._steps(model, optimizer, seen)
        with tempfile.TemporaryDirectory() as folder:
            loaded = probe.load(run.save(Path(folder) / "run.parquet"))
        seen.rows = loaded.df.to_dict("records")
        seen.facts = {"rank": loaded.info.rank, "ended": loaded.info.ended}
        seen.facts["coverage"] = loaded.info.unobserved
        return seen

    def _steps(self, model: Any, optimizer: Any, seen: Seen) -> None:
        rank = dist.get_rank()
        for step in range(STEPS):
            for micro_step in range(MICRO_STEPS):
                seen.states.append(state(model))
                quiet = self.no_sync and micro_step < MICRO_STEPS - 1
                with _no_sync(model) if quiet else contextlib.nullcontext():
                    loss = loss_of(model(self.data(rank, step, micro_step), **self.feed(rank)))
                    loss.backward()
                seen.losses.append(loss.detach().clone())
                grads = {name: mine(p.grad) for name, p in model.named_parameters()}
                seen.gradients.append(grads)
            optimizer.step()
            optimizer.zero_grad()
        seen.states.append(state(model))

    def __call__(self) -> dict[str, Seen]:
        return {"bare": self.train(watch=False), "watched": self.train(watch=True)}


@contextlib.contextmanager
def _no_sync(model: Any) -> Any:
    if hasattr(model, "no_sync"):
        with model.no_sync():
            yield
    else:
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)


# -- DDP --------------------------------------------------------------------------------------------


def ddp(**options: Any) -> Callable[[nn.Module], nn.Module]:
    return lambda model: DistributedDataParallel(model, **options)


def halving_ddp(model: nn.Module) -> nn.Module:
    """Wrap with a communication hook of the user's: half of the mean."""
    wrapped = DistributedDataParallel(model)

    def halve(_, bucket):  # torch reads the annotations of a hook, and not as text
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        scale = 0.5 / dist.get_world_size()
        return work.get_future().then(lambda done: done.value()[0] * scale)

    wrapped.register_comm_hook(None, halve)
    return wrapped


# -- FSDP and tensor parallel -----------------------------------------------------------------------


def fsdp2(*, nested: bool = True, **options: Any) -> Callable[[nn.Module], nn.Module]:
    def wrap(model: Any) -> nn.Module:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        if nested:
            fully_shard(model.block, mesh=mesh, **options)
        return fully_shard(model, mesh=mesh, **options)

    return wrap


def fsdp1(*, nested: bool = True, **options: Any) -> Callable[[nn.Module], nn.Module]:
    def wrap(model: Any) -> nn.Module:
        device = torch.device("cpu")
        if nested:
            model.block = FullyShardedDataParallel(model.block, device_id=device, **options)
        return FullyShardedDataParallel(model, device_id=device, **options)

    return wrap


class Mlp(nn.Module):
    """Two layers that are split over the processes."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))


def mlp() -> Mlp:
    torch.manual_seed(0)
    return Mlp()


def tensor_parallel(*, local: bool) -> Callable[[nn.Module], nn.Module]:
    def wrap(model: nn.Module) -> nn.Module:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        up = ColwiseParallel(use_local_output=local)
        down = RowwiseParallel(use_local_output=True)
        return parallelize_module(model, mesh, {"up": up, "down": down})

    return wrap


def same_batch(_: int, step: int, micro_step: int) -> Tensor:
    return batch(0, step, micro_step)


# -- watches that differ ------------------------------------------------------------------------------


def only_rank_0(rank: int) -> dict[str, Any] | None:
    return {} if rank == 0 else None


def own_step(rank: int) -> dict[str, Any]:
    return {"steps": str(rank), "roles": ["output", "param", "param_grad"]}


def parameters_only(_: int) -> dict[str, Any]:
    return {"roles": ["param_grad"]}


def outlives_the_group() -> dict[str, Any]:
    """Destroy the process group inside the watch; must be the last program of its process."""
    model = DistributedDataParallel(net())
    with no_faults(), probe.watch(model, live=False) as run:
        loss_of(model(batch(dist.get_rank(), 0, 0))).backward()
        rank = dist.get_rank()
        dist.destroy_process_group()
        model.module(batch(0, 0, 0))
    return {"ranks": run.df["rank"].unique().tolist(), "rank": rank, "ended": run.info.ended}


PROGRAMS: dict[str, Callable[[], Any]] = {
    "ddp": Program(ddp()),
    "ddp bucket views": Program(ddp(gradient_as_bucket_view=True)),
    "ddp static graph": Program(ddp(static_graph=True)),
    "ddp no_sync": Program(ddp(), no_sync=True),
    "ddp no_sync bucket views": Program(ddp(gradient_as_bucket_view=True), no_sync=True),
    "ddp parameters only": Program(ddp(), options=parameters_only),
    "ddp hook": Program(halving_ddp),
    "ddp unused": Program(
        ddp(find_unused_parameters=True),
        feed=lambda rank: {"extra": rank == 1},
        model=lambda: net(optional=True),
    ),
    "fsdp2": Program(fsdp2()),
    "fsdp2 flat": Program(fsdp2(nested=False)),
    "fsdp2 kept": Program(fsdp2(reshard_after_forward=False)),
    "fsdp2 no_sync": Program(fsdp2(), no_sync=True),
    "fsdp2 parameters only": Program(fsdp2(), options=parameters_only),
    "fsdp2 mixed": Program(
        fsdp2(
            mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        ),
        model=lambda: net(norm=nn.LayerNorm),
    ),
    "fsdp2 offload": Program(fsdp2(offload_policy=CPUOffloadPolicy(pin_memory=False))),
    "fsdp1": Program(fsdp1(use_orig_params=False)),
    "fsdp1 orig": Program(fsdp1(use_orig_params=True)),
    "fsdp1 orig no_sync": Program(fsdp1(use_orig_params=True), no_sync=True),
    "fsdp1 whole": Program(
        fsdp1(use_orig_params=True, sharding_strategy=ShardingStrategy.NO_SHARD)
    ),
    "tensor parallel": Program(tensor_parallel(local=True), model=mlp, data=same_batch),
    "tensor parallel dtensor": Program(tensor_parallel(local=False), model=mlp, data=same_batch),
    "ddp only rank 0": Program(ddp(), options=only_rank_0),
    "fsdp2 only rank 0": Program(fsdp2(), options=only_rank_0),
    "ddp own steps": Program(ddp(), options=own_step),
    "fsdp2 own steps": Program(fsdp2(), options=own_step),
    "tensor parallel only rank 0": Program(
        tensor_parallel(local=False), model=mlp, data=same_batch, options=only_rank_0
    ),
    "group destroyed": outlives_the_group,
    "collectives": collectives,
    **JOBS,
    "monitored": monitored,
}
