"""What is read: how a sound one is made, and all that is asked of one that was spoiled."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from IPython.core.error import UsageError
from torch import nn

import probe_nb as probe
from probe_nb.debugger import config
from probe_nb.errors import ProbeError
from probe_nb.magics.extension import ProbeMagics
from probe_nb.magics.line import parse
from probe_nb.magics.watching import prepared
from probe_nb.monitor import second, settings
from tests.fuzz.changes import spoil, thing

SAMPLES = Path(__file__).parent.parent / "interop" / "samples" / "dumps"


class Target(NamedTuple):
    """One reader: `make` writes what it reads into a folder, `spoil` changes it there."""

    make: Callable[[Path], None]
    read: Callable[[Path], None]
    spoil: Callable[[Path, Random], None]
    expected: tuple[type[Exception], ...] = (ProbeError,)


def some_files(folder: Path, rng: Random) -> None:
    """Spoil one file of a folder, or a few."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in rng.sample(files, min(len(files), rng.choice((1, 1, 1, 2, 3)))):
        spoil(path, rng)


# -- runs ------------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 1))

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        return self.second(self.first(x) * scale)


def trained(seed: int = 0, **options: Any) -> probe.Run:
    """Return a run with calls, stacks, values, tensors, a NaN and an overflow in it."""
    torch.manual_seed(seed)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    chosen = {"level": "mix", "stacks": True, "values": True, "live": False} | options
    with probe.watch(model, optimizer=optimizer, **chosen) as run:
        for step in range(3):
            x = torch.randn(2, 3)
            x[0, 0] = float("nan") if step == 2 else 1e30
            model(x, scale=0.5).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return run


def make_run(folder: Path) -> None:
    trained(keep="*").save(folder / "run.parquet")


def make_ranks(folder: Path) -> None:
    for rank in range(2):
        run = trained(rank)
        run.info.rank, run.info.world = rank, 2
        run.save(folder / f"rank{rank}.parquet")


def make_kept(folder: Path) -> None:
    trained(keep=probe.Keep("*", folder=str(folder)))


def asked(run: probe.Run) -> None:
    """Ask what is asked of any run."""
    ours(lambda: run.df)
    for ask in (run.calls, run.values, run.findings, run.coverage, run.first_nonfinite):
        ours(ask)
    ours(run.structure)
    ours(lambda: repr(run))
    ours(run._repr_mimebundle_)
    ours(lambda: run.history("*first*", "output"))
    ours(lambda: run.histogram("first", "output", step=1))
    ours(lambda: tensors_of(run))
    ours(lambda: probe.compare(run, run, progress=False).df)


def tensors_of(run: probe.Run) -> None:
    for row in run.kept().head(8).itertuples():
        ours(lambda row=row: run.tensor(row.module, row.role, step=row.step, leaf=row.leaf))


def ours(ask: Callable[[], Any]) -> None:
    """Ask; an error of ours is an answer."""
    with contextlib.suppress(ProbeError, FileNotFoundError):
        ask()


def read_run(folder: Path) -> None:
    run = probe.load(folder / "run.parquet", memory="64MiB")
    asked(run)
    run.save(folder.parent / "again.parquet")


def read_folder(folder: Path) -> None:
    asked(probe.load(folder, memory="64MiB"))


# -- dumps -----------------------------------------------------------------------------------------


def make_dump(folder: Path) -> None:
    shutil.copytree(SAMPLES / "tensor_L0_statistics", folder, dirs_exist_ok=True)


def make_mixed(folder: Path) -> None:
    shutil.copytree(SAMPLES / "statistics_mix_statistics", folder, dirs_exist_ok=True)


def make_arrays(folder: Path) -> None:
    np.save(folder / "x_float32_0.npy", np.arange(6.0, dtype=np.float32).reshape(2, 3))
    np.save(folder / "y_grad_float64_1.npy", np.ones((4, 0, 2)))
    np.save(folder / "z_float32_2.npy", np.asfortranarray(np.ones((30, 3), np.float32)))


def read_dump(folder: Path) -> None:
    asked(probe.read_dump(folder, memory="64MiB"))


# -- configurations --------------------------------------------------------------------------------

DEBUGGER = {
    "task": "tensor", "dump_path": "x", "rank": [0, "1-2"], "step": [0, "3-5"], "level": "mix",
    "async_dump": False, "extra_info": True, "precision": "high", "risk_level": "ALL",
    "tensor": {"scope": [], "list": ["relu"], "data_mode": ["forward", "output"],
               "summary_mode": "md5", "slice": [{"dim": 0, "begin": 0, "end": 4}]},
    "statistics": {"tensor_list": ["fc"], "summary_mode": "xor"},
}  # fmt: skip
MONITOR = {
    "targets": {"fc": {"input": "tuple[1]:0", "output": "tensor"}, "first": {}},
    "xy_distribution": True, "wg_distribution": True, "mv_distribution": True, "ops": ["min", "norm"],
    "eps": 1e-8, "start_step": 1, "step_interval": 2, "collect_times": 5, "ndigits": 4,
    "module_ranks": [0], "format": "csv", "append_output": ["Dec03_21-34-40", "Dec03_21-34-41"],
    "alert": {"rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}},
                        {"rule_name": "AnomalyNan"}], "dump": False},
    "l2_targets": {"attention_hook": ["0:attention"]}, "recording_l2_features": True,
    "sa_order": "b,s,h,d", "cc_distribution": {"enable": False},
}  # fmt: skip
SECOND = {
    "start_step": 0, "stop_step": 10, "step_interval": 1, "rank": [0], "format": "csv",
    "monitors": {
        "module": {"enabled": True, "ops": ["min", "max"], "targets": ["fc"]},
        "weight_grad": {"enabled": True, "monitor_mbs_grad": True, "micro_batch_number": 2},
        "optimizer": {"enabled": True, "mv_distribution": True},
        "param": {"enabled": True},
    },
}  # fmt: skip


def make_configs(folder: Path) -> None:
    for name, value in (("debugger", DEBUGGER), ("monitor", MONITOR), ("second", SECOND)):
        (folder / f"{name}.json").write_text(json.dumps(value))


def read_configs(folder: Path) -> None:
    ours(lambda: config.read(folder / "debugger.json"))
    ours(lambda: settings.read(folder / "monitor.json"))
    ours(lambda: second.TrainerMonitorV2(folder / "second.json"))


MAPPING = """\
# of msProbe
Module.first.Linear.forward.0.input.0: Module.body.Linear.forward.0.input.0
first.Linear: body.Linear
'second.1.Linear': "head.Linear"  # a comment
Functional.relu.0.forward.output.0: Functional.gelu.0.forward.output.0
"""
NAMES = "functional:\n  - relu\n  - linear\ntensor: [add, __add__]\ntorch:\n- matmul\n"


def make_yaml(folder: Path) -> None:
    (folder / "mapping.yaml").write_text(MAPPING)
    (folder / "names.yaml").write_text(NAMES)


def read_yaml(folder: Path) -> None:
    run = KNOWN.run()
    ours(lambda: probe.compare(run, run, mapping=folder / "mapping.yaml").df)
    ours(lambda: probe.watch(nn.ReLU(), level="api", apis=str(folder / "names.yaml")))


def spoil_yaml(folder: Path, rng: Random) -> None:
    for name in ("mapping.yaml", "names.yaml"):
        path = folder / name
        text = path.read_text()
        act = rng.randrange(6)
        if act == 0:
            path.write_text("[" * rng.choice((10, 5000)) + text)
        elif act == 1:
            path.write_text(
                "a: &a [x, x]\n"
                + "".join(
                    f"{c}: &{c} [{', '.join([f'*{b}'] * 9)}]\n"
                    for b, c in zip("abcdefgh", "bcdefghi", strict=True)
                )
            )
        elif act == 2:
            path.write_text(f"!!python/object/apply:os.system ['touch {folder}/../ran']\n{text}")
        elif act == 3:
            path.write_text(
                text.replace(
                    rng.choice(text.split()), str(thing(rng)).encode("utf-8", "replace").decode()
                )
            )
        else:
            spoil(path, rng)


class _Known:
    """A run that is made once."""

    made: Any = None

    def run(self) -> probe.Run:
        self.made = self.made or trained()
        return self.made


KNOWN = _Known()

# -- lines of magics -------------------------------------------------------------------------------

LINES = (
    "model --optimizer opt --level mix --apis 'core, Tensor.add' --steps 1-5,::3",
    "model --select 'layers.*, !head' --roles input,output --memory 512MiB --name \"a b\"",
    "gen=model disc=model --keep 'type:Linear' --first-step 3 --token-range 2,5 --slices 1:0:16",
    "model --scope a,b --names x --when train --ranks 0,4-6 --stop-on nonfinite --checksum crc32",
)


def make_lines(folder: Path) -> None:
    for number, line in enumerate(LINES):
        (folder / f"{number}.txt").write_text(line)


def read_lines(folder: Path) -> None:
    model = Net()
    scope = {"model": model, "opt": torch.optim.SGD(model.parameters(), lr=0.1)}
    for path in sorted(folder.iterdir()):
        text = path.read_bytes().decode("utf-8", "replace")
        with contextlib.suppress(ProbeError, UsageError), contextlib.redirect_stderr(io.StringIO()):
            prepared(parse(ProbeMagics.probe_start, text), scope)


TARGETS = {
    "run": Target(make_run, read_run, some_files, (ProbeError, FileNotFoundError)),
    "ranks": Target(make_ranks, read_folder, some_files),
    "kept": Target(make_kept, read_folder, some_files),
    "dump": Target(make_dump, read_dump, some_files),
    "mixed": Target(make_mixed, read_dump, some_files),
    "arrays": Target(make_arrays, read_dump, some_files),
    "configs": Target(make_configs, read_configs, some_files),
    "yaml": Target(make_yaml, read_yaml, spoil_yaml),
    "lines": Target(make_lines, read_lines, some_files),
}
