"""`seed_all`: the same random numbers and the same sums each time, and all of it given back."""

from __future__ import annotations

import random
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

from probe_nb.errors import ConfigError
from probe_nb.reproduce.settings import Change, changes

_LARGEST: Final = 2**32 - 1
"""The largest seed that NumPy takes."""
_lock = threading.RLock()
_open: weakref.WeakSet[Seeded] = weakref.WeakSet()
"""Who can still ask for what was there before: they have to know of every later `seed_all`."""


class Seeded:
    """What `seed_all` returns: `restore()` gives everything back, and so does the end of a `with`.

    >>> import random, probe_nb as probe
    >>> before = random.getstate()
    >>> with probe.seed_all(7):
    ...     random.random()
    0.32383276483316237
    >>> random.getstate() == before
    True
    """

    def __init__(self, seed: int, described: str) -> None:
        self.seed = seed
        self._described = described
        self._put_back = _remembered()
        self._changes: list[Change] = []

    def restore(self) -> None:
        """Put back what this `seed_all` and those after it changed; again is no error.

        Random numbers go on as if nothing had happened in between. A setting that somebody else
        has changed meanwhile is theirs and stays.
        """
        with _lock, ExitStack() as everything:
            if self not in _open:
                return
            for each in _open_since(self):
                _open.discard(each)
            everything.callback(self._put_back)
            for change in self._changes:  # the last of them is undone first
                everything.callback(change.undo)

    def __enter__(self) -> Seeded:  # noqa: PYI034 - `Self` is of Python 3.11
        """Return this; the seeds were set when it was made."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Give everything back."""
        self.restore()

    def __repr__(self) -> str:
        state = "`.restore()` gives everything back" if self in _open else "given back"
        return f"{self._described}: {state}"


def seed_all(
    seed: int = 1234,
    mode: bool = False,  # noqa: FBT001, FBT002 - msProbe's arguments, also by position
    rm_dropout: bool = False,  # noqa: FBT001, FBT002
    is_enhanced: bool = False,  # noqa: FBT001, FBT002
) -> Seeded:
    """Fix every source of randomness, and give it all back with `.restore()`.

    Seeded are Python's `random`, NumPy's global generator and torch's generators of all devices;
    `PYTHONHASHSEED` and `HCCL_DETERMINISTIC` are set, cuDNN is turned off and its choice of
    algorithms fixed. Without `.restore()` all of that stays until the process ends.

    Args:
        seed: The seed, from 0 to 2**32 - 1.
        mode: Have torch use deterministic algorithms, and raise where it has none.
        rm_dropout: Let the dropout functions of `torch.nn.functional`, and with them the modules,
            pass on what they are given.
        is_enhanced: Seed before each random call, so that it gives the same numbers every time.

    Returns:
        A handle with `.restore()`, which is also a context manager.

    Raises:
        ConfigError: An argument is not what it should be; nothing was changed.

    Cost: some microseconds; with `is_enhanced` for each random call. No device is started.

    >>> import torch, probe_nb as probe
    >>> with probe.seed_all(1234):
    ...     torch.randn(2, 2).mean()
    tensor(-0.0866)
    """
    _check(seed, mode=mode, rm_dropout=rm_dropout, is_enhanced=is_enhanced)
    described = f"seed_all({seed}, {mode=}, {rm_dropout=}, {is_enhanced=})"
    with _lock:
        seeded = Seeded(seed, described)
        _open.add(seeded)
        try:
            wanted = changes(seed, mode=mode, rm_dropout=rm_dropout, is_enhanced=is_enhanced)
            for change in wanted:
                for each in _open:
                    each._changes.append(change)  # noqa: SLF001 - its own class's
                change.make()
            _seed(seed)
        except BaseException:
            seeded.restore()
            raise
    return seeded


def _open_since(seeded: Seeded) -> list[Seeded]:
    """Return a handle and those that were made after it: they know of fewer changes."""
    known = len(seeded._changes)  # noqa: SLF001 - its own class's
    return [each for each in _open if len(each._changes) <= known]  # noqa: SLF001


def _check(seed: object, **switches: object) -> None:
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= _LARGEST:
        raise ConfigError(f"`seed` is {seed!r}; give a whole number from 0 to {_LARGEST}.")
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise ConfigError(f"`{name}` is {value!r}; give True or False.")


def _seed(seed: int) -> None:
    import torch

    random.seed(seed)
    if (numpys := _numpy_random()) is not None:
        numpys.seed(seed)
    torch.manual_seed(seed)


def _numpy_random() -> Any:
    try:
        from numpy import random as room
    except ImportError:
        return None
    return room


def _remembered() -> Callable[[], None]:
    """Remember all random numbers; what is returned puts them back."""
    from probe_nb.devices import generators

    torchs, pythons, room = generators.remembered(), random.getstate(), _numpy_random()
    numpys = None if room is None else room.get_state(legacy=False)

    def put_back() -> None:
        torchs()
        random.setstate(pythons)
        if room is not None:
            room.set_state(numpys)

    return put_back
