"""Where answers are shown: in a terminal, as HTML that needs no script, and as a live inspector."""

from __future__ import annotations

from pathlib import Path
from typing import Final

BUNDLE: Final = Path(__file__).parent / "static" / "widget.js"
"""The inspector's front end, one ES module; it is built (see `CONTRIBUTING.md`), not committed."""
