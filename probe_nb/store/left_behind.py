"""Temporary folders of processes that were killed: nobody else removes what is in them.

A process holds a lock in its folder for as long as it lives, however it ends; so a folder whose
lock is free has no owner. A number of a process would tell less: another container has its own
numbers. Where locks are kept by each computer for itself, as on some shared disks, a lock that is
free says nothing of another one: so the lock also names the computer, by its present boot.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import IO, Any, Final

fcntl: Any = None
with contextlib.suppress(ImportError):  # Windows has none: there folders stay
    import fcntl

PREFIX: Final = "probe_nb-"
_LOCK: Final = "owner"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


def held(folder: Path) -> IO[bytes] | None:
    """Lock a folder until what is returned is closed; None where that cannot be done.

    The lock has its name only once it is shut: nobody may find it open.
    """
    aside = folder / f".{_LOCK}"
    try:
        boot = _BOOT.read_bytes()
        lock = aside.open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock.write(boot)
            lock.flush()
            aside.replace(folder / _LOCK)
        except BaseException:
            lock.close()
            raise
    except (OSError, AttributeError):
        return None
    return lock


def sweep(place: Path) -> None:
    """Remove from a place the folders of this user's that a process which has ended left there."""
    with contextlib.suppress(OSError, AttributeError):
        boot, user = _BOOT.read_bytes(), os.getuid()
        for folder in place.glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                if not folder.is_symlink() and folder.stat().st_uid == user:
                    _remove_if_free(folder, boot)


def _remove_if_free(folder: Path, boot: bytes) -> None:
    with (folder / _LOCK).open("r+b") as lock:
        if lock.read() == boot:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: its owner lives
            shutil.rmtree(folder, ignore_errors=True)
