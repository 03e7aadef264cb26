"""Between what is seen and what is recorded: keeps whole tensors of chosen modules.

Without `keep=` it is not there. Each copy is begun in the hook, in the order of the stream on which
the model runs, before anything can overwrite the tensor; nothing here waits for a device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from probe_nb import devices
from probe_nb.dump.tensors import PtStream
from probe_nb.errors import notify
from probe_nb.keep import Keep
from probe_nb.observe.calls import Call
from probe_nb.observe.picked import Picked
from probe_nb.observe.select import Watched
from probe_nb.observe.shards import held
from probe_nb.observe.sink import Facts, Where
from probe_nb.recorder import DIRECTION, Recorder
from probe_nb.run import Run
from probe_nb.stats.measurable import bare, modes_off
from probe_nb.store.keeping import Tensors
from probe_nb.store.kept import Kept
from probe_nb.store.stream import Stream
from probe_nb.terms import Direction, RunInfo, Status, printable


class Keeper:
    """Takes observations, keeps those that were asked for, and hands all on to the recorder."""

    def __init__(
        self,
        recorder: Recorder,
        keep: Keep,
        run: Run,
        watched: Sequence[Watched],
        level: str = "module",
    ) -> None:
        """Choose among these modules; later ones are asked for when they are seen.

        Raises:
            SelectionError: A pattern matches nothing, or nothing that is watched.
            ConfigError: It is of a function that there is not.
        """
        self._picked = Picked(
            keep.select, watched, parts=keep.names, level=level, values="value" in keep.roles
        )
        self._recorder = recorder
        self._keep = keep
        self._roles = frozenset(keep.roles)
        self._notices = run.info.notices
        self._rank = -1 if run.info.rank is None else run.info.rank
        self._tensors = run.tensors = _place_for(keep, run.info)

    # -- the Sink ---------------------------------------------------------------------------------

    def tensor(
        self,
        call: Call,
        where: Where,
        t: Tensor,
        backward: int = -1,
        scale: Tensor | None = None,
    ) -> None:
        """Have a tensor recorded, and keep it if it was asked for."""
        self._recorder.tensor(call, where, t, backward, scale)
        self._guarded(call, where, lambda: self._see(call, where, t, backward))

    def absent(
        self, call: Call, where: Where, facts: Facts, status: Status, backward: int = -1
    ) -> None:
        """Have a tensor recorded that cannot be had, and do not keep it."""
        self._recorder.absent(call, where, facts, status, backward)
        self._guarded(call, where, lambda: self._miss(call, where, facts, status, backward))

    def _guarded(self, call: Call, where: Where, act: Callable[[], None]) -> None:
        try:
            if self._wants(call, where):
                act()
        except Exception as error:  # a fault of ours is never the user's
            self._recorder.fault(call.watched, f"{where[0]}, to keep it", error)

    def fault(self, watched: Watched | None, where: str, error: Exception) -> None:
        """Hand on an error of our own."""
        self._recorder.fault(watched, where, error)

    # -- the choice -------------------------------------------------------------------------------

    def _wants(self, call: Call, where: Where) -> bool:
        if where[0] not in self._roles or call.recompute or not self._keep.wants(call.step):
            return False
        return self._picked.takes(call, where[0], _way(where))

    def _kept(self, call: Call, where: Where, facts: Facts, backward: int, part: str = "") -> Kept:
        watched = call.watched
        way, dtype = _way(where), facts.dtype
        return Kept(
            watched.model,
            watched.path,
            way,
            where[0],
            printable(where[1]) + part,
            call.step,
            call.micro_step,
            call.number,
            backward,
            str(dtype).removeprefix("torch."),
            facts.shape,
            max(facts.numel, 0) * dtype.itemsize,
            api=watched.api,
            type=watched.type,
            rank=self._rank,
        )

    def _miss(self, call: Call, where: Where, facts: Facts, why: str, backward: int) -> None:
        self._tensors.refuse(self._kept(call, where, facts, backward), why)

    def _see(self, call: Call, where: Where, t: Tensor, backward: int) -> None:
        t, part = held(t)
        kept = self._kept(call, where, Facts.of(t), backward, part)
        # inference mode: no graph, no history, no versions, no forward derivatives
        with torch._C.DisableTorchFunction(), modes_off(), torch._C._InferenceMode(True):  # noqa: SLF001
            t, why = _kind(t)
            if why:
                self._tensors.refuse(kept, why)
                return
            try:
                self._tensors.take(kept, lambda: _copied(t))
            except NotImplementedError:  # torch cannot copy this type
                self._tensors.refuse(kept, "unsupported")
            except devices.UnpinnedError:
                self._tensors.refuse(kept, "no pinned memory")
            except Exception:
                self._tensors.refuse(kept, "failed")
                raise

    # -- the drain --------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Number of rows that wait for the drain."""
        return self._recorder.waiting

    def drain(self, *, wait: bool = True) -> list[str]:
        """Drain the recorder, and take in the copies that have come; return what was lost."""
        lost = self._recorder.drain(wait=wait)
        return lost if devices.capturing() else lost + self._tensors.settle()

    def forget(self) -> None:
        """Drop what waits in the recorder; what is to be kept has all the time it needs."""
        try:
            self._recorder.forget()
            self._tell(self._tensors.finish())
        except Exception as error:  # a fault of ours is never the user's
            with contextlib.suppress(Exception):
                self._tell([f"tensors that were to be kept may be missing: {error!r}"])
                self._tell(self._tensors.finish())

    def _tell(self, lost: list[str]) -> None:
        self._notices += lost
        for each in lost:
            notify(f"probe_nb: {each}")


def _way(where: Where) -> Direction:
    return DIRECTION[where[0]] if len(where) == 2 else where[2]  # noqa: PLR2004 - role and leaf


def _place_for(keep: Keep, info: RunInfo) -> Tensors:
    """Return where the tensors of a run go: into memory, or into a folder if one is named."""
    if keep.folder is None:
        return Tensors(keep.memory, makes_room=keep.steps is None)
    stream = PtStream if keep.files == "pt" else Stream
    return Tensors(keep.memory, stream=stream(keep.folder, info))


def _kind(t: Tensor) -> tuple[Tensor, str]:
    """Return a tensor whose elements can be copied as they lie, or why there is none."""
    t, status = bare(t)
    if status not in ("ok", "empty"):
        return t, status
    plain = t.layout == torch.strided and not (t.is_quantized or t.is_nested)
    return t, "" if plain else "layout"


def _copied(t: Tensor) -> Any:
    """Begin to copy; on the host it is done at once."""
    copy = devices.Bytes(t)
    return copy.result() if copy.is_done() else copy
