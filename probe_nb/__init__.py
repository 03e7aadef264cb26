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
    "Run",
    "__version__",
    "load",
    "save",
    "start",
    "step",
    "stop",
    "watch",
]

if TYPE_CHECKING:
    from probe_nb.doors import start, watch
    from probe_nb.run import Run, load, save
    from probe_nb.session import step, stop

_ROOMS = {
    "Run": "probe_nb.run",
    "load": "probe_nb.run",
    "save": "probe_nb.run",
    "start": "probe_nb.doors",
    "step": "probe_nb.session",
    "stop": "probe_nb.session",
    "watch": "probe_nb.doors",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: importing probe_nb imports nothing heavy."""
    from importlib import import_module

    if name not in _ROOMS:
        raise AttributeError(f"module `probe_nb` has no attribute `{name}`")
    return getattr(import_module(_ROOMS[name]), name)


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted([*__all__, "load_ipython_extension", "unload_ipython_extension"])


def load_ipython_extension(ipython: Any) -> None:
    """Add the magics: `%load_ext probe_nb`."""
    from probe_nb import magics

    magics.load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """Take the magics away and stop what they started: `%unload_ext probe_nb`."""
    from probe_nb import magics

    magics.unload(ipython)
