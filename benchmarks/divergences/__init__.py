"""Divergences planted in the second of two runs, and what `compare` names first."""
