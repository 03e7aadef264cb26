"""What a notebook shows while a cell trains: a real kernel, and the messages that it sends."""

from __future__ import annotations

import functools
import itertools
import queue
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from benchmarks.peers import environments
from benchmarks.peers.tools import load

_TRAIN: Final = """
import time
with __tool.watch(model, optimizer, __folder) as watching:
    for _ in range(20):
        programs.train(watching, optimizer, 1)
        time.sleep(0.2)
"""
_MAGIC: Final = """
import time
for _ in range(20):
    programs.train(Watching(model), optimizer, 1)
    time.sleep(0.2)
"""
_PRELUDE: Final = """
import pathlib, torch
from benchmarks.peers import programs
from benchmarks.peers.tools import load
from benchmarks.peers.watching import Watching
torch.set_num_threads(1)
model = programs.model("plain")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
__tool, __folder = load({tool!r}), pathlib.Path({folder!r})
"""
_SHOWS: Final = ("display_data", "update_display_data", "comm_msg", "comm_open")


def messages(tool: str, folder: Path) -> dict[str, Any]:
    """Run one cell of some seconds in a kernel; count what changed after its first second."""
    from jupyter_client.manager import KernelManager

    manager = KernelManager(kernel_name="python3")
    python = environments.python(tool)
    manager.kernel_spec.argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager.start_kernel(cwd=str(environments.ROOT), env=environments.variables(python))
    client = manager.client()
    client.start_channels()
    port = _free_port()
    try:
        client.wait_for_ready(timeout=120)
        _run(client, _PRELUDE.format(tool=tool, folder=str(folder)), lambda: 0)
        for line in load(tool).NOTEBOOK.format(folder=folder, port=port).splitlines():
            _run(client, line, lambda: 0)
        cell = _MAGIC if tool == "ours" else _TRAIN
        served = functools.partial(_served, port) if tool == "tensorboard" else lambda: 0
        return _run(client, cell, served)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _run(client: Any, code: str, served: Callable[[], int]) -> dict[str, Any]:
    """Run a cell to its end; say how often the page, or what a server has for it, changed."""
    identity, begin = client.execute(code), time.monotonic()
    shown: list[float] = []
    sizes, error, now = [served()], "", 0.0
    while True:
        sizes.append(served())
        try:
            message = client.get_iopub_msg(timeout=0.5)
        except queue.Empty:
            continue
        now, kind, content = time.monotonic() - begin, message["msg_type"], message["content"]
        if kind in _SHOWS:
            shown.append(now)
        if kind == "error":
            error = f"{content['ename']}: {content['evalue']}"
        mine = message["parent_header"].get("msg_id") == identity
        if mine and kind == "status" and content["execution_state"] == "idle":
            break
    page = sum(1 < each < now - 0.5 for each in shown)
    server = sum(a != b for a, b in itertools.pairwise(sizes))
    return {"page": page, "server": server, "seconds": now, "error": error}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])


def _served(port: int) -> int:
    """Return how many bytes a server of TensorBoard has to say of one histogram."""
    address = f"http://localhost:{port}/data/plugin/histograms/histograms?run=.&tag=head.weight"
    try:
        with urlopen(address, timeout=5) as answer:
            return len(answer.read())
    except OSError:
        return 0
