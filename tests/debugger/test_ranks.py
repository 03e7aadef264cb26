"""Real processes of a distributed job: each has its folder, under its rank once that is known."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

SCRIPT = """
import sys
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from probe_nb.debugger import PrecisionDebugger, seed_all

folder, rank = sys.argv[1], int(sys.argv[2])
seed_all()
debugger = PrecisionDebugger(dump_path=folder, level="L0", task="tensor", step=[0, 1])
model = nn.Sequential(nn.Linear(3, 2), nn.Tanh())

debugger.start(model)
model(torch.full((1, 3), float(rank)))
debugger.stop()
distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
debugger.step()

model = DistributedDataParallel(model)
for _ in range(2):
    debugger.start(model)
    model(torch.full((1, 3), rank + 1.0)).sum().backward()
    debugger.stop()
    debugger.step()
distributed.destroy_process_group()
"""


def test_each_process_has_its_folder_under_its_rank(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path), str(rank)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for rank in range(2)
    ]
    for process in processes:
        _, said = process.communicate(timeout=150)
        assert process.returncode == 0, said
        assert "ProbeWarning" not in said
    folders = sorted(str(each.parent.relative_to(tmp_path)) for each in tmp_path.rglob("dump.json"))
    assert folders == ["step0/rank0", "step0/rank1", "step1/rank0", "step1/rank1"]
    grads = []
    for rank in range(2):
        for step, value in ((0, float(rank)), (1, rank + 1.0)):
            folder = tmp_path / f"step{step}/rank{rank}"
            data = json.loads((folder / "dump.json").read_text())["data"]
            call = f"Module.{'module.' * step}0.Linear.forward.0"  # in the second one inside of DDP
            assert data[call]["input_args"][0]["Max"] == value
            fed = folder / f"dump_tensor_data/{call}.input.0.pt"
            assert torch.load(fed, weights_only=True).tolist() == [[value] * 3]
        (grad,) = data["Module.module.0.Linear.parameters_grad.0"]["bias"]
        grads.append((grad["Max"], grad["Min"]))
    assert grads[0] == grads[1]  # DDP has made them the mean of both
