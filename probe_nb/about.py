"""What a run says about itself: what was watched, with which versions, on which devices."""

from __future__ import annotations

import datetime as dt
import platform
from collections.abc import Mapping

import torch
from torch import nn

import probe_nb
from probe_nb import devices
from probe_nb.config import WatchConfig
from probe_nb.observe.select import name_inside
from probe_nb.stats.kernels import cpu
from probe_nb.terms import RunInfo


def begin(models: Mapping[str, nn.Module], modules: int, options: WatchConfig) -> RunInfo:
    """Describe a watch that is about to begin; no device is started for it."""
    rank = world = None
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    now = dt.datetime.now(dt.timezone.utc)
    ours = {"probe_nb": probe_nb.__version__, "python": platform.python_version()}
    return RunInfo(
        name=options.name,
        created=now.isoformat(timespec="milliseconds"),
        models={name: type(model).__name__ for name, model in models.items()},
        wrapped={name: said for name, model in models.items() if (said := name_inside(model))},
        modules=modules,
        config=options.as_dict(),
        versions=ours | devices.versions(),
        devices=devices.names(),
        rank=rank,
        notices=devices.notices(),
        world=world,
    )


def go_on(info: RunInfo, now: RunInfo) -> RunInfo:
    """Describe a watch that goes on with the run of an earlier one."""
    info.models |= now.models
    others = {name: said for name, said in info.wrapped.items() if name not in now.models}
    info.wrapped = others | now.wrapped
    for name in ("modules", "config", "devices", "ended"):
        setattr(info, name, getattr(now, name))
    return info


def finish(info: RunInfo) -> None:
    """Say what the run was made with; a device may have been started under the watch."""
    info.devices = devices.names()
    info.versions |= devices.versions() | {"cpu_kernel": cpu.kernel_name()}
    info.notices += [each for each in devices.notices() if each not in info.notices]
