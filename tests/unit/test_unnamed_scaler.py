"""The scaler that everybody forgets to name: a healthy run must not be called broken."""

from __future__ import annotations

import torch
from torch import nn

import probe_nb as probe


def trained(scale: float, steps: int = 12, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    named = {"scaler": scaler} if options.pop("named", False) else {}
    with probe.watch(model, optimizer=optimizer, live=False, **named, **options) as run:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 8)).square().mean() * 200
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    return run


def test_a_scaler_that_was_not_named_is_told_once():
    run = trained(2.0**4)
    (told,) = [text for text in run.info.notices if "GradScaler" in text]
    assert "`scaler=`" in told


def test_steps_that_it_skips_are_no_error():
    run = trained(2.0**127)
    findings = run.findings()
    assert "error" not in set(findings["severity"])
    first = findings.iloc[0]
    assert first["kind"] == "loss_scale"
    assert "GradScaler that was not named" in first["sentence"]
    assert "`scaler=`" in first["advice"]


def test_it_survives_in_the_file(tmp_path):
    run = trained(2.0**127)
    again = probe.load(run.save(tmp_path / "run.parquet"))
    assert again.findings()["sentence"].tolist() == run.findings()["sentence"].tolist()


def test_a_named_scaler_or_none_is_told_nothing():
    run = trained(2.0**4, named=True)
    assert not any("GradScaler" in text for text in run.info.notices)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with probe.watch(model, optimizer=optimizer, live=False) as run:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert not run.info.unnamed_scaler
    assert run.info.notices == []
