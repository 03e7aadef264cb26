"""Tensors in files of their own, `.pt` and `.npy`: opened when asked for, and never unpickled."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from probe_nb import torchless
from probe_nb.dump.folders import trouble
from probe_nb.errors import RunFormatError

SUFFIXES: Final = (".pt", ".npy")

_WIDTH: Final = re.compile(r"(?:u?int|float|bfloat|complex|qu?int)([0-9]+)")
_LONGEST: Final = 255
_SLACK: Final = 2**20
"""Bytes that a file may have beside its elements, whatever their number."""


def bytes_in(dtype: str, numel: int) -> int:
    """Return the bytes of so many elements, 0 where the type is not known.

    >>> bytes_in("bfloat16", 3), bytes_in("float8_e4m3fn", 3), bytes_in("bool", 3)
    (6, 3, 3)
    """
    found = _WIDTH.match(dtype)
    bits = 8 if dtype == "bool" else int(found[1]) if found else 0
    return numel * bits // 8


def refusal(name: Any) -> str:
    """Say why a name is not that of a file in a folder of tensors, "" if it is."""
    if not isinstance(name, str) or not name or len(name.encode(errors="replace")) > _LONGEST:
        return "it has no name that a file can have"
    if "/" in name or "\\" in name or "\0" in name or name in (".", ".."):
        return "its name leads out of the folder"
    return "" if name.endswith(SUFFIXES) else "it is neither .pt nor .npy"


class TensorFile(NamedTuple):
    """The bytes of a tensor in a file of its own."""

    path: Path
    root: Path
    dtype: str
    shape: tuple[int, ...]

    def result(self) -> NDArray[np.uint8]:
        """Read them.

        Raises:
            FileNotFoundError: Somebody removed the file.
            RunFormatError: It is no tensor, is another one, or leads out of the folder.
        """
        _checked(self.path, self.root)
        size, wanted = self.path.stat().st_size, bytes_in(self.dtype, math.prod(self.shape))
        if size > 16 * wanted + _SLACK:
            raise RunFormatError(
                f"`{self.path}` is not read: {size:,} bytes are no tensor of {self.shape}."
            )
        if size < wanted:  # what unpacks to more was made to fill memory: nobody packs them
            raise RunFormatError(
                f"Cannot read `{self.path}`: it is damaged, or holds fewer elements than it says."
            )
        return _guarded(self.path, self._bytes)

    def _bytes(self) -> NDArray[np.uint8]:
        import torch

        t = _opened(self.path)
        if tuple(t.shape) != self.shape:
            raise RunFormatError(f"`{self.path}` holds something else than the dump says.")
        dtype = vars(torch).get(self.dtype)  # NumPy has no bfloat16: it is written as float32
        if self.path.suffix == ".npy" and isinstance(dtype, torch.dtype):
            t = t.to(dtype)
        t = t.contiguous().reshape(-1)
        found: NDArray[np.uint8] = t.view(torch.uint8).numpy().copy() if t.numel() else _NOTHING
        return found


def as_array(path: Path, root: Path) -> NDArray[Any]:
    """Return a tensor as an array; what NumPy has no type for is widened.

    Raises:
        FileNotFoundError: It is not there.
        RunFormatError: It cannot be read.
    """
    _checked(path, root)
    return _guarded(path, lambda: _as_array(path))


def _as_array(path: Path) -> NDArray[Any]:
    import torch

    t = _opened(path)
    narrow = t.dtype == torch.bfloat16 or (t.is_floating_point() and t.element_size() == 1)
    found: NDArray[Any] = (t.float() if narrow else t).numpy()
    return found


def _checked(path: Path, root: Path) -> None:
    """Raise if a file is not there, or is none that may be opened."""
    why = trouble(path, root)
    if why == "it is not there":
        raise FileNotFoundError(f"There is no file `{path}`, in which a tensor should be.")
    if why:
        raise RunFormatError(f"`{path}` is not read: {why}.")


def _guarded(path: Path, read: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """Read what a path holds, where no mode or default device of the user's is heard."""
    with torchless.needed():
        import torch

    try:
        with torch._C.DisableTorchFunction():  # noqa: SLF001
            return read()
    except RunFormatError:
        raise
    except (
        pickle.UnpicklingError,
        Warning,
    ) as error:  # torch's own words advise to run what is in it
        raise RunFormatError(
            f"Cannot read `{path}`: it is no tensor alone, or damaged. Nothing in it was run."
        ) from error
    except Exception as error:  # whatever a damaged or hostile file does to its readers
        raise RunFormatError(f"Cannot read `{path}`: it is damaged ({_short(error)}).") from error


def _opened(path: Path) -> Any:
    """Return the tensor in a file, which has as many elements there as it says."""
    import torch

    if path.suffix == ".npy":
        array = np.load(path, allow_pickle=False)
        return torch.from_numpy(np.ascontiguousarray(array)).reshape(array.shape)
    found: Any = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(found, torch.Tensor):
        raise RunFormatError(f"`{path}` holds something else than a tensor.")
    if found.layout is torch.strided and not found.is_quantized:
        stored = found.untyped_storage().nbytes()
        if stored < found.numel() * found.element_size():  # repeated by strides of 0: no dump does
            raise RunFormatError(f"`{path}` is not read: it holds fewer elements than it says.")
    return found.detach().resolve_conj().resolve_neg()


_NOTHING: Final = np.empty(0, np.uint8)


def _short(error: Exception) -> str:
    return str(error).partition("\n")[0][:200] or type(error).__name__
