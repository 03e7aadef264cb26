"""Finds every specimen of the zoo."""

from __future__ import annotations

import fnmatch
import importlib
import warnings
from pathlib import Path
from types import ModuleType

import torch

from tests.zoo import torch_modules
from tests.zoo.specimen import LARGEST, Specimen

_HERE = Path(__file__).parent
_RECIPES = ("text_*.py", "senses_*.py")


def specimens() -> list[Specimen]:
    """Return every specimen, those of PyTorch's own modules included, in order of name."""
    return sorted([*torch_modules.specimens(), *architectures()], key=lambda each: each.name)


def architectures() -> list[Specimen]:
    """Return the specimens of every module of recipes."""
    found = [each for room in _rooms() for each in getattr(room, "SPECIMENS", ())]
    names = [each.name for each in found]
    assert len(set(names)) == len(names), "two specimens have one name"
    return found


def left_out() -> dict[str, str]:
    """Return the architectures that modules of recipes leave out, each with the reason."""
    return {k: v for room in _rooms() for k, v in getattr(room, "LEFT_OUT", {}).items()}


def _rooms() -> list[ModuleType]:
    paths = sorted({path for pattern in _RECIPES for path in _HERE.glob(pattern)})
    return [importlib.import_module(f"tests.zoo.{path.stem}") for path in paths]


def matching(patterns: list[str]) -> list[Specimen]:
    """Return the specimens whose name or family matches one of the patterns."""
    return [
        each
        for each in specimens()
        if any(fnmatch.fnmatchcase(text, p) for p in patterns for text in (each.name, each.family))
    ]


def too_large(specimen: Specimen) -> str | None:
    """Say how large a specimen is if it is too large, before memory is taken for it."""
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = specimen.build()
    except Exception:  # builders that compute with their numbers cannot do without them
        return None
    size = sum(p.numel() for p in model.parameters() if not _is_lazy(p))
    return f"{size:,} parameters, more than {LARGEST:,}" if size > LARGEST else None


def _is_lazy(p: torch.Tensor) -> bool:
    return isinstance(p, torch.nn.UninitializedParameter)
