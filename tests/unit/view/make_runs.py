"""Runs made by hand, without torch: arrays of numbers become records, as a session would write them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from probe_nb.exponents import Histogram
from probe_nb.run import Run
from probe_nb.store.columns import HISTOGRAM, Columns
from probe_nb.store.table import DTYPES
from probe_nb.terms import COUNTS, STATISTICS, STATUS_CODE, RunInfo, Site

MAX = {"float16": 65504.0, "float32": 3.4028234663852886e38, "float8_e4m3fn": 448.0}
BACKWARD = ("grad_output", "grad_input", "param_grad")


@dataclass
class Book:
    """Collects records; `flush` makes a block of those since the last time."""

    columns: Columns = field(default_factory=Columns)
    info: RunInfo = field(default_factory=lambda: info())  # noqa: PLW0108 - defined below
    order: int = 0
    rows: list[dict] = field(default_factory=list)

    def add(
        self,
        module,
        values,
        role="output",
        *,
        step=0,
        kind="Linear",
        leaf="0",
        model="model",
        dtype="float32",
        shape=None,
        call=0,
        micro_step=0,
        status=None,
        loss_scale=np.nan,
        direction=None,
        rank=-1,
        requires_grad=True,
        subnormal=0,
        api="",
    ):
        """Record the statistics of `values`, or an absence with its reason."""
        direction = direction or ("backward" if role in BACKWARD else "forward")
        tables = self.columns.tables
        values = np.asarray(values, dtype=np.float64)
        row = dict.fromkeys(DTYPES, -1)
        row |= dict.fromkeys(STATISTICS, np.nan)
        row |= {
            "step": step,
            "call": call,
            "micro_step": micro_step,
            "order": self.order,
            "loss_scale": loss_scale,
            "rank": rank,
            "requires_grad": requires_grad,
        }
        row |= {
            "site": tables.sites.code(Site(model, module, kind, api, direction, role, leaf)),
            "dtype": tables.dtypes.code(dtype),
            "shape": tables.shapes.code(tuple(shape if shape is not None else values.shape)),
            "device": tables.devices.code("cpu"),
            "numel": values.size,
        }
        histogram = Histogram.of(np.empty(0))
        if status is None:
            measured, status = measure(values, dtype)
            row |= measured | {"subnormal_count": subnormal}
            histogram = Histogram.of(values)
        row["status"] = STATUS_CODE[status]
        row |= {
            "hist_size": len(histogram.bins),
            "bins": histogram.bins,
            "counts": histogram.counts,
        }
        self.order += 1
        self.rows.append(row)
        return self

    def flush(self):
        """Append what was added as one block."""
        if self.rows:
            block = {n: np.array([r[n] for r in self.rows]).astype(t) for n, t in DTYPES.items()}
            block[HISTOGRAM[0]] = np.array([r["hist_size"] for r in self.rows], np.uint16)
            block[HISTOGRAM[1]] = np.concatenate([r["bins"] for r in self.rows]).astype(np.uint16)
            block[HISTOGRAM[2]] = np.concatenate([r["counts"] for r in self.rows]).astype(np.uint32)
            self.columns.append(block)
            self.rows = []
        return self

    def run(self) -> Run:
        """Return the run of everything so far."""
        return Run(self.info, self.flush().columns)


def measure(values, dtype):
    """Return statistics and counts by their definition."""
    finite = values[np.isfinite(values)]
    found = {
        "nan_count": np.isnan(values).sum(),
        "posinf_count": np.isposinf(values).sum(),
        "neginf_count": np.isneginf(values).sum(),
        "zero_count": (values == 0).sum(),
        "subnormal_count": 0,
        "at_max_count": (np.abs(values) == MAX.get(dtype, np.inf)).sum() if finite.size else 0,
    }
    if finite.size:
        with np.errstate(over="ignore"):
            found |= {
                "min": finite.min(),
                "max": finite.max(),
                "mean": finite.mean(),
                "std": finite.std(),
                "l2": np.sqrt((finite**2).sum()),
                "absmax": np.abs(finite).max(),
            }
    assert set(found) >= set(COUNTS)
    return found, "ok" if finite.size else ("no_finite" if values.size else "empty")


def info(**changes) -> RunInfo:
    """Return a RunInfo of a finished run."""
    values = {
        "name": "",
        "created": "2026-01-01T00:00:00",
        "models": {"model": "ConvNet"},
        "modules": 1,
        "config": {},
        "versions": {},
        "devices": ["cpu"],
        "ended": "finished",
    }
    return RunInfo(**{**values, **changes})


def hundred_layers(bad=50, steps=3, bad_step=1, rng=0) -> Run:
    """A stack of 100 layers; layer `bad` gives NaN from `bad_step` on, and all after it inherit it."""
    book, random = Book(info=info(modules=101)), np.random.default_rng(rng)
    for step in range(steps):
        value = random.normal(size=(4, 8))
        for layer in range(100):
            book.add(f"layers.{layer}", value, "input", step=step)
            value = random.normal(size=(4, 8))
            if step >= bad_step and layer >= bad:
                value[0, : 3 if layer == bad else 8] = np.nan
            book.add(f"layers.{layer}", value, "output", step=step)
        book.flush()
    return book.run()
