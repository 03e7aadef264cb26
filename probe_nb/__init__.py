"""Look inside a PyTorch model from a notebook, without changing one bit of its training.

>>> import torch, probe_nb as probe
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
>>> with probe.watch(model) as run:
...     model(torch.ones(2, 4)).sum().backward()
>>> sorted(run.df["role"].unique())
['grad_input', 'grad_output', 'input', 'output', 'param', 'param_grad']

In a notebook: `%load_ext probe_nb`, then `%probe_start model` and `%probe_stop`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "Comparison",
    "Keep",
    "NonFiniteError",
    "Run",
    "__version__",
    "compare",
    "compare_ranks",
    "find_random",
    "gather",
    "load",
    "random_save",
    "read_dump",
    "save",
    "seed_all",
    "self_check",
    "start",
    "step",
    "stop",
    "watch",
]

if TYPE_CHECKING:
    from probe_nb.checkup.check import self_check
    from probe_nb.comparison import Comparison, compare
    from probe_nb.distributed import gather
    from probe_nb.doors import start, watch
    from probe_nb.errors import NonFiniteError
    from probe_nb.keep import Keep
    from probe_nb.ranks import compare_ranks
    from probe_nb.reproduce import find_random, random_save, seed_all
    from probe_nb.run import Run, load, read_dump
    from probe_nb.saving import save
    from probe_nb.session import step, stop

_ROOMS = {
    "Comparison": "probe_nb.comparison",
    "Keep": "probe_nb.keep",
    "NonFiniteError": "probe_nb.errors",
    "Run": "probe_nb.run",
    "compare": "probe_nb.comparison",
    "compare_ranks": "probe_nb.ranks",
    "find_random": "probe_nb.reproduce",
    "gather": "probe_nb.distributed",
    "load": "probe_nb.run",
    "random_save": "probe_nb.reproduce",
    "read_dump": "probe_nb.run",
    "save": "probe_nb.saving",
    "seed_all": "probe_nb.reproduce",
    "self_check": "probe_nb.checkup.check",
    "start": "probe_nb.doors",
    "step": "probe_nb.session",
    "stop": "probe_nb.session",
    "watch": "probe_nb.doors",
}


def _named(name: str) -> Any:
    """Load a public name when it is first used: importing probe_nb imports nothing heavy."""
    if name not in _ROOMS:
        raise AttributeError(f"module `probe_nb` has no attribute `{name}`")
    return getattr(_room(_ROOMS[name]), name)


if not TYPE_CHECKING:  # a type checker would take every misspelt name for one that is there
    __getattr__ = _named


def _room(name: str) -> Any:
    """Import a room; where it is torch that cannot be imported, say why and what to do."""
    from importlib import import_module

    try:
        return import_module(name)
    except Exception as error:
        from probe_nb import torchless

        if not torchless.is_cause_of(error):
            raise
        raise torchless.explained(error) from error


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted([*__all__, "load_ipython_extension", "unload_ipython_extension"])


def load_ipython_extension(ipython: Any) -> None:
    """Add the magics: `%load_ext probe_nb`."""
    _room("probe_nb.magics").load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """Take the magics away and stop what they started: `%unload_ext probe_nb`."""
    _room("probe_nb.magics").unload(ipython)
