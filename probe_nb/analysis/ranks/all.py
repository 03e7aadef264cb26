"""Everything that is said about the ranks of a run."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Final

import numpy as np

from probe_nb.analysis.origins import first_nonfinite
from probe_nb.analysis.ranks.drift import PARTS, Drift
from probe_nb.analysis.ranks.inputs import Inputs
from probe_nb.analysis.ranks.rows import Rows
from probe_nb.analysis.ranks.sizes import Sizes, stopped
from probe_nb.analysis.ranks.statement import Statement
from probe_nb.store.about_many import of_ranks
from probe_nb.store.columns import Columns, Filter
from probe_nb.terms import RunInfo, Site

OUTLIER: Final = 10.0


def compared(
    columns: Columns, info: RunInfo, *, ignore: Sequence[str] = (), outlier: float = OUTLIER
) -> list[Statement]:
    """Return all statements, the gravest first.

    Args:
        columns: The records.
        info: What the run says about itself.
        ignore: Patterns of modules whose parameters differ on purpose.
        outlier: How many times larger than the others makes a rank stick out.
    """
    said = [*_nonfinite(columns, info), *drift(columns, ignore), *_inputs(columns)]
    said += _sizes(columns, outlier)
    said += stopped(last_steps(columns))
    return sorted(said, key=lambda each: each.place)


def last_steps(columns: Columns) -> dict[int, int]:
    """Return the last step of each rank."""
    found: dict[int, int] = {}
    for _, block in columns.chunks(names=("rank", "step")):
        for rank in np.unique(block["rank"]).tolist():
            newest = int(block["step"][block["rank"] == rank].max())
            found[rank] = max(newest, found.get(rank, newest))
    return {rank: step for rank, step in sorted(found.items()) if rank >= 0}


def drift(columns: Columns, ignore: Sequence[str]) -> list[Statement]:
    """Say whether all ranks have the same parameters, but of the modules that are ignored."""

    def whole(site: Site) -> bool:
        taken = not any(fnmatch.fnmatch(site.module, pattern) for pattern in ignore)
        return taken and not site.leaf.endswith(PARTS)

    sites = columns.tables.sites.values
    params = Rows(columns, lambda s: s.role == "param" and not s.api and whole(s))
    if not len(params):
        params = Rows(columns, lambda s: s.role == "param" and whole(s))
    grads = Rows(columns, lambda s: s.role == "param_grad" and whole(s))
    shards = {
        (s.model, s.module, s.leaf) for s in sites if s.role == "param" and s.leaf.endswith(PARTS)
    }
    return [*Drift(params, grads, len(shards)).said()]


def _inputs(columns: Columns) -> list[Statement]:
    split = any(".shard" in site.leaf for site in columns.tables.sites.values)
    rows = Rows(columns, lambda s: s.role == "input" and not s.module and not s.api)
    return [*Inputs(rows, split=split).said()]


def _sizes(columns: Columns, limit: float) -> list[Statement]:
    added = Rows(
        columns,
        lambda s: (
            (s.role, s.direction) == ("param_grad", "backward")
            and "grad" not in s.leaf.split(".")[1:]
            and not s.leaf.endswith(PARTS)
        ),
    )
    losses = Rows(columns, lambda s: s.role == "output" and not s.api and _is_loss(s))
    single = losses.data["numel"] == 1
    values = np.where(single, losses.data["absmax"], np.nan)
    said = [*Sizes(added, "The gradient", limit).said(added.data["l2"], squares=True)]
    if single.any() and not said:  # a large loss makes large gradients: it is said once
        said = [*Sizes(losses, "The loss", limit).said(values, squares=False)]
    return said


def _is_loss(site: Site) -> bool:
    return not site.module or site.type.endswith("Loss")


def _nonfinite(columns: Columns, info: RunInfo) -> list[Statement]:
    born = first_nonfinite(columns, info)
    if born is None:
        return []
    since: dict[int, list[int]] = {}
    bad = [Filter("nan_count", lambda values: values > 0)]
    if born.kind != "NaN":
        bad = [Filter("posinf_count", lambda values: values > 0)]
    _, found = columns.where(bad, ("rank", "step"))
    for rank in np.unique(found["rank"]).tolist():
        if rank not in (born.rank, -1):
            first = int(found["step"][found["rank"] == rank].min())
            since.setdefault(first, []).append(rank)
    then = [f"then on {of_ranks(since[step])} from step {step} on" for step in sorted(since)]
    ranks = () if born.rank is None else (born.rank,)
    return [
        Statement(
            "error",
            "non_finite",
            ranks,
            born.sentence,
            step=born.step,
            at=Site(born.model, born.module, born.type, "", "forward", "output", born.leaf),
            detail="; ".join([born.detail, *(then or ["on no other rank"])]),
            advice=born.advice,
            rows=tuple(born.rows.index.tolist()),
        )
    ]
