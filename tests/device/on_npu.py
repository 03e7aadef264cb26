"""Train on the simulated NPU, bare and watched, and print what was seen as JSON.

Run as a script in a process of its own: `python -m tests.device.on_npu`.
"""

from __future__ import annotations

import json
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import OptState

import probe_nb as probe
from tests import oracle
from tests.device import simulated_npu as npu

STEPS = 3
STATISTICS = [*oracle.STATISTICS, "nan_count", "posinf_count", "zero_count", "subnormal_count"]


class Net(nn.Module):
    """Ids, an in-place module, a transposed view, a NaN and an infinity on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = nn.Embedding(50, 8)
        self.first = nn.Linear(8, 16)
        self.act = nn.ReLU(inplace=True)
        self.norm = nn.LayerNorm(16)
        self.mask = nn.Identity()
        self.head = nn.Linear(16, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.act(self.first(self.ids(ids))))
        self.mask(h.transpose(0, 1) / (h.transpose(0, 1) > 0.5))
        return self.head(h)


class Scaler(torch.amp.GradScaler):
    """torch's own, without its one division in float64."""

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        state = self._per_optimizer_states[id(optimizer)]
        found = torch.full((), 0.0, device=self._scale.device)
        inverse = self._scale.reciprocal()
        state["found_inf_per_device"] = self._unscale_grads_(optimizer, inverse, found, False)
        state["stage"] = OptState.UNSCALED


def trained(device: str, *, watched: bool, scaled: bool = False) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Net().to(device)
    ids = torch.arange(24).reshape(4, 6).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = Scaler(device, init_scale=2.0**10) if scaled else None
    watch = probe.watch(model, optimizer=optimizer, scaler=scaler) if watched else None
    run = watch.__enter__() if watch else None
    npu.waits.clear()
    inside, outputs = 0, []
    for _ in range(STEPS):
        loss = model(ids).square().mean()
        before = len(npu.waits)
        (loss if scaler is None else scaler.scale(loss)).backward()
        inside += len(npu.waits) - before
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
        outputs.append(loss.detach())
    if watch:
        watch.__exit__(None, None, None)
    waits = list(npu.waits)
    state = [*outputs, *model.state_dict().values()]
    bits = [t.cpu().reshape(-1).view(torch.uint8).tolist() for t in state]
    return {"bits": bits, "waits": waits, "waits in backward": inside, "run": run}


def truth() -> dict[str, Any]:
    """What a plain twin on the CPU sees in the first step: its modules, and its optimizer."""
    torch.manual_seed(0)
    model, seen = Net(), {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def note(key: str, t: torch.Tensor) -> None:
        want = oracle.expected(t.clone())
        numbers = dict.fromkeys(oracle.STATISTICS) | (want.statistics or {}) | want.counts
        bins = [[*key, count] for key, count in sorted(want.bins.items())]
        seen[key] = {"numbers": {name: numbers[name] for name in STATISTICS}, "bins": bins}

    def before(name: str):
        return lambda module, args: note(f"{name} input 0", args[0])

    def after(name: str):
        def hook(module, args, out):
            note(f"{name} output 0", out)
            if out.requires_grad:
                out.register_hook(lambda g: note(f"{name} grad_output 0", g))

        return hook

    for name, module in model.named_modules():
        module.register_forward_pre_hook(before(name))
        module.register_forward_hook(after(name))
        for leaf, parameter in module.named_parameters(recurse=False):
            note(f"{name} param {leaf}", parameter)
    model(torch.arange(24).reshape(4, 6)).square().mean().backward()
    for name, module in model.named_modules():
        for leaf, parameter in module.named_parameters(recurse=False):
            note(f"{name} param_grad {leaf}", parameter.grad)
    of_optimizer(model, optimizer, note)
    return seen


def of_optimizer(model: nn.Module, optimizer: Any, note: Callable[..., None]) -> None:
    """Let a twin's optimizer step, and note what it sees, does and keeps."""
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer.step()
    for path, parameter in model.named_parameters():
        name, _, leaf = path.rpartition(".")
        note(f"optimizer: {name} param_grad {leaf}", parameter.grad)
        note(f"optimizer: {name} param {leaf}", parameter)
        note(f"optimizer: {name} update {leaf}", parameter - before[path])
        for key, kept in optimizer.state[parameter].items():
            note(f"optimizer: {name} state {leaf}.{key}", kept)


def rows(run: probe.Run, step: int = 0) -> list[dict[str, Any]]:
    found, where = [], {"forward": "", "backward": "", "optimizer": "optimizer: "}
    for number, row in run.frame(step=step).iterrows():
        histogram = run.columns.histogram(int(number))
        triples = histogram.signed() if histogram is not None else []
        found.append(
            {
                "site": f"{where[row.direction]}{row.module} {row.role} {row.leaf}",
                "device": row.device,
                "status": row.status,
                "dtype": row["dtype"],
                "scale": None if row.isna()["loss_scale"] else float(row.loss_scale),
                "numbers": {n: None if row.isna()[n] else float(row[n]) for n in STATISTICS},
                "bins": sorted([sign, exponent, count] for sign, exponent, count in triples),
            }
        )
    return found


def private() -> list[dict[str, Any]]:
    """Rows of a model whose weight the device keeps in a format of its own."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to("npu")
    fake = types.ModuleType("torch_npu")
    fractal_nz, plain = 29, 2
    fake.get_npu_format = lambda t: fractal_nz if tuple(t.shape) == (4, 4) else plain
    sys.modules["torch_npu"] = fake
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    try:
        with probe.watch(model, optimizer=optimizer, roles="param,output,update") as run:
            model(torch.ones(2, 4).to("npu")).sum().backward()
            optimizer.step()
    finally:
        del sys.modules["torch_npu"]
    return rows(run)


def lost() -> dict[str, Any]:
    """Training while the device fails to hand over its results in the first of two steps."""
    model = nn.Linear(4, 4).to("npu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    copy, failures = npu.MOVES["_to_copy"], ["CUDA error: device-side assert triggered"]

    def fails_once(*args, **kwargs):
        if failures:
            raise RuntimeError(failures.pop())
        return copy(*args, **kwargs)

    x = torch.ones(2, 4).to("npu")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with probe.watch(model, optimizer=optimizer) as run:
            model(x).sum().backward()
            optimizer.step()
            npu.MOVES["_to_copy"] = fails_once
            model(x).sum().backward()
            optimizer.step()
    npu.MOVES["_to_copy"] = copy
    there, here = run.df[run.df["device"] == "npu:0"], run.df[run.df["device"] == "cpu"]
    by_step = [sorted(set(there[there["step"] == step]["status"])) for step in (0, 1)]
    return {
        "statuses": by_step,
        "absent": bool(there[there["step"] == 0]["max"].isna().all()),
        "settings": sorted(set(here["status"])),
        "warned": [str(w.message) for w in caught],
    }


def refused(make) -> bool:
    try:
        make()
    except npu.RefusedError:
        return True
    return False


def main() -> dict[str, Any]:
    result: dict[str, Any] = {"truth": truth(), "private": private(), "lost": lost()}
    for name, scaled in (("plain", False), ("scaled", True)):
        bare = trained("npu", watched=False, scaled=scaled)
        watched = trained("npu", watched=True, scaled=scaled)
        run = watched.pop("run")
        result[name] = {
            "same bits": bare["bits"] == watched["bits"],
            "as on the cpu": bare["bits"] == trained("cpu", watched=False, scaled=scaled)["bits"],
            "waits": {"bare": bare["waits"], "watched": watched["waits"]},
            "waits in backward": watched["waits in backward"] - bare["waits in backward"],
            "rows": rows(run),
            "steps": sorted({int(step) for step in run.df["step"]}),
            "cpu rows": [
                [row["site"], row["status"]]
                for row in rows(trained("cpu", watched=True, scaled=scaled)["run"])
            ],
            "devices": run.info.devices,
        }
    x = torch.ones(3).to("npu")
    makers = (x.double, lambda: torch.zeros(3, dtype=torch.float64, device="npu"))
    result["refuses float64"] = [refused(make) for make in makers]
    npu.waits.clear()
    result["answers"] = [x.sum().item(), x.cpu().tolist(), bool((x > 0).all())]
    result["answers waited"] = len(npu.waits)
    return result


if __name__ == "__main__":
    warnings.simplefilter("error")
    sys.stdout.write(json.dumps(main()))
