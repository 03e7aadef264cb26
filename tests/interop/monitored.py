"""Runs one program under a training monitor, msProbe's or ours: `monitored.py WHOSE JOBS`.

The jobs are JSON: `{"version", "config", "folder", "batches"}`. Each is a forked child.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
from torch import nn


class Net(nn.Module):
    """Convolutions, a module with two inputs, one that is called with a keyword, two results."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()
        )
        self.fc = nn.Linear(64, 6)
        self.pair = nn.Bilinear(6, 6, 3)
        self.act = nn.Tanh()

    def forward(self, x, scale=None):
        y = self.fc(self.conv(x))
        return self.act(self.pair(y, y * 2 + 1)) * scale


def train(model, optimizer, batches):
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(batches):
            x = torch.randn(5, 2, 4, 4, generator=generator)
            (model(x, scale=torch.full((1,), 2.0)).pow(2).mean() / batches).backward()
        optimizer.step()


def run(whose, job):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    folder = Path(job["folder"])
    folder.mkdir(parents=True)
    config = folder / "config.json"
    os.environ["MONITOR_OUTPUT_DIR"] = str(folder)
    if job["version"] == 1:
        config.write_text(json.dumps(job["config"]))
        if whose == "real":
            from msprobe.pytorch import TrainerMon
        else:
            from probe_nb.monitor import TrainerMon
        monitor = TrainerMon(str(config), params_have_main_grad=False)
        monitor.set_monitor(model, grad_acc_steps=job["batches"], optimizer=optimizer)
        train(model, optimizer, job["batches"])
        return
    config.write_text(json.dumps(job["config"] | {"output_dir": str(folder)}))
    if whose == "real":
        from msprobe.core.monitor_v2.trainer import TrainerMonitorV2
    else:
        from probe_nb.monitor import TrainerMonitorV2
    monitor = TrainerMonitorV2(str(config), fr="pytorch")
    monitor.start(model=model, optimizer=optimizer, grad_acc_steps=job["batches"])
    train(model, optimizer, job["batches"])
    monitor.stop()


def main(whose, path):
    for job in json.loads(Path(path).read_text()):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run(whose, job)
                code = 0
            finally:
                sys.stdout.flush()
                os._exit(code)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            sys.exit(f"{job} failed")


if __name__ == "__main__":
    main(*sys.argv[1:])
