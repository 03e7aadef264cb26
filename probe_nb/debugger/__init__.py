"""A second door: msProbe's PrecisionDebugger and its config.json, over the same sessions.

A script written for msProbe needs one line changed, its import.

>>> from probe_nb.debugger import PrecisionDebugger, seed_all
>>> from probe_nb.debugger import module_dump, module_dump_end, random_save
"""

from __future__ import annotations

from probe_nb.debugger.door import PrecisionDebugger, module_dump, module_dump_end
from probe_nb.reproduce import random_save, seed_all

__all__ = ["PrecisionDebugger", "module_dump", "module_dump_end", "random_save", "seed_all"]
