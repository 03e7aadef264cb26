"""Parameters, buffers and modes as they were in a step: taken, or checked against its rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from probe_nb.errors import ModelError, SelectionError, closest
from probe_nb.observe.select import add_modules
from probe_nb.replay.fed import tensor_of
from probe_nb.replay.wide import widened
from probe_nb.stats.checksum import crc32, xor
from probe_nb.store.kept import Kept
from probe_nb.terms import shown

_SUMS: Final = 1e-5
"""What mean, std and l2 are compared to: no closer than a run knows them (docs/statistics.md)."""

_HEX: Final = 8
_ROLES: Final = ("param", "buffer")


def module_at(of: Any, places: Sequence[tuple[str, str]]) -> nn.Module:
    """Return the module of a path in a model; or the model itself, where it is that module.

    Args:
        of: The model, or the module.
        places: The path and the class that it has in each run.

    Raises:
        ModelError: `of` is no module.
        SelectionError: It has no such module.
    """
    if not isinstance(of, nn.Module):
        raise ModelError(
            f"`of` must be the model that was watched, or the module itself, got "
            f"{type(of).__name__}."
        )
    found = add_modules({}, "model", of)
    known = {path: each for each in found for path in (each.path, *each.aliases)}
    there = [(known[path], kind) for path, kind in places if path in known]
    there.sort(key=lambda each: each[0].type != each[1])  # those of the right class first
    alone = [found[0]] if found[0].type in {kind for _, kind in places} else []
    for each in [*(each for each, _ in there), *alone]:
        module = each.module()
        if module is not None:
            return module
    path, kind = places[0]
    near = closest(path, list(known))
    raise SelectionError(
        f"`of` has no module `{shown(path)}`, and is no {kind or 'module of its class'} itself."
        f"{near} Give the model that was watched, or the module."
    )


class Owned:
    """What a module owned in one step, as far as the run tells."""

    def __init__(self, rows: pd.DataFrame, known: Sequence[Kept], at: Kept) -> None:
        """Look at the rows and the kept tensors of the step."""
        inside = rows[(rows["model"].astype(str) == at.model) & (rows["api"].astype(str) == "")]
        paths = inside["module"].astype(str)
        below = f"{at.module}." if at.module else ""
        self._base = at.module
        self.rows = inside[(paths == at.module) | paths.str.startswith(below)]
        self._kept = [
            each
            for each in known
            if each.role in _ROLES
            and (each.model, each.step, each.direction) == (at.model, at.step, "forward")
            and each.data is not None
        ]

    def put(self, copy: nn.Module, state: Mapping[str, Any] | None) -> Iterator[str]:
        """Give the copy what was kept or handed in; yield what has to be known about it.

        Raises:
            SelectionError: `state` has nothing of the module.
        """
        if state is not None:
            self._load(copy, state)
            return
        for path, module in copy.named_modules():
            kept = [e for e in self._kept if e.module == _joined(self._base, path)]
            for each in kept:
                tensor = own(module, each.leaf)
                if tensor is not None and tensor.shape == each.shape:
                    tensor.data.copy_(widened(tensor_of(each)))
        owned = any(True for _ in (*copy.parameters(), *copy.buffers()))
        if owned and not self.rows["role"].isin(_ROLES).any():
            yield "no parameters of that step were recorded: those of the module now were taken"

    def _load(self, copy: nn.Module, state: Mapping[str, Any]) -> None:
        prefixes = ("", f"{self._base}." if self._base else "")
        own_names = copy.state_dict().keys()
        for prefix in reversed(prefixes):
            found = {
                name: widened(state[prefix + name])
                for name in own_names
                if isinstance(state.get(prefix + name), Tensor)
            }
            if found:
                copy.load_state_dict(found, strict=False)
                return
        if own_names:
            raise SelectionError(
                f"`state` has nothing of `{shown(self._base)}`: it needs {min(own_names)!r} "
                "or the same behind the path of the module."
            )

    def differing(self, copy: nn.Module, role: str) -> list[str]:
        """Return the parameters, or buffers, that are not those of the step."""
        pairs = self._pairs(copy, role)
        return [name for row, name, tensor in pairs if tensor is None or not _agrees(row, tensor)]

    def misfit(self, copy: nn.Module) -> str:
        """Say which parameter never was of this module, by its shape; "" if all may be."""
        for row, name, tensor in self._pairs(copy, "param"):
            if tensor is not None and (now := tuple(tensor.shape)) != (then := tuple(row.shape)):
                return f"the parameter {name} is {now}, and was {then}: this is another module"
        return ""

    def _pairs(self, copy: nn.Module, role: str) -> Iterator[tuple[Any, str, Tensor | None]]:
        """Yield the row of each parameter, or buffer; its name; and what has that name now."""
        rows = self.rows[(self.rows["role"] == role) & (self.rows["direction"] == "forward")]
        rows = rows.drop_duplicates(["module", "leaf"])
        modules = dict(copy.named_modules())
        for row in rows.itertuples():
            path = _below(self._base, str(row.module))
            module = modules.get(path)
            tensor = None if module is None else own(module, str(row.leaf))
            yield row, _joined(path, str(row.leaf)), tensor

    def set_modes(self, copy: nn.Module, call: int, micro_step: int) -> None:
        """Put every module of the copy into the mode that its rows have."""
        rows = self.rows[(self.rows["micro_step"] == micro_step)]
        rows = rows[rows["role"].isin(("input", "output")) & (rows["direction"] == "forward")]
        own_rows = (rows["module"].astype(str) != self._base) | (rows["call"] == call)
        seen = rows[own_rows].drop_duplicates("module")
        modes = {
            _below(self._base, str(m)): bool(t)
            for m, t in zip(seen["module"], seen["training"], strict=True)
            if not pd.isna(t)
        }
        if "" in modes and modes[""] != copy.training:
            copy.train(modes[""])
        for path, module in copy.named_modules():
            if path in modes:
                module.training = modes[path]

    def formats(self, call: int, micro_step: int) -> list[str]:
        """Return the dtypes of everything that was computed inside."""
        rows = self.rows[(self.rows["micro_step"] == micro_step)]
        rows = rows[rows["role"].isin(("input", "output"))]
        inner = (rows["module"].astype(str) != self._base) | (rows["call"] == call)
        return [str(each) for each in rows[inner]["dtype"].unique()]


def own(module: nn.Module, name: str) -> Tensor | None:
    """Return a parameter or buffer of a module itself."""
    found = module._parameters.get(name)  # noqa: SLF001
    return module._buffers.get(name) if found is None else found  # noqa: SLF001


def _joined(base: str, path: str) -> str:
    return ".".join(part for part in (base, path) if part)


def _below(base: str, path: str) -> str:
    return path.removeprefix(base).removeprefix(".")


def _agrees(row: Any, tensor: Tensor) -> bool:
    """Tell whether a row may be of this tensor."""
    if tuple(tensor.shape) != tuple(row.shape):
        return False
    checksum = row.checksum
    if isinstance(checksum, str) and checksum:
        narrow = tensor.detach().to(vars(torch).get(str(row.dtype), tensor.dtype))
        return (crc32 if len(checksum) == _HEX else xor)(narrow) == checksum
    if str(row.status) != "ok":
        return True
    values = tensor.detach().double().abs() if tensor.is_complex() else tensor.detach().double()
    values = values[values.isfinite()]
    if not values.numel():
        return True
    exact = {"min": values.min(), "max": values.max()}
    size = float(values.abs().max())
    about = {"mean": values.mean(), "l2": values.norm()}
    same = (_same(getattr(row, n), float(v), 1e-7 * size) for n, v in exact.items())
    near = (_same(getattr(row, n), float(v), _SUMS * max(size, float(v))) for n, v in about.items())
    return all(same) and all(near)


def _same(told: Any, found: float, within: float) -> bool:
    if pd.isna(told):
        return True
    return math.isclose(float(np.float64(told)), found, rel_tol=0.0, abs_tol=within)
