"""Adding to files that others read meanwhile: all of a piece, or nothing of it."""

from __future__ import annotations

from pathlib import Path


def appended(path: Path, data: bytes) -> None:
    """Add bytes to the end of a file; where they find no room, it is as it was before.

    Raises:
        OSError: It cannot be written.
    """
    with path.open("ab", buffering=0) as file:
        end = file.tell()
        left = memoryview(data)
        try:
            while left:
                left = left[file.write(left) :]
        except BaseException:
            file.truncate(end)
            if not end:
                path.unlink(missing_ok=True)
            raise
