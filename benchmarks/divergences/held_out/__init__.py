"""The held-out set: written before the tool was asked, and never used to tune a rule."""

from benchmarks.divergences.held_out import backward, forward, healthy

__all__ = ["backward", "forward", "healthy"]
