"""`seed_all` on machines with accelerators: those that run, and those that did not start yet."""

from __future__ import annotations

import os

import torch

from probe_nb.devices import generators
from probe_nb.reproduce import seed_all


def test_what_accelerators_need_is_set_where_there_are_some(monkeypatch):
    monkeypatch.setattr(generators, "kind", lambda: "cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with seed_all():
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")  # which is as good
    with seed_all():
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    monkeypatch.setattr(generators, "kind", lambda: "npu")
    with seed_all():
        wanted = {
            "LCCL_DETERMINISTIC": "1",
            "CLOSE_MATMUL_K_SHIFT": "1",
            "ATB_LLM_LCOC_ENABLE": "0",
        }
        assert {name: os.environ[name] for name in wanted} == wanted
    assert not wanted.keys() & os.environ.keys()


def test_a_device_that_did_not_start_gets_the_seed_that_waited_for_it_again():
    tracker = torch.cuda._lazy_seed_tracker
    torch.manual_seed(55)
    waiting = tracker.manual_seed_all_cb
    seeded = seed_all(66)
    assert tracker.manual_seed_all_cb is not waiting
    seeded.restore()
    assert tracker.manual_seed_all_cb is waiting
    assert tracker.call_order[-1] is waiting


def test_a_device_that_started_meanwhile_goes_on_from_the_seed_that_waited(monkeypatch):
    called = []
    tracker = torch.cuda._lazy_seed_tracker
    monkeypatch.setattr(tracker, "manual_seed_all_cb", (lambda: called.append("seed"), []))
    seeded = seed_all(66)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    seeded.restore()
    assert called == ["seed"]


class Started:
    """An accelerator of two devices with random numbers of its own."""

    def __init__(self):
        self.default_generators = [torch.Generator().manual_seed(index) for index in range(2)]

    def is_initialized(self):
        return True

    def get_rng_state(self, device):
        return self.default_generators[device.index].get_state()

    def set_rng_state(self, state, device):
        self.default_generators[device.index].set_state(state)

    def manual_seed_all(self, seed):
        for each in self.default_generators:
            each.manual_seed(seed)


def test_every_device_is_seeded_and_goes_on_where_it_was(monkeypatch):
    fake = Started()
    monkeypatch.setattr(generators, "kind", lambda: "xpu")
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    for name in ("is_initialized", "get_rng_state", "set_rng_state", "manual_seed_all"):
        monkeypatch.setattr(torch.xpu, name, getattr(fake, name))
    before = [each.get_state() for each in fake.default_generators]
    with seed_all(8):
        expected = torch.rand(3, generator=torch.Generator().manual_seed(8))
        for each in fake.default_generators:
            assert torch.equal(torch.rand(3, generator=each), expected)
    after = [each.get_state() for each in fake.default_generators]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_one_device_of_apples_is_asked_without_its_number(monkeypatch):
    own = torch.Generator().manual_seed(1)
    monkeypatch.setattr(generators, "kind", lambda: "mps")
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(torch.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "get_rng_state", own.get_state)
    monkeypatch.setattr(torch.mps, "set_rng_state", own.set_state)
    monkeypatch.setattr(torch.mps, "manual_seed", own.manual_seed)
    before = own.get_state()
    with seed_all(8):
        assert own.initial_seed() == 8
    assert torch.equal(own.get_state(), before)
