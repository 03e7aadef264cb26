"""Random numbers: fixed and given back (`seed_all`), or found where they are drawn."""

from __future__ import annotations

from probe_nb.reproduce.finding import RandomCalls, find_random
from probe_nb.reproduce.saving import random_save
from probe_nb.reproduce.seeding import Seeded, seed_all

__all__ = ["RandomCalls", "Seeded", "find_random", "random_save", "seed_all"]
