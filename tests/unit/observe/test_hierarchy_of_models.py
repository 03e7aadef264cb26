"""The nesting of models that are not ours to write: the museum, and one that msProbe has seen."""

from __future__ import annotations

import contextlib
import copy
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

import probe_nb as probe
from tests import models
from tests.models import no_faults
from tests.unit.observe.test_hierarchy import Row, plain

if TYPE_CHECKING:
    from pathlib import Path


def run_seen(
    model: nn.Module, feed: models.Feed, found: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run a model and write down what is called in what, where modules are called."""
    names: dict[int, str] = {}
    for path, module in model.named_modules():
        names.setdefault(id(module), path)
    counts: dict[str, int] = {}
    local = threading.local()
    original = nn.Module.__call__

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        name = names.get(id(self))
        if name is None or torch._C._current_graph_task_id() != -1:
            return original(self, *args, **kwargs)
        around = vars(local).setdefault("stack", [])
        counts[name] = counts.get(name, -1) + 1
        found.append((name, counts[name], around[-1] if around else None))
        around.append(len(found) - 1)
        try:
            return original(self, *args, **kwargs)
        finally:
            around.pop()

    monkeypatch.setattr(nn.Module, "__call__", call)
    args, kwargs = feed
    try:
        output = model(*args, **kwargs)
    finally:
        monkeypatch.undo()
    if (loss := models.total(output)) is not None:
        loss.backward()


@pytest.mark.parametrize("level", ["module", "mix"])
@pytest.mark.parametrize("name", sorted(models.pieces()))
def test_the_nesting_of_the_museum(name: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every awkward model: as seen from where its modules are called."""
    piece = models.pieces()[name]
    model, expected = piece.build(), list[Row]()
    with probe.watch(model, level=level) as run, contextlib.suppress(piece.raises or ()):
        run_seen(model, piece.inputs(), expected, monkeypatch)
    assert expected
    frame = run.calls()
    modules = frame[frame["api"] == ""]
    place = {label: number for number, label in enumerate(modules.index)}
    parents = [None if each is None else place[each] for each in plain(modules["parent"])]
    found = list(zip(modules["module"].tolist(), modules["call"].tolist(), parents, strict=True))
    assert found == expected


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)),
            *(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)),
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.pool(self.features(x)).flatten(1))


CONSTRUCT = """
cnn.ConvNet.0 -
cnn.features.Sequential.0 cnn.ConvNet.0
cnn.features.0.Conv2d.0 cnn.features.Sequential.0
Functional.conv2d.0 cnn.features.0.Conv2d.0
cnn.features.1.BatchNorm2d.0 cnn.features.Sequential.0
Tensor.add_.0 cnn.features.1.BatchNorm2d.0
Functional.batch_norm.0 cnn.features.1.BatchNorm2d.0
cnn.features.2.ReLU.0 cnn.features.Sequential.0
Functional.relu.0 cnn.features.2.ReLU.0
cnn.features.3.Conv2d.0 cnn.features.Sequential.0
Functional.conv2d.1 cnn.features.3.Conv2d.0
cnn.features.4.BatchNorm2d.0 cnn.features.Sequential.0
Tensor.add_.1 cnn.features.4.BatchNorm2d.0
Functional.batch_norm.1 cnn.features.4.BatchNorm2d.0
cnn.features.5.ReLU.0 cnn.features.Sequential.0
Functional.relu.1 cnn.features.5.ReLU.0
cnn.pool.AdaptiveAvgPool2d.0 cnn.ConvNet.0
Functional.adaptive_avg_pool2d.0 cnn.pool.AdaptiveAvgPool2d.0
Tensor.flatten.0 cnn.ConvNet.0
cnn.fc.Linear.0 cnn.ConvNet.0
Functional.linear.0 cnn.fc.Linear.0
"""
"""What the construct.json says that msProbe 26.2.0 wrote of this model at its level mix."""


def test_msprobe_nests_a_network_in_the_same_way(tmp_path: Path) -> None:
    model = nn.Sequential()
    model.add_module("cnn", ConvNet())
    with no_faults(), probe.watch(model, level="mix", apis="all", stacks=True) as run:
        model(torch.ones(4, 3, 8, 8))
    frame = run.calls()
    inside = frame[frame["module"] != ""]
    names = {r.Index: f"{r.api or f'{r.module}.{r.type}'}.{r.call}" for r in inside.itertuples()}
    parents = [names.get(each, "-") for each in plain(inside["parent"])]
    pairs = [f"{name} {up}" for name, up in zip(names.values(), parents, strict=True)]
    assert pairs == CONSTRUCT.split("\n")[1:-1]
    assert probe.load(run.save(tmp_path / "a.parquet")).calls().equals(frame)
    assert copy.deepcopy(run).calls().equals(frame)
