"""One process of a distributed test: `process.py RANK WORLD STORE OUT PROGRAM...`."""

from __future__ import annotations

import datetime as dt
import os
import pickle
import sys
import traceback
import warnings
from pathlib import Path


def main(rank: int, world: int, store: str, out: str, names: list[str]) -> None:
    """Run the programs; what each gives back, or its traceback, is written down at once."""
    import torch
    import torch.distributed as dist

    from tests.distributed.programs import PROGRAMS

    torch.set_num_threads(1)
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", module="torch")
    warnings.filterwarnings("ignore", "The `NO_SHARD` sharding strategy is deprecated")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world,
        timeout=dt.timedelta(seconds=200),
    )
    found: dict[str, object] = {}
    for name in names:
        print(name, flush=True)  # noqa: T201 - the last line tells where a process hangs
        try:
            found[name] = PROGRAMS[name]()
        except Exception:
            found[name] = traceback.format_exc()
        Path(out).write_bytes(pickle.dumps(found))
        if isinstance(found[name], str):
            break  # the other processes may be anywhere by now
    os._exit(0)  # no process waits for another at its end


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:])
