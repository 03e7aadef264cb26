"""What a monitor asks a session for, and small things that it asks the machine."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from probe_nb.errors import ConfigError
from probe_nb.exports.layout import FEATURES, Layout
from probe_nb.exports.monitor_csv import moment, new_folder
from probe_nb.monitor.settings import LARGEST, Settings
from probe_nb.run import Run
from probe_nb.terms import ROOT_LABEL

_FOLDER: Final = re.compile(r"(?P<stamp>[A-Z][a-z]{2}\d{2}_\d{2}-\d{2}-\d{2})-rank(?P<rank>\d+)-")
NEVER: Final = [2**29]
"""A step that does not come: what is recorded where only steps are counted."""


def rank() -> int:
    """Return the rank of this process, 0 where there is but one."""
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if there else 0


# -- a session -------------------------------------------------------------------------------


def options(settings: Settings, *, several: bool) -> dict[str, Any]:
    """Return the options of `watch` that record what is asked for; `roles` may be empty."""
    extras = _extras(settings)
    roles = _roles(settings)
    if extras and not roles and any(not key.startswith("below:") for key in extras):
        roles = ["state"] if settings.watches_parameters else ["output"]
    return {
        "roles": roles,
        "select": _select(settings, several=several),
        "when": "train",
        "stacks": settings.asks("stack_info"),
        "extras": extras or None,
    }


def of_structure() -> dict[str, Any]:
    """Return the options that record the structure alone."""
    roles = ["input", "output", "grad_input", "grad_output"]
    return {"structure": True, "roles": roles, "when": "train"}


def steps(settings: Settings) -> str:
    """Return the steps that are recorded, as `watch` takes them."""
    first, interval = settings.numbers["start_step"], settings.numbers["step_interval"]
    times = settings.numbers["collect_times"]
    last = "" if times >= LARGEST else first + interval * times
    return f"{first}:{last}:{interval}"


def _roles(settings: Settings) -> list[str]:
    roles = []
    if settings.asks("xy_distribution"):
        roles += [] if settings.asks("backward_only") else ["input", "output"]
        roles += [] if settings.asks("forward_only") else ["grad_input", "grad_output"]
    roles += ["param_grad"] if settings.asks("wg_distribution") else []
    of_weights = {"linear_hook", "moe_router_weight_hook"} & set(settings.features)
    roles += ["param"] if settings.asks("param_distribution") or of_weights else []
    roles += ["update"] if settings.asks("ur_distribution") else []
    return roles


def _extras(settings: Settings) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "zeros" in settings.ops:
        found[f"below:{settings.eps!r}"] = "*"
    if settings.asks("mv_distribution"):
        found["state_before"] = "*"
    if settings.asks("mg_direction"):
        found["grad_direction"] = "*"
    causal = f":{settings.order}+causal"
    names = {
        "attention_hook": (f"attention_entropy{causal}", f"softmax_max{causal}"),
        "linear_hook": ("spectral_norm", "stable_rank"),
        "moe_router_weight_hook": ("router_similarity",),
        "moe_router_logit_hook": ("expert_entropy",),
    }
    for hook, modules in settings.features.items():
        patterns = [_plain(each) for each in modules] or ["*"]
        if hook == "linear_hook" and not modules:
            patterns = ["*", "!type:Embedding", "!type:EmbeddingBag"]
        found |= dict.fromkeys(names[hook], patterns)
    return found


def _select(settings: Settings, *, several: bool) -> list[str] | None:
    """Return patterns on the modules that are watched, None for all."""
    if not settings.targets or settings.all_modules or settings.asks("squash_name"):
        return None
    found = []
    for target in settings.targets:
        path = _plain(target)
        if several and _staged(target) and path != ROOT_LABEL:
            path = target.replace(":", ".", 1)
        found += [path, f"{path}*"] if settings.watches_parameters else [path]
    for modules in settings.features.values():
        found += [_plain(each) for each in modules]
    return found


def _staged(target: str) -> bool:
    return target.partition(":")[0].isdecimal() and ":" in target


def _plain(target: str) -> str:
    """Return a target without its stage, `0:fc1`; the root has no name of its own."""
    return (target.partition(":")[2] if _staged(target) else target) or ROOT_LABEL


# -- what is written -------------------------------------------------------------------------


def quantities(layout: Layout, table: str) -> tuple[str, ...]:
    """Return the columns of a table that hold quantities."""
    return FEATURES.get(table, layout.ops)


def stacks(run: Run, named: Callable[[str, str], str]) -> dict[str, str]:
    """Return of each module from where it was called first."""
    calls = run.calls()
    found: dict[str, str] = {}
    for model, module, api, stack in zip(
        *(calls[name].astype(object) for name in ("model", "module", "api", "stack")), strict=True
    ):
        if not api and isinstance(stack, str):
            found.setdefault(named(str(model), str(module)), stack)
    return found


def place(base: Path, settings: Settings, rank: int) -> Path:
    """Return the folder to write to: a new one, or that of this rank to be appended to.

    Raises:
        ConfigError: There is none to be appended to.
    """
    if settings.append is None:
        return new_folder(base, rank)
    found = folders_between(base, *settings.append)
    if rank not in found:
        raise ConfigError(
            f"`append_output` is {list(settings.append)}, and `{base}` has no folder of rank "
            f"{rank} of that time."
        )
    return found[rank]


def folders_between(base: Path, first: str, last: str) -> dict[int, Path]:
    """Return the folders of each rank that were begun between two moments.

    Raises:
        ConfigError: A moment is not spelled as the names of folders are, or comes too late.
    """
    begin, end = moment(first), moment(last)
    if begin > end:
        raise ConfigError(f"`append_output` begins with {first!r}, later than its end {last!r}.")
    found: dict[int, Path] = {}
    for path in sorted(base.iterdir()) if base.is_dir() else ():
        known = _FOLDER.match(path.name)
        if known and begin <= moment(known["stamp"]) <= end:
            found[int(known["rank"])] = path
    return found


def beginning(settings: Settings, step: int) -> Settings:
    """Return the same settings, of which the first step that is collected is another."""
    return replace(settings, numbers=settings.numbers | {"start_step": step})
