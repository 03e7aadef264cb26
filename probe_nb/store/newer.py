"""Files that a newer version wrote: what this one does not know of them is no damage."""

from __future__ import annotations

import re
from typing import Any, Final

import probe_nb

UPDATE: Final = "Update with: pip install -U probe-nb"


class UnknownError(ValueError):
    """A file says something by a name that this version does not know."""


def why(error: Exception, about: Any) -> str:
    """Say why a file cannot be read: it is damaged, or of a newer version.

    Args:
        error: What reading it ended in.
        about: What the file says of itself, as far as that is known.
    """
    theirs, ours = about, probe_nb.__version__
    for key in ("info", "versions", "probe_nb"):
        theirs = theirs.get(key) if isinstance(theirs, dict) else None
    if isinstance(theirs, str) and _parts(theirs) > _parts(ours):
        return f"probe_nb {theirs} wrote it, and this is {ours} ({error}). {UPDATE}"
    if isinstance(error, UnknownError):
        return f"a newer version than this, {ours}, wrote it ({error}). {UPDATE}"
    return f"it is damaged ({error})."


def _parts(version: str) -> list[int]:
    """Return the numbers that a version begins with."""
    release = re.match(r"\d+(\.\d+)*", version)
    return [int(part) for part in release[0].split(".")] if release else []
