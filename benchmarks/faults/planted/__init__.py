"""The development set: the rules of the findings may be tried on these."""

from benchmarks.faults.planted import (
    backward,
    cancelling,
    data,
    forward,
    healthy,
    hidden,
    mistakable,
    precision,
    settings,
    updates,
    values,
)

__all__ = [
    "backward",
    "cancelling",
    "data",
    "forward",
    "healthy",
    "hidden",
    "mistakable",
    "precision",
    "settings",
    "updates",
    "values",
]
