"""Use the simulated NPU as people do: autocast, layouts, saturation, the self-check. Print JSON.

Run as a script in a process of its own: `python -m tests.device.npu_in_use`.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import torch
from torch import nn

import probe_nb as probe
from probe_nb import devices
from probe_nb.checkup import behaviour, models, numbers
from probe_nb.errors import DeviceError
from probe_nb.recorder import Recorder
from probe_nb.stats.kernels import eager
from tests.device import simulated_npu as npu

FRACTAL_NZ, NCDHW = 29, 30
VERSIONS = {"CANN": "8.5.0", "DRIVER": "25.3.rc1"}


def autocast() -> dict[str, Any]:
    """Train under autocast, bare and watched."""
    specimen = models.SPECIMENS[0]
    bare, watched = (
        models.trained(specimen, npu.NPU, watched=watched, bfloat16=True)
        for watched in (False, True)
    )
    outputs = watched.run.frame(module="0", role="output")
    return {
        "difference": bare.first_difference(watched),
        "dtypes": sorted(set(outputs["dtype"])),
        "statuses": sorted(set(watched.run.df["status"])),
        "devices": sorted(set(watched.run.df[watched.run.df["role"] != "state"]["device"])),
    }


def layouts() -> dict[str, Any]:
    """Watch a tensor of each layout, and see which operators touch the one that is not plain."""
    touched: list[tuple[int, ...]] = []
    operate = npu.run

    def noting(operator, *args, **kwargs):
        touched.extend(tuple(a.shape) for a in args if isinstance(a, npu.OnNpu))
        return operate(operator, *args, **kwargs)

    private = torch.ones(16, 16).to("npu")
    plain = {"video": torch.ones(1, 2, 3, 4, 5).to("npu"), "matrix": torch.ones(3, 4).to("npu")}
    layout = {(16, 16): FRACTAL_NZ, (1, 2, 3, 4, 5): NCDHW}
    module = nn.Identity()
    fake = npu.fake_torch_npu(formats=layout)
    with npu.installed(fake), probe.watch(module, roles="input") as run:
        npu.run = noting
        for t in (*plain.values(), private):
            module(t)
        npu.run = operate
    frame = run.df
    return {
        "statuses": frame["status"].tolist(),
        "max": [None if value is None else float(value) for value in frame["max"].tolist()[:2]],
        "touched": [shape in touched for shape in ((1, 2, 3, 4, 5), (3, 4), (16, 16))],
    }


def saturated() -> dict[str, Any]:
    """Overflow in float16 as an NPU in saturation mode does, and as one that makes infinities."""
    found: dict[str, Any] = {}
    for saturation in (True, False):
        npu.saturation = saturation

        class Exp(nn.Module):
            def forward(self, x):
                return x.exp()

        model = Exp()
        x = torch.tensor([12.0, 1.0], dtype=torch.float16).to("npu")
        fake = npu.fake_torch_npu(versions=VERSIONS)
        with npu.installed(fake), probe.watch(model, roles="output") as run:
            model(x)
        row = run.df.iloc[0]
        found[f"saturation {saturation}"] = {
            "max": float(row["max"]),
            "at_max": int(row["at_max_count"]),
            "posinf": int(row["posinf_count"]),
            "notices": run.info.notices,
            "overflow": run.info.versions["npu_overflow"],
        }
    npu.saturation = False
    return found


def said() -> dict[str, Any]:
    """What a run says of the device, before it was started and after."""
    answers: dict[str, Any] = {}
    with npu.installed(npu.fake_torch_npu(versions=VERSIONS)):
        for started in (False, True):
            npu.module.initialized = started
            versions = devices.versions()
            answers[f"started {started}"] = {
                "names": devices.names(),
                "versions": {k: v for k, v in versions.items() if k not in ("torch", "hip")},
            }
        old = npu.fake_torch_npu(versions=VERSIONS)
        del old.npu.utils.get_cann_version
        with npu.installed(old):
            answers["old"] = sorted(devices.versions())
        sys.modules["torch_npu"] = old  # `installed` takes it away again
    answers["found"] = [str(devices.find(asked)) for asked in (None, "npu", "npu:0", "cpu")]
    answers["refused"] = {asked: refusal(asked) for asked in ("npu:1", "cuda", "mps")}
    return answers


def refusal(asked: str) -> str:
    try:
        return f"found {devices.find(asked)}"
    except DeviceError as error:
        return str(error)


def self_checks() -> dict[str, Any]:
    """Check it, with a mode of the user's that forbids waits, then with something broken."""
    npu.module.set_sync_debug_mode("error")
    behaviour._PAIRS = 1
    report = probe.self_check("npu")
    mode_after = npu.module.get_sync_debug_mode()
    npu.module.set_sync_debug_mode("default")
    found = {"whole": [[c.check, c.subject, c.outcome, c.detail] for c in report.checks]}
    found |= {"ok": report.ok, "mode after": mode_after, "text": repr(report)}
    genuine = Recorder.tensor, eager._at_max, numbers._FLOATS, numbers._WHOLE
    numbers._FLOATS, numbers._WHOLE = (torch.float16,), ()

    def waits(self, call, where, t, *rest):
        t.detach().sum().item()
        genuine[0](self, call, where, t, *rest)

    Recorder.tensor = waits
    found["a hook that waits"] = [c.outcome for c in behaviour.waits(npu.NPU)]
    Recorder.tensor = genuine[0]
    eager._at_max = lambda y, dtype: genuine[1](y, dtype) + 1
    found["a wrong kernel"] = [[c.outcome, c.detail] for c in numbers.checks(npu.NPU)]
    eager._at_max = lambda y, dtype: genuine[1](y.double(), dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found["float64"] = [[c.outcome, c.detail] for c in numbers.checks(npu.NPU)]
    eager._at_max = genuine[1]
    numbers._FLOATS, numbers._WHOLE = genuine[2:]
    return found


def main() -> dict[str, Any]:
    rooms = (autocast, layouts, saturated, said, self_checks)
    return {room.__name__: room() for room in rooms}


if __name__ == "__main__":
    warnings.simplefilter("error")
    sys.stdout.write(json.dumps(main()))
