"""Specimens that fail for a reason that is understood, with the reason: it stands in the table."""

from __future__ import annotations

from typing import Final

FAULTS: Final[dict[str, str]] = {}
