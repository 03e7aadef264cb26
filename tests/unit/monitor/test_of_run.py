"""Any run as a monitor's folder and as TensorBoard's events."""

from __future__ import annotations

import csv
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.errors import ConfigError, ProbeWarning
from probe_nb.exponents import Histogram
from probe_nb.exports.tensorboard import BoardError, buckets
from tests.models import no_faults


def recorded(**options: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with no_faults(), probe.watch(model, optimizer=optimizer, **options) as run:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 3)).sum().backward()
            optimizer.step()
    return run


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_any_run_becomes_a_folder_and_so_does_a_loaded_one(tmp_path):
    run = recorded()
    run.save(tmp_path / "run.parquet")
    made = [r.to_monitor_csv(tmp_path) for r in (run, probe.load(tmp_path / "run.parquet"))]
    names = [sorted(path.name for path in each.iterdir()) for each in made]
    assert names[0] == names[1]
    for name in names[0]:
        assert (made[0] / name).read_text() == (made[1] / name).read_text()
    assert {name.rpartition("_")[0] for name in names[0]} == {
        *("actv", "actv_grad", "exp_avg", "exp_avg_sq", "grad_reduced", "grad_unreduced"),
        *("param_origin", "param_updated", "update"),
    }


def test_what_an_optimizer_kept_after_a_step_is_what_it_has_before_the_next(tmp_path):
    plain = recorded().to_monitor_csv(tmp_path / "a", ndigits=12)
    told = recorded(extras={"state_before": "*"}).to_monitor_csv(tmp_path / "b", ndigits=12)
    for step in (1, 2):
        name = f"exp_avg_{step}-{step}.csv"
        for a, b in zip(rows(plain / name), rows(told / name), strict=True):
            assert a["name"] == b["name"]
            assert float(a["mean"]) == pytest.approx(float(b["mean"]), abs=1e-8)
    assert not (plain / "exp_avg_0-0.csv").exists()
    assert not (plain / "exp_avg_3-3.csv").exists()


def test_zeros_are_told_for_powers_of_two_and_refused_where_nothing_tells_them(tmp_path):
    x = torch.tensor([[0.0, 2.0**-27, 2.0**-26, 1.0, -(2.0**-28), 3e-8]])
    model = nn.Identity()
    with no_faults(), probe.watch(model, roles="input") as run:
        model(x)
    folder = run.to_monitor_csv(tmp_path, ops=["zeros"], eps=2.0**-26)
    share = float(rows(folder / "actv_0-0.csv")[0]["zeros"])
    assert share == pytest.approx((x.abs() < 2.0**-26).double().mean().item(), abs=1e-6)
    with pytest.raises(ConfigError, match=r"below:1e-08"):
        run.to_monitor_csv(tmp_path, ops=["zeros"], eps=1e-8)
    with no_faults(), probe.watch(model, roles="input", extras={"below:1e-8": "*"}) as run:
        model(x)
    folder = run.to_monitor_csv(tmp_path, ops=["zeros"], eps=1e-8)
    assert float(rows(folder / "actv_0-0.csv")[0]["zeros"]) == pytest.approx(3 / 6, abs=1e-6)


def test_an_operation_that_is_not_known_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="closest"):
        recorded(roles="input").to_monitor_csv(tmp_path, ops=["norms"])


# -- TensorBoard --------------------------------------------------------------------------------------


def events(folder: Path) -> dict[tuple[str, int], Any]:
    """Read event files by the framing of TFRecord: length, checksum, bytes, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found: dict[tuple[str, int], Any] = {}
    for path in folder.rglob("events.out.tfevents*"):
        data, place = path.read_bytes(), 0
        while place < len(data):
            (length,) = struct.unpack_from("<Q", data, place)
            event = Event.FromString(data[place + 12 : place + 12 + length])
            place += 12 + length + 4
            for value in event.summary.value:
                kind = value.WhichOneof("value")
                assert (value.tag, event.step) not in found
                found[value.tag, event.step] = getattr(value, kind)
    return found


def test_a_run_becomes_scalars_and_histograms(tmp_path):
    run = recorded()
    found = events(run.to_tensorboard(tmp_path / "board"))
    df = run.df
    row = df[(df["module"] == "0") & (df["role"] == "output") & (df["step"] == 1)].iloc[0]
    for stat in ("min", "max", "mean", "l2"):
        assert found[f"0/forward.output.0/{stat}", 1] == pytest.approx(row[stat], rel=1e-6)
    assert found["0/optimizer.state.weight.exp_avg/mean", 2]
    histogram = found["0/forward.output.0/histogram", 1]
    assert histogram.num == row["numel"]
    assert histogram.sum_squares == pytest.approx(row["l2"] ** 2)
    assert sum(histogram.bucket) == row["numel"]


def test_the_buckets_hold_what_numpy_counts_between_their_limits():
    rng = np.random.default_rng(0)
    x = rng.standard_normal(1000) * 2.0 ** rng.integers(-9, 9, 1000)
    x[:50] = 0
    limits, counts = buckets(Histogram.of(x))
    below = -np.inf
    for limit, count in zip(limits, counts, strict=True):
        assert count == ((x > below) & (x <= limit)).sum()
        below = limit
    assert sum(counts) == 1000


def test_histograms_of_only_zeros_or_only_one_sign_have_buckets():
    for x in (np.zeros(3), np.array([-1.5, -1.5, 0.0]), np.array([3.0])):
        limits, counts = buckets(Histogram.of(x))
        assert sum(counts) == len(x)
        assert limits == sorted(limits)


def test_a_module_that_runs_twice_has_two_lines(tmp_path):
    model = nn.Identity()
    with no_faults(), probe.watch(model, roles="input") as run:
        model(torch.ones(2))
        run.step()
        model(torch.ones(2) * 2)
        model(torch.ones(2) * 3)
    found = events(run.to_tensorboard(tmp_path))
    assert found["(root)/forward.input.0/max", 1] == 2.0
    assert found["(root)/forward.input.0#1/max", 1] == 3.0


def test_a_tensor_whose_square_no_float_holds_has_its_scalars_and_buckets(tmp_path):
    model = nn.Identity()
    with no_faults(), probe.watch(model, roles="input") as run:
        model(torch.tensor([3e200, -4e200], dtype=torch.float64))
    found = events(run.to_tensorboard(tmp_path))
    assert found["(root)/forward.input.0/max", 0] == pytest.approx(3e200) or np.isinf(
        found["(root)/forward.input.0/max", 0]  # scalars are of single precision there
    )
    histogram = found["(root)/forward.input.0/histogram", 0]
    assert (histogram.min, histogram.max) == (-4e200, 3e200)
    assert sum(histogram.bucket) == 2


def test_a_monitor_writes_tensorboard_too(tmp_path, monkeypatch):
    from probe_nb.monitor import TrainerMon

    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path))
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"format": "tensorboard", "xy_distribution": True, "wg_distribution": True}
    with TrainerMon({**config, "ops": ["max"]}) as monitor:
        monitor.set_monitor(model, optimizer)
        model(torch.tensor([[1.0, 2.0, 3.0]])).sum().backward()
        optimizer.step()
    assert monitor.folder is not None
    assert events(monitor.folder / "actv")["vp0:.input:micro0/max", 0] == 3.0
    assert events(monitor.folder / "grad_reduced")["vp0:weight/max", 0] == 3.0


def test_without_the_library_it_is_said_how_to_have_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(BoardError, match=r"pip install probe-nb\[tensorboard\]"):
        recorded(roles="input").to_tensorboard(tmp_path / "board")
    assert not (tmp_path / "board").exists()


def test_a_run_that_has_nothing_of_a_monitor_says_that_its_folder_is_empty(tmp_path):
    with probe.watch(level="debug") as run:
        probe.save(torch.ones(2), "x")
    with pytest.warns(ProbeWarning, match="is empty: a monitor's files hold modules"):
        folder = run.to_monitor_csv(tmp_path)
    assert list(folder.iterdir()) == []
