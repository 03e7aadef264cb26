"""The development set: the rules of the comparison may be tried on these."""

from benchmarks.divergences.planted import (
    backward,
    devices,
    fed,
    healthy,
    layers,
    parameterless,
    parents,
    precision,
    structure,
    updates,
)

__all__ = [
    "backward",
    "devices",
    "fed",
    "healthy",
    "layers",
    "parameterless",
    "parents",
    "precision",
    "structure",
    "updates",
]
