"""Two doors to IPython: a real kernel, and a fresh shell in a process of its own."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from jupyter_client.manager import start_new_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
SECONDS = 200
"""What the kernel may take for a cell, on a machine that is busy with much else."""

COLOUR = re.compile(r"\x1b\[[0-9;]*m")

MODEL = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
x = torch.ones(2, 4)
"""
"""Three modules (the root, the layer, the activation), so three output rows each forward."""

PRELUDE = """
import json, sys
from traitlets.config import Config
from IPython.core.interactiveshell import InteractiveShell
config = Config()
config.HistoryManager.enabled = False
ip = InteractiveShell.instance(config=config)
answer = None
"""


def environment(**more: object) -> dict[str, str]:
    """Return the environment of a process that imports this copy of the package."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        **{name: str(each) for name, each in more.items()},
    }


@dataclass
class Reply:
    """All that a kernel sent back for one cell."""

    status: str = ""
    stdout: str = ""
    stderr: str = ""
    bundle: dict[str, Any] = field(default_factory=dict)
    """The value of the last expression, in every form."""
    tracebacks: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    """What each display was in the end, in the order in which they appeared."""
    updates: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Later changes to displays of any cell: display id, data."""
    traits: dict[str, Any] = field(default_factory=dict)
    """The newest values that widgets sent to the front end."""

    @property
    def value(self) -> str | None:
        """The value of the last expression, as text."""
        return self.bundle.get("text/plain")


class Kernel:
    """A running kernel with the extension and a tiny model loaded."""

    def __init__(self, manager: Any, client: Any) -> None:
        self.manager = manager
        self.client = client

    def run(self, code: str, *, interrupt_at: str = "", silent: bool = False) -> Reply:
        """Run one cell; interrupt the kernel once `interrupt_at` has been printed."""
        reply = Reply()
        displays: dict[str, str] = {}

        def take(message: dict[str, Any]) -> None:
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                setattr(reply, content["name"], getattr(reply, content["name"]) + content["text"])
                if interrupt_at and interrupt_at in content["text"]:
                    self.manager.interrupt_kernel()
            elif kind == "error":
                reply.tracebacks.append(COLOUR.sub("", "\n".join(content["traceback"])))
            elif kind == "execute_result":
                reply.bundle = content["data"]
            elif kind in ("comm_open", "comm_msg"):
                reply.traits.update(content["data"].get("state", {}))
            elif kind in ("display_data", "update_display_data"):
                name = content.get("transient", {}).get("display_id") or f"#{len(displays)}"
                if kind == "update_display_data":
                    reply.updates.append((name, content["data"]))
                if kind == "display_data" or name in displays:
                    displays[name] = content["data"].get("text/plain", "")

        answer = self.client.execute_interactive(
            code, output_hook=take, timeout=SECONDS, silent=silent
        )
        reply.status = answer["content"]["status"]
        reply.shown = list(displays.values())
        return reply

    def value(self, expression: str) -> Any:
        """Return the value of a Python literal in the kernel, without leaving a trace there."""
        content = self.client.execute_interactive(
            "",
            user_expressions={"it": expression},
            silent=True,
            store_history=False,
            timeout=SECONDS,
        )["content"]["user_expressions"]["it"]
        assert content["status"] == "ok", content
        return ast.literal_eval(content["data"]["text/plain"])


@pytest.fixture(scope="module")
def shared_kernel() -> Iterator[Kernel]:
    """One kernel for a file of tests: starting it costs seconds."""
    manager, client = start_new_kernel(
        kernel_name="python3", env=environment(), startup_timeout=SECONDS
    )
    try:
        kernel = Kernel(manager, client)
        assert kernel.run("%load_ext probe_nb").status == "ok"
        yield kernel
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(shared_kernel: Kernel) -> Kernel:
    """The kernel with nothing watched, the extension just loaded, and a new model."""
    for line in ("%unload_ext probe_nb", "%load_ext probe_nb", MODEL):
        reply = shared_kernel.run(line)
        assert reply.status == "ok", reply
    return shared_kernel


@pytest.fixture
def in_shell(tmp_path: Path) -> Callable[[str], Any]:
    """Run a script in a new process that has a fresh shell `ip`; return its `answer`."""

    def run(script: str) -> Any:
        code = PRELUDE + textwrap.dedent(script) + "\nprint('\\n' + json.dumps(answer))\n"
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment(IPYTHONDIR=tmp_path),
            check=False,
            timeout=250,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
