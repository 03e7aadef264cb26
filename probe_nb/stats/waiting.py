"""Results that wait on a device, and their way to the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe_nb import devices
from probe_nb.stats.kernels import gpu
from probe_nb.stats.numbers import Numbers
from probe_nb.stats.results import Drained, Results


class Waiting(NamedTuple):
    """A result that waits on a device: the row it will fill, and what to make of its words."""

    row: int
    zeros: int
    decode: Callable[[NDArray[np.int32]], Numbers]
    words: list[Tensor]
    """Its own words; none if a kernel has written them into a row among others."""
    place: int = 0
    """The number of that row."""


@dataclass
class Device:
    """What waits on one device; what was launched, by stream."""

    eager: list[Waiting] = field(default_factory=list)
    launched: dict[Any, tuple[gpu.Rows, list[Waiting]]] = field(default_factory=dict)

    def taken(self) -> tuple[list[Tensor], list[tuple[Waiting, int, int]]]:
        """Return all words, flat, and what waits for them, each with its first and last place."""
        words = [each for waiting in self.eager for each in waiting.words]
        found, end = [], 0
        for waiting in self.eager:
            start, end = end, end + sum(each.numel() for each in waiting.words)
            found.append((waiting, start, end))
        for rows, launched in self.launched.values():
            size = gpu.words()
            places = ((each, end + size * each.place) for each in launched)
            found += [(each, start, start + size) for each, start in places]
            filled = [each.view(-1) for each in rows.taken()]
            end += sum(each.numel() for each in filled)
            words += filled
        return words, found


class Flight:
    """The results of one step on their way from the devices to the host."""

    def __init__(self, results: Results | Drained) -> None:
        """Begin with what is on the host already: all of it, or the results to be filled."""
        self._results = results
        self._aboard: list[tuple[str, devices.Copy, list[tuple[Waiting, int, int]]]] = []
        self._errors: list[str] = []

    def board(self, device: torch.device, there: Device) -> None:
        """Begin to copy what waits on one device."""
        try:
            words, found = there.taken()
            if not words:  # whatever came to this device was refused by it
                return
            self._aboard.append((str(device), devices.Copy(torch.cat(words)), found))
        except RuntimeError as error:
            self._errors.append(f"{device}: {error}")

    def is_here(self) -> bool:
        """Tell whether `land` need not wait."""
        return all(copy.is_done() for _, copy, _ in self._aboard)

    def land(self) -> tuple[Drained, list[str]]:
        """Wait for the devices; return the results, and what devices said that lost theirs."""
        if isinstance(self._results, Drained):
            return self._results, []
        for device, copy, found in self._aboard:
            self._fill(self._results, device, copy, found)
        return self._results.taken(), self._errors

    def _fill(
        self,
        results: Results,
        device: str,
        copy: devices.Copy,
        found: list[tuple[Waiting, int, int]],
    ) -> None:
        try:
            block = copy.result()
        except RuntimeError as error:
            self._errors.append(f"{device}: {error}")
            return
        for waiting, start, end in found:
            numbers = waiting.decode(block[start:end])
            numbers.add_zeros(waiting.zeros)
            results.fill(waiting.row, numbers)
