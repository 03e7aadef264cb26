"""Why `import torch` failed, in words; this is the one room that is of use when it did.

torch loads every installed backend extension by itself, and takes one that cannot be loaded for
a failure of its own: with torch_npu installed and Ascend's libraries not found, nothing that
imports torch works. A second attempt in the same process fails with an error about something
else, so it is said what came before.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator
from importlib import metadata

from probe_nb.errors import TorchError

_REMEDY = (
    "Where the device of that extension is, set up its libraries before Python starts (for "
    "torch_npu: source the set_env.sh of Ascend's CANN toolkit). Elsewhere set the environment "
    "variable TORCH_DEVICE_BACKEND_AUTOLOAD=0, or uninstall the extension. Then restart Python."
)


@contextlib.contextmanager
def needed() -> Iterator[None]:
    """Say of an import in here, where it fails because of torch, why and what to do.

    Raises:
        TorchError: torch cannot be imported.
    """
    try:
        yield
    except Exception as error:
        if not is_cause_of(error):
            raise
        raise explained(error) from error


def is_cause_of(error: BaseException) -> bool:
    """Tell whether an import ended because torch could not be imported."""
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return True
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return "torch" not in sys.modules and any(
        frame.f_globals.get("__name__") == "torch" for frame in frames
    )


def explained(error: BaseException) -> TorchError:
    """Return the error to raise in place of `error`, with which importing torch ended."""
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return TorchError("torch is not installed; only saved runs can be read without it.")
    if "Failed to load the backend extension" in str(error):
        extension = str(error).split("backend extension:")[-1].split()[0].rstrip(".")
        return TorchError(
            f"torch could not be imported: it loads {_with_version(extension)} by itself, and "
            f"that failed with {_said(_first(error))}. {_REMEDY}"
        )
    if "torch._C" in sys.modules and (extensions := list(_extensions())):
        return TorchError(
            "torch could not be imported. An import of it failed before in this process, so this "
            f"one ended with {_said(error)}, whatever the cause was. torch loads "
            f"{', '.join(extensions)} by itself; probably that failed. {_REMEDY}"
        )
    return TorchError(f"torch could not be imported: {_said(error)}.")


def _extensions() -> Iterator[str]:
    """Yield what torch loads by itself, each with its version."""
    for found in metadata.entry_points(group="torch.backends"):
        yield _with_version(found.name)


def _with_version(name: str) -> str:
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return name


def _first(error: BaseException) -> BaseException:
    """Return the error with which it all began."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    short = text if len(text) <= 200 else text[:200] + "..."  # noqa: PLR2004 - a line or two
    return f"{type(error).__name__}: {short}".rstrip(".")
