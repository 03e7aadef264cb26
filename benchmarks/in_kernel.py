"""What one live update costs a kernel: `Inspector.refresh` in a real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

ROOT: Final = Path(__file__).parents[1]
SECONDS: Final = 300

_CELL: Final = """
import gc, json, time, torch
from IPython.display import display
import probe_nb as probe
from benchmarks.models import batch, encoder, train
from probe_nb.view.inspector import Inspector
torch.set_num_threads(1)
model, x = encoder(16, 33), batch(16)
took = []
with probe.watch(model, live=False) as run:
    train(model, x)
    run.step()
    widget = Inspector(run)
    display(widget)
    for _ in range({rounds} + 1):
        gc.collect()
        train(model, x)  # every row has a new record
        run.step()
        begin = time.perf_counter()
        widget.refresh()
        took.append(1000 * (time.perf_counter() - begin))
print(json.dumps([len(json.loads(widget.sites)["rows"]), took[1:]]))
"""


def updates(rounds: int) -> tuple[int, list[float]]:
    """Return how many rows there were, and the milliseconds of each update."""
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(ROOT))
    try:
        return _run(client, _CELL.format(rounds=rounds))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _run(client: BlockingKernelClient, code: str) -> tuple[int, list[float]]:
    said: list[str] = []

    def hear(message: dict) -> None:
        if message["msg_type"] == "stream":
            said.append(message["content"]["text"])

    reply = client.execute_interactive(code, output_hook=hear, timeout=SECONDS)
    if reply["content"]["status"] != "ok":
        raise RuntimeError("\n".join(reply["content"]["traceback"]))
    rows, took = json.loads("".join(said).splitlines()[-1])
    return rows, took
