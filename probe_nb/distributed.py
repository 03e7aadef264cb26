"""The runs of many processes, brought together: from ipyparallel's engines, or with torch's gloo.

What travels is the files that `Run.save` writes, as bytes: nothing that arrives is unpickled here.
(ipyparallel pickles what it carries, as it always does; its connections are signed.)
"""

from __future__ import annotations

import contextlib
import json
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from probe_nb import loading
from probe_nb.config import MEMORY
from probe_nb.errors import ConfigError, RunFormatError, SelectionError, notify
from probe_nb.grammar import Memory, as_bytes
from probe_nb.progress import along, progress
from probe_nb.run import Run, made_of
from probe_nb.session import sessions
from probe_nb.store import beside
from probe_nb.store.keeping import Tensors
from probe_nb.store.merging import Member, merge
from probe_nb.store.parts import Parts
from probe_nb.store.tensors import bytes_of
from probe_nb.terms import printable

_RECORDS: Final = "run.parquet"
_NAMES: Final = (_RECORDS, "run.safetensors")
_HEAD: Final = struct.Struct("<Q")
_PIECE: Final = 2**28
"""Bytes that are sent at one time."""


def gather(source: Any, name: str | None = None, *, memory: Memory = MEMORY) -> Run | None:
    """Bring the runs of many processes together as one, with the column `rank`.

    Args:
        source: A view of ipyparallel's, or its client: the run of each engine is fetched. Or a run,
            where the processes have joined with `torch.distributed`: all of them have to call it,
            as any collective; None from a process that has no run.
        name: Which run of an engine: a variable there, or the `name=` of its watch. None for its
            newest.
        memory: What the records may take, as for `watch`; the rest goes to disk.

    Returns:
        The run. `rank` is that of `torch.distributed`, else the number of the engine. Rows are laid
        side by side as `load` says. In processes that have joined, the run comes to rank 0, and the
        others get None. What could not be had, and why, stands in `run.info.notices`.

    Raises:
        ConfigError: `source` is none of these.
        SelectionError: No process has such a run.
        RunFormatError: Two runs are of the same rank, or they are of different jobs.

    >>> import torch, probe_nb as probe
    >>> with probe.watch(model := torch.nn.Linear(2, 1)) as run:
    ...     _ = model(torch.ones(5, 2))
    >>> probe.gather(run) is run  # there is one process
    True
    """
    if source is None or isinstance(source, Run):
        return _of_processes(source, as_bytes(memory))
    if hasattr(source, "direct_view"):  # a client
        source = source[:]
    if not hasattr(source, "client") or not hasattr(source, "targets"):
        raise ConfigError(
            f"`{type(source).__name__}` is no view of ipyparallel's engines and no run. Give "
            "`client[:]`, or the run of this process."
        )
    return _of_engines(source, name, as_bytes(memory))


class _Gathered:
    """What came from the processes, and from which nothing came."""

    def __init__(self, of: str, count: int, budget: int | None) -> None:
        """Expect so many answers of ranks, or of engines."""
        self._of, self._budget = of, budget
        self._share = None if budget is None else budget // max(count, 1)
        self._members: list[Member] = []
        self._refused: list[str] = []

    def take(self, number: int, data: bytes) -> None:
        """Read what came from one of them."""
        where = f"{self._of} {number}"
        try:
            start = _HEAD.size + _HEAD.unpack_from(data)[0]
            head = json.loads(data[_HEAD.size : start])
            if "refused" in head:
                self._refuse(where, printable(str(head["refused"])))
                return
            parts = _unpacked(head["files"], data, start, self._share)
        except (*beside.DAMAGE, struct.error, RunFormatError) as error:
            self._refuse(where, f"what came is damaged ({error})")
        else:
            self._members.append(Member(parts, number, where))

    def _refuse(self, where: str, why: str) -> None:
        self._refused.append(f"{where.capitalize()} gave no run: {why}.")

    def run(self) -> Run:
        """Return all as one run; what is missing stands in its notices, and is warned of."""
        if not self._members:
            raise SelectionError(f"There is nothing to gather. {' '.join(self._refused[:4])}")
        run = made_of(merge(self._members, self._budget))
        run.info.notices[:0] = self._refused
        for text in self._refused:
            notify(f"probe_nb: {text}")
        return run


# -- ipyparallel ----------------------------------------------------------------------------------


def _of_engines(view: Any, name: str | None, budget: int | None) -> Run:
    targets = view.targets
    if not isinstance(targets, Sequence) or isinstance(targets, str):
        targets = view.client.ids if targets in (None, "all") else [targets]
    asked = [(each, view.client[each].apply_async(of_engine, name)) for each in targets]
    gathered = _Gathered("engine", len(asked), budget)
    for number, answer in along(asked, "Gathering engines", len(asked)):
        gathered.take(number, _answered(answer))
    return gathered.run()


def _answered(answer: Any) -> bytes:
    try:
        found = answer.get()
    except Exception as error:  # whatever went wrong there
        return _refusal(f"{type(error).__name__}: {error}")
    return found if isinstance(found, bytes) else _refusal("it answered something else")


def of_engine(name: str | None) -> bytes:
    """Return the run of this engine as bytes; `gather` calls it there."""
    return _packed(lambda: _found(name))


def _found(name: str | None) -> Run:
    runs = _runs_here()
    if name is None:
        if not runs:
            raise SelectionError("it has no run")
        return max(runs.items(), key=lambda each: each[1].info.created)[1]
    named = [each for each in runs.values() if each.info.name == name]
    if name in runs:
        return runs[name]
    if named:
        return max(named, key=lambda run: run.info.created)
    known = ", ".join(each for each in runs if each.isidentifier()) or "none"
    raise SelectionError(f"it has no run `{name}`; it has {known}")


def _runs_here() -> dict[str, Run]:
    """Return the runs that the user has at hand, by their variables; the newest comes last."""
    import __main__

    shell: Any = None
    with contextlib.suppress(ImportError):
        from IPython import get_ipython  # type: ignore[attr-defined, unused-ignore]

        shell = get_ipython()  # type: ignore[no-untyped-call, unused-ignore]
    space = vars(__main__) if shell is None else shell.user_ns
    found = {str(key): each for key, each in list(space.items()) if isinstance(each, Run)}
    magic = None if shell is None else shell.find_line_magic("probe")
    last = getattr(getattr(magic, "__self__", None), "newest", None)
    for number, each in enumerate([last, *(session.run for session in sessions())]):
        if each is not None:
            found[f"-{number}"] = each
    return found


# -- torch.distributed ----------------------------------------------------------------------------


def _of_processes(run: Run | None, budget: int | None) -> Run | None:
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        if run is None:
            raise ConfigError("There is no run: this process has joined no others.")
        return run
    data = _packed(lambda: _given(run))
    if dist.get_backend() == "gloo":
        found = _exchanged(data, None)
    else:  # gloo carries bytes of the host, whatever carries the tensors
        group = dist.new_group(backend="gloo")
        try:
            found = _exchanged(data, group)
        finally:
            dist.destroy_process_group(group)
    if not found:
        return None
    gathered = _Gathered("rank", len(found), budget)
    for rank, each in enumerate(along(found, "Reading ranks", len(found))):
        gathered.take(rank, each)
    return gathered.run()


def _given(run: Run | None) -> Run:
    if run is None:
        raise SelectionError("it has no run")
    return run


def _exchanged(data: bytes, group: Any) -> list[bytes]:
    """Send bytes to rank 0, which gets those of all; the others get nothing."""
    import torch
    import torch.distributed as dist

    rank, world = dist.get_rank(group), dist.get_world_size(group)
    sizes = [torch.zeros(1, dtype=torch.int64, device="cpu") for _ in range(world)]
    dist.all_gather(sizes, torch.tensor([len(data)], device="cpu"), group=group)
    if rank:
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        for piece in mine.split(_PIECE):
            dist.send(piece, 0, group=group)
        return []
    found = [data]
    with progress("Gathering ranks", sum(map(int, sizes[1:])), "B") as told:
        for other in range(1, world):
            theirs = torch.empty(int(sizes[other]), dtype=torch.uint8, device="cpu")
            for piece in theirs.split(_PIECE):
                dist.recv(piece, other, group=group)
                told(len(piece))
            found.append(theirs.numpy().tobytes())
    return found


# -- bytes ----------------------------------------------------------------------------------------


def _packed(found: Any) -> bytes:
    """Return the files of a run as bytes, or why there is none: nobody may wait in vain."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            found().save(Path(folder) / _RECORDS)
            files = {each: (Path(folder) / each) for each in _NAMES}
            held = {each: path.read_bytes() for each, path in files.items() if path.exists()}
    except Exception as error:
        return _refusal(str(error) if isinstance(error, SelectionError) else f"{error!r}")
    head = json.dumps({"files": [[each, len(data)] for each, data in held.items()]}).encode()
    return b"".join([_HEAD.pack(len(head)), head, *held.values()])


def _refusal(why: str) -> bytes:
    head = json.dumps({"refused": why}).encode()
    return _HEAD.pack(len(head)) + head


def _unpacked(files: Any, data: bytes, start: int, budget: int | None) -> Parts:
    with tempfile.TemporaryDirectory() as folder:
        for name, size in files:
            if name not in _NAMES or not 0 <= size <= len(data) - start:
                raise ValueError(f"`{name}` does not belong there")
            (Path(folder) / name).write_bytes(memoryview(data)[start : start + size])
            start += size
        parts = loading.read_file(Path(folder) / _RECORDS, budget)
        place = parts.tensors.place
        if place is not None and not place.path.exists():
            parts.info.notices.append(f"kept tensors are in `{place.path}`, on another machine")
            return parts._replace(tensors=Tensors())
        if place is None:
            for each in parts.tensors.known():
                each.data = bytes_of(each)  # the file will be gone
        return parts
