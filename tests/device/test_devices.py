"""What is said of devices is read without starting one."""

from __future__ import annotations

import sys
import types

import pytest
import torch

import probe_nb as probe
from probe_nb import devices
from probe_nb.devices import made_with
from probe_nb.errors import DeviceError

DRIVERS = {
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    "GCC version:  gcc version 12.3.0\n": "535.104.05",
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n": "570.86.15",
    "something else": None,
}


class Untouchable:
    """A device that was not started: every question but that one would start it."""

    def __init__(self, *, started: bool) -> None:
        self.started = started

    def is_initialized(self) -> bool:
        return self.started

    def device_count(self) -> int:
        assert self.started
        return 2

    def get_device_name(self, index: int) -> str:
        assert self.started
        return f"NVIDIA H{index}00"


@pytest.fixture
def cuda(monkeypatch, tmp_path):
    """Make torch believe that it is built for CUDA; return what stands for its driver's file."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch, "cuda", Untouchable(started=False))
    file = tmp_path / "version"
    monkeypatch.setattr(made_with, "_NVIDIA_DRIVER", file)
    return file


@pytest.mark.parametrize("text", DRIVERS)
def test_the_driver_is_read_from_where_it_says_so_itself(cuda, text):
    cuda.write_text(text)
    assert devices.versions().get("cuda_driver") == DRIVERS[text]
    assert devices.versions()["cuda"] == "12.8"


def test_without_the_driver_s_file_its_version_is_absent(cuda):
    assert "cuda_driver" not in devices.versions()


def test_a_device_that_nobody_started_is_not_started_and_not_listed(cuda):
    assert devices.names() == ["cpu"]


def test_a_device_that_was_started_has_its_name(cuda, monkeypatch):
    monkeypatch.setattr(torch, "cuda", Untouchable(started=True))
    assert devices.names() == ["cuda:0 NVIDIA H000", "cuda:1 NVIDIA H100"]


def test_torch_2_6_raises_where_newer_ones_say_that_there_is_no_accelerator(monkeypatch):
    def raises():
        raise RuntimeError("Cannot access accelerator device when none is available.")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", raises)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert devices.names() == ["cpu"]
    assert str(devices.find()) == "cpu"
    with pytest.raises(DeviceError, match="finds no accelerator, only `cpu`"):
        devices.find("cuda")


def test_a_torch_built_for_cuda_that_finds_no_gpu_says_both(cuda, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(DeviceError) as raised:
        devices.find("cuda")
    assert "finds no accelerator, only `cpu`, though it is built or extended for cuda" in str(
        raised.value
    )
    assert "nvidia-smi" in str(raised.value)
    assert str(devices.find()) == "cpu"


def test_a_run_says_with_what_it_was_made_also_after_it_was_saved(tmp_path):
    model = torch.nn.Linear(2, 2)
    with probe.watch(model, live=False) as run:
        model(torch.ones(1, 2))
    loaded = probe.load(run.save(tmp_path / "run.parquet"))
    for info in (run.info, loaded.info):
        assert info.devices == ["cpu"]
        assert info.versions["torch"] == torch.__version__
        assert info.versions["probe_nb"] == probe.__version__
        assert info.versions["cpu_kernel"] in ("numba", "torch")


def test_a_device_that_is_started_under_the_watch_is_named(monkeypatch):
    model = torch.nn.Linear(2, 2)
    with probe.watch(model, live=False) as run:
        assert run.info.devices == ["cpu"]
        monkeypatch.setattr(devices, "names", lambda: ["npu:0 Ascend910B3"])
        monkeypatch.setattr(devices, "notices", lambda: [devices.SATURATES])
        model(torch.ones(1, 2))
    assert run.info.devices == ["npu:0 Ascend910B3"]
    assert run.info.notices == [devices.SATURATES]


@pytest.mark.parametrize(
    ("layout", "private"),
    [
        (-1, False),
        (0, False),
        (1, False),
        (2, False),
        (30, False),
        (3, True),
        (29, True),
        (33, True),
    ],
)
def test_layouts_whose_elements_lie_as_the_strides_say_are_not_private(
    monkeypatch, layout, private
):
    fake = types.SimpleNamespace(get_npu_format=lambda t: layout)
    monkeypatch.setitem(sys.modules, "torch_npu", fake)
    t = types.SimpleNamespace(device=types.SimpleNamespace(type="npu"))
    assert devices.private_format(t) is private


def test_an_npu_that_does_not_say_its_layout_is_measured(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_npu", types.SimpleNamespace())
    t = types.SimpleNamespace(device=types.SimpleNamespace(type="npu"))
    assert devices.private_format(t) is False


@pytest.mark.parametrize("capturing", [True, False])
def test_a_graph_of_an_npu_that_is_being_captured_is_seen(monkeypatch, capturing):
    npu = types.SimpleNamespace(
        is_initialized=lambda: True, is_current_stream_capturing=lambda: capturing
    )
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setitem(sys.modules, "torch_npu", types.SimpleNamespace(npu=npu))
    assert devices.capturing() is capturing


def test_a_kind_of_device_of_which_there_is_one_is_always_the_current_one():
    with devices.on(torch.device("mps", 0)) as nothing:  # `torch.mps` has no `current_device`
        assert nothing is None
