"""Held out: do not tune rules to it. Other faults, in other models than the development set."""

from benchmarks.faults.unseen import half, healthy, learning, numbers, values, zeros

__all__ = ["half", "healthy", "learning", "numbers", "values", "zeros"]
