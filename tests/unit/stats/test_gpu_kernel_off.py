"""The CUDA kernel where it cannot be made: everything is left to torch's operators."""

from __future__ import annotations

import threading

import torch

from probe_nb.stats.kernels import gpu


def test_where_no_thread_can_be_started_tensors_are_left_to_torch(monkeypatch):
    def full(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(gpu, "_states", {})
    monkeypatch.setattr(threading.Thread, "start", full)
    rows = gpu.Rows(torch.device("cpu"))
    assert [rows.reduce(torch.ones(3)) for _ in range(2)] == [None, None]
    assert gpu._states == {torch.float32: "off"}
