"""`%probe_compare` in a real kernel."""

from __future__ import annotations

import pytest

SETUP = """
import torch
from torch import nn
import probe_nb as probe
%load_ext probe_nb
torch.manual_seed(0)
model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8)), torch.randn(16, 8)
with probe.watch(model) as gpu:
    model(x)
model[2].eps = 0.01
with probe.watch(model) as npu:
    model(x)
"""


def test_two_runs_are_compared_and_shown(kernel):
    assert kernel.run(SETUP).status == "ok"
    reply = kernel.run("%probe_compare gpu npu")
    assert "first diverges at 2 (LayerNorm) at step 0: forward output" in reply.value
    assert "<table" in reply.bundle["text/html"]
    kernel.run("c = %probe_compare gpu npu --tolerance 1e6")
    assert kernel.value("c.first_divergence() is None")
    assert kernel.run("%probe_compare gpu npu;").value is None


def test_a_saved_run_is_named_by_its_path(kernel, tmp_path):
    kernel.run(SETUP)
    kernel.run(f"_ = gpu.save({str(tmp_path / 'a b.parquet')!r})")
    for line in (f'%probe_compare "{tmp_path}/a b.parquet" npu', "%probe_compare name, npu"):
        kernel.run(f"name = {str(tmp_path / 'a b.parquet')!r}")
        assert "first diverges at 2" in kernel.run(line).value


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%probe_compare gpu", "takes the run to trust and the run in question"),
        ("%probe_compare gpu npu --fuzy", "is not an option"),
        ("%probe_compare gpu model", "is a Sequential and no run"),
        ("%probe_compare gpu nqu", "`nqu` is not defined"),
        ("%probe_compare gpu --ranks 0", "is no pair of ranks"),
        ("%probe_compare gpu --ranks 0,1", "No record of this run is of rank 0"),
        ("%probe_compare gpu npu --tolerance tf31", "Known: float64"),
    ],
)
def test_a_mistake_is_told_in_one_line(kernel, line, message):
    kernel.run(SETUP)
    reply = kernel.run(line)
    assert message in reply.stderr
    assert reply.stderr.startswith("UsageError")
