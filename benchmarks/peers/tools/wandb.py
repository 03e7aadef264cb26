"""wandb.watch, offline: its pages are on a server, which is no part of this."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.watching import Watching

DISTRIBUTION = "wandb"
HOW = '`wandb.watch(model, log="all", log_freq=1)` offline, `run.log` after each step'
NOTEBOOK = ""
_BLOCK: Final = 32768
_HEAD: Final = 7


@contextlib.contextmanager
def watch(model: Any, optimizer: Any, folder: Path) -> Iterator[Watching]:
    """Watch parameters and their gradients."""
    del optimizer
    os.environ["WANDB_SILENT"] = "true"
    import wandb

    run = wandb.init(project="peers", dir=str(folder), mode="offline")
    inner = getattr(model, "_orig_mod", model)  # what torch.compile returns is refused
    run.watch(inner, log="all", log_freq=1)
    yield Watching(model, after=lambda: run.log({"step": 1}))
    run.unwatch(inner)
    run.finish()


def numbers(folder: Path) -> Iterator[tuple[str, float]]:
    """Read the records of the offline file, which are protobuf in the frames of LevelDB's log."""
    from wandb.proto import wandb_internal_pb2

    for path in folder.rglob("*.wandb"):
        for framed in _records(path.read_bytes()):
            record = wandb_internal_pb2.Record.FromString(framed)
            for item in record.history.item:
                words = " ".join([item.key, *item.nested_key])
                yield from _values(words, json.loads(item.value_json))


def _values(words: str, value: Any) -> Iterator[tuple[str, float]]:
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, (int, float)):
            yield words, float(each)


def _records(data: bytes) -> Iterator[bytes]:
    at, parts = _HEAD, b""
    while at + _HEAD <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEAD:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + _HEAD])
        parts += data[at + _HEAD : at + _HEAD + length]
        at += _HEAD + length
        if kind in {1, 4}:  # whole, or the last part
            yield parts
            parts = b""


def birth(folder: Path, phase: str) -> str:
    """There is no such question."""
    del folder, phase
    return ""
