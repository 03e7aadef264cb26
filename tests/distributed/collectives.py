"""Collectives at API level, in one process of several. Nothing is asserted here."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import P2POp, irecv, isend

import probe_nb as probe
from tests.models import no_faults

COLUMNS = ["api", "call", "role", "leaf", "status", "numel", "min", "max", "mean"]


def used(rank: int, world: int) -> list[list[float]]:
    """Call every collective that gloo has; return what each left."""
    own = torch.full((2,), float(rank + 1))
    summed, sent, shown = own.clone(), own.clone(), own.clone()
    dist.all_reduce(summed)
    dist.broadcast(sent, src=1)
    dist.reduce(shown, dst=0)
    gathered = [torch.empty(2) for _ in range(world)]
    dist.all_gather(gathered, own)
    whole = torch.empty(2 * world)
    dist.all_gather_into_tensor(whole, own)
    pieces = [torch.full((1,), 10.0 * rank + n) for n in range(world)] if rank == 0 else None
    piece = torch.empty(1)
    dist.scatter(piece, pieces, src=0)
    if rank == 0:
        dist.send(own, dst=1)
        got = own
    else:
        got = torch.empty(2)
        dist.recv(got, src=0)
    later = own.clone()
    dist.all_reduce(later, async_op=True).wait()
    return [t.tolist() for t in (summed, sent, *gathered, whole, piece, got, later)]


def ring(rank: int, world: int) -> tuple[list[P2POp], torch.Tensor]:
    """Return what sends to the next process and receives from the one before it."""
    own, arrives = torch.full((2,), rank + 5.0), torch.zeros(2)
    send, receive = (dist.isend, dist.irecv) if rank else (isend, irecv)
    return [
        P2POp(send, own, (rank + 1) % world),
        P2POp(receive, arrives, (rank - 1) % world),
    ], arrives


def passed_on(operations: list[P2POp], arrives: torch.Tensor) -> list[float]:
    """Run them, and return what arrived."""
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return arrives.tolist()


class Summed(torch.nn.Module):
    """A layer, the sum over all processes written over its output, and a layer that reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Identity(), torch.nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        dist.all_reduce(hidden)
        return self.last(hidden)


def written_in_place(rank: int) -> dict[str, float]:
    """Return the largest number that each layer was fed, seen at module level."""
    model, given = Summed(), torch.full((3,), rank + 1.0)
    with no_faults(), probe.watch(model, live=False, roles="input") as run, torch.no_grad():
        model(given)
    return dict(zip(run.df["module"].astype(str), run.df["max"].astype(float), strict=True))


def collectives() -> dict[str, Any]:
    """Call them without and with a watch; say what was replaced, and what was seen."""
    rank, world = dist.get_rank(), dist.get_world_size()
    names = ("all_reduce", "broadcast", "all_gather", "scatter", "send", "recv", "isend", "irecv")
    names = (*names, "batch_isend_irecv")
    made = P2POp.__new__, P2POp.__init__
    before = [(getattr(dist, n), getattr(dist.distributed_c10d, n)) for n in names]
    bare = used(rank, world)
    with no_faults(), probe.watch(level="api", apis="core", live=False) as run:
        replaced = dist.all_reduce is not before[0][0]
        seen = used(rank, world)
        batch, later = passed_on(*ring(rank, world)), ring(rank, world)
    with probe.watch(torch.nn.Linear(1, 1), live=False):
        at_module_level = dist.all_reduce is not before[0][0]
    after = [(getattr(dist, n), getattr(dist.distributed_c10d, n)) for n in names]
    rows = run.df[COLUMNS].astype({"api": str, "role": str, "leaf": str, "status": str})
    return {
        "bare": bare,
        "seen": seen,
        "replaced": (replaced, at_module_level, after == before),
        "operations": (batch, passed_on(*later), made == (P2POp.__new__, P2POp.__init__)),
        "written_in_place": written_in_place(rank),
        "rank": run.info.rank,
        "rows": rows.to_dict("records"),
    }
