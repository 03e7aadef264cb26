"""The IPython door: `%probe_start`, `%probe_stop`, `%probe_step`, `%probe` and `%%probe`.

`extension` holds the magics; `line` reads the line after one, `cell` runs the cell below one,
`completion` answers the tab key. Nothing but the extension's entry points imports this package.
"""

from __future__ import annotations

from probe_nb.magics.extension import load, unload

__all__ = ["load", "unload"]
