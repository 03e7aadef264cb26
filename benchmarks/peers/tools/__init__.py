"""How each package is used, as its own guide has it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol

from benchmarks.peers.watching import Watching

NAMES: Final = {
    "ours": "probe_nb",
    "msprobe": "msProbe",
    "tensorboard": "TensorBoard",
    "wandb": "wandb.watch",
    "torchlens": "torchlens",
    "torchinstruments": "torchinstruments",
}


class Tool(Protocol):
    """One module of this folder."""

    DISTRIBUTION: str
    HOW: str
    NOTEBOOK: str

    def watch(
        self, model: object, optimizer: object, folder: Path
    ) -> AbstractContextManager[Watching]:
        """Watch `model` and leave files in `folder`; `optimizer` may be None."""
        ...

    def numbers(self, folder: Path) -> Iterator[tuple[str, float]]:
        """Read the files back: each number, and under which words it stands."""
        ...

    def birth(self, folder: Path, phase: str) -> str:
        """Ask the package itself where a NaN was born; empty if it has no such question.

        `phase` is forward or backward, for a package that has a question for each.
        """
        ...


def load(name: str) -> Tool:
    """Import the module of one package, which imports the package when it is used."""
    tool: Tool = importlib.import_module(f"benchmarks.peers.tools.{name}")  # type: ignore[assignment]
    return tool
