"""What a notebook kernel really sends."""

from __future__ import annotations

from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel

SET_UP = """
import torch, probe_nb as probe
from probe_nb.view.live import PERIOD, LiveView
now = 0.0
LiveView.__init__.__kwdefaults__["clock"] = lambda: now  # it goes on with the steps alone
model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(30)])
x = torch.randn(4, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.0)
model(x).sum().backward()
optimizer.step()
"""
MANY_STEPS = """
with probe.watch(model) as run:
    for _ in range(40):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        now += PERIOD / 4
"""
USERS_BUG = """
with probe.watch(model, live=True) as run:
    model(x)
    raise ValueError("user bug")
"""
BROKEN_VIEW = """
from probe_nb.view.inspector import Inspector
Inspector.refresh = lambda self: 1 / 0
with probe.watch(model) as run:
    for _ in range(40):
        model(x)
        run.step()
        now += PERIOD / 4
"done"
"""


@pytest.fixture(scope="module")
def kernel():
    root = str(Path(__file__).parents[3])
    manager, client = start_new_kernel(kernel_name="python3", cwd=root, startup_timeout=200)
    try:
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def run(client, code):
    """Run a cell and return its reply and what was published."""
    published = []

    def hook(message):
        published.append((message["msg_type"], message["content"]))

    reply = client.execute_interactive(code, output_hook=hook, timeout=250)
    return reply["content"], published


def of(published, *kinds):
    return [content for kind, content in published if kind in kinds]


def test_a_live_run_in_a_kernel(kernel):
    reply, _ = run(kernel, SET_UP)
    assert reply["status"] == "ok", reply

    reply, published = run(kernel, MANY_STEPS)
    assert reply["status"] == "ok", reply
    frames = of(published, "comm_msg")
    assert 9 <= len(frames) <= 13  # ten periods; one that opens it, and those that end it
    assert not of(published, "stream")
    first, *_ = of(published, "display_data")
    assert "application/vnd.jupyter.widget-view+json" in first["data"]
    last, *more = of(published, "update_display_data")
    assert more == []
    assert set(last["data"]) == {"text/html", "text/plain"}
    assert last["transient"] == first["transient"]
    assert "31 modules" in last["data"]["text/plain"]

    reply, published = run(kernel, USERS_BUG)
    assert (reply["status"], reply["ename"], reply["evalue"]) == ("error", "ValueError", "user bug")
    assert "user bug" in of(published, "update_display_data")[-1]["data"]["text/plain"]

    reply, published = run(kernel, BROKEN_VIEW)
    assert reply["status"] == "ok", reply
    words = "".join(content["text"] for content in of(published, "stream"))
    assert words.count("The live view is off: ZeroDivisionError") == 1
    assert "no NaN or Inf" in of(published, "update_display_data")[-1]["data"]["text/plain"]
