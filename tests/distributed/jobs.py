"""Jobs of several processes of which the runs are brought together. Nothing is asserted here.

Each job is sound or has one fault; rank 0 gives back what was said of it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import probe_nb as probe
from tests.models import no_faults

STEPS = 4


class Poison(nn.Module):
    """Gives NaN out when it is told to."""

    bad = False

    def forward(self, x: Tensor) -> Tensor:
        return x * float("nan") if self.bad else x


def net() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1))
    return nn.Sequential(*layers, Poison())


def batch(rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(8, 4, generator=generator)


def ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def alone_from(step: int, rank: int) -> Callable[[nn.Module], nn.Module]:
    """Wrap so that one rank takes its own gradients from a step on, though it goes on talking."""

    def wrap(model: nn.Module) -> nn.Module:
        wrapped = DistributedDataParallel(model)
        steps = iter(range(STEPS))

        def hook(_, bucket):  # torch reads the annotations of a hook, and not as text
            own, now = bucket.buffer().clone(), next(steps)
            work = dist.all_reduce(bucket.buffer(), async_op=True)
            left = dist.get_rank() == rank and now >= step
            world = dist.get_world_size()
            return work.get_future().then(lambda done: own if left else done.value()[0] / world)

        wrapped.register_comm_hook(None, hook)
        return wrapped

    return wrap


def beside(model: nn.Module) -> nn.Module:
    """Wrap, and hand out what is inside: nothing is averaged."""
    return DistributedDataParallel(model).module


def own_start(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        model[3].bias += float(dist.get_rank() == 1)
    return model


def sharded(model: nn.Module) -> nn.Module:
    return fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))


def train(
    wrap: Callable[[nn.Module], nn.Module] = ddp,
    data: Callable[[int, int], Tensor] = batch,
    rate: Callable[[int], float] = lambda _: 0.1,
    weight: Callable[[int], float] = lambda _: 1.0,
    nan: Callable[[int, int], bool] = lambda *_: False,
    **options: Any,
) -> probe.Run:
    rank, bare = dist.get_rank(), net()
    poison = bare[4]
    model = wrap(bare)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate(rank))
    with no_faults(), probe.watch(model, optimizer=optimizer, live=False, **options) as run:
        for step in range(STEPS):
            poison.bad = nan(rank, step)
            (weight(rank) * model(data(rank, step)).square().sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
    return run


def shared_folder() -> Iterator[Path]:
    """Yield a folder that all processes have."""
    given = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(given, src=0)
    yield Path(str(given[0]))
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(str(given[0]))


def plain(run: probe.Run) -> list[dict[str, Any]]:
    frame = run.df.astype({"module": str, "role": str, "leaf": str, "direction": str})
    names = ["step", "rank", "order", "module", "direction", "role", "leaf", "mean", "l2", "max"]
    return frame[names].to_dict("records")


def saved_and_gathered() -> dict[str, Any]:
    """Save, load, and gather the runs of one job."""
    run = train(keep="0")
    found: dict[str, Any] = {"own": plain(run), "world": run.info.world}
    for folder in shared_folder():
        found["path"] = run.save(folder / "job").name
        dist.barrier()
        gathered = probe.gather(run)
        missing = probe.gather(run if dist.get_rank() else None)
        found["nothing"] = gathered is None
        if gathered is not None:
            loaded = probe.load(folder / "job")
            found |= {
                "loaded": plain(loaded),
                "equal": loaded.df.equals(gathered.df),
                "kept": [gathered.tensor("0", step=2, rank=r) for r in (0, 1)],
                "kept loaded": [loaded.tensor("0", step=2, rank=r) for r in (0, 1)],
                "notices": gathered.info.notices,
                "missing": (missing.info.notices, set(missing.df["rank"])),
            }
    return found


def said(**job: Any) -> Callable[[], list[tuple[Any, ...]]]:
    """Return a program that gives what `compare_ranks` says of a job."""

    def program() -> list[tuple[Any, ...]]:
        gathered = probe.gather(train(**job))
        if gathered is None:
            return []
        frame = probe.compare_ranks(gathered).df
        names = ["severity", "kind", "ranks", "step", "sentence", "detail"]
        first = gathered.first_nonfinite()
        facts = None if first is None else (first.rank, first.step, first.module)
        return [*frame[names].itertuples(index=False, name=None), facts]

    return program


JOBS: dict[str, Callable[[], Any]] = {
    "job together": saved_and_gathered,
    "job sound": said(),
    "job alone": said(wrap=alone_from(2, 1)),
    "job beside": said(wrap=beside),
    "job start": said(wrap=own_start),
    "job rate": said(rate=lambda rank: 0.1 if rank else 0.2),
    "job same": said(data=lambda _, step: batch(0, step)),
    "job large": said(weight=lambda rank: 1e4 if rank else 1.0),
    "job nan": said(nan=lambda rank, step: rank == 1 and step == 2),
    "job sharded": said(wrap=sharded),
}
