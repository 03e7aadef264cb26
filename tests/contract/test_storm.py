"""Ctrl-C every few milliseconds, at moments that nobody chose: all is given back, results are whole.

Signals are real. `test_interrupted.py` goes through the lines of ours one by one; here they come
from outside, into torch, pyarrow, pandas and the threads that write.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

PROGRAM = r"""
    import os, pathlib, random, signal, sys, threading, time, traceback, warnings
    import torch, probe_nb as probe
    from torch import nn
    from torch.nn.modules import module as torch_module
    from torch.optim import optimizer as torch_optimizer
    from probe_nb import session
    from probe_nb.errors import ProbeError, RunFormatError

    what, seed, seconds, top = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rng = random.Random(seed)
    folder = pathlib.Path(top)

    def made():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def train(run=None):
        model, optimizer = MODEL
        for _ in range(3):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()

    MODEL = made()

    def watched():
        model, optimizer = MODEL
        with probe.watch(model, optimizer=optimizer, stacks=True, live=False, memory=30_000):
            train()

    def kept():
        model, optimizer = MODEL
        keep = probe.Keep("*", folder=str(folder / "kept"))
        with probe.watch(model, optimizer=optimizer, keep=keep, live=False):
            train()

    with probe.watch(MODEL[0], optimizer=MODEL[1], keep="*", live=False) as RUN:
        train()
    SAVED = RUN.save(folder / "saved.parquet")
    RUN.write_dump(folder / "dump", overwrite=True)
    acts = {
        "watch": watched,
        "keep": kept,
        "save": lambda: RUN.save(folder / "again.parquet"),
        "load": lambda: probe.load(SAVED, memory=2000).df,
        "compare": lambda: probe.compare(RUN, SAVED).df,
        "dump": lambda: RUN.write_dump(folder / "dump", overwrite=True),
        "read_dump": lambda: probe.read_dump(folder / "dump").df,
        "report": lambda: probe.load(SAVED)._repr_mimebundle_(),
        "csv": lambda: RUN.to_monitor_csv(folder / "csv"),
    }
    act = acts[what]
    for _ in range(2):
        act()

    def left():
        tables = (
            torch_module._global_forward_pre_hooks, torch_module._global_forward_hooks,
            torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks,
        )
        model, optimizer = MODEL
        hooks = sum(map(len, tables)) + len(session.sessions())
        hooks += sum(len(p._backward_hooks or ()) for p in model.parameters())
        hooks += sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
        hooks += len(optimizer._optimizer_step_post_hooks) + len(optimizer._optimizer_step_pre_hooks)
        hooks += len(torch.overrides._get_current_function_mode_stack())
        return hooks, torch.is_grad_enabled(), sys.gettrace()

    def threads():
        return {t.name for t in threading.enumerate() if "probe_nb" in t.name}

    def acted():
        act()

    def alarm(number, frame):
        # Be a Ctrl-C inside of what is tried, and nowhere else. Torch's optimizer sets the grad
        # mode back in a `finally` that a second one cuts short, also where nobody watches.
        around = []
        while frame is not None:
            around.append(frame.f_code)
            frame = frame.f_back
        if acted.__code__ in around and "_use_grad" not in [code.co_name for code in around[:3]]:
            raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, alarm)
    before, rounds, hit = left(), 0, 0
    begin = time.perf_counter()
    act()
    length = max(time.perf_counter() - begin, 0.002)
    until = time.monotonic() + seconds
    while time.monotonic() < until or rounds < 3 or not hit:
        several = rng.random() < 0.5
        first = rng.random() * length * 1.2 + 1e-6
        signal.setitimer(signal.ITIMER_REAL, first, max(length / 7, 0.001) if several else 0)
        said = ""
        try:
            acted()
        except BaseException as error:
            signal.setitimer(signal.ITIMER_REAL, 0)
            hit, said = hit + 1, traceback.format_exc()
            if isinstance(error, ProbeError) and "KeyboardInterrupt" not in said:
                raise  # numpy makes a TypeError of one, others may do the like: we say no damage
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        rounds += 1
        probe.stop()  # finds what an interrupt left before the closing had begun
        assert left() == before, (rounds, left(), before, said)
    print(rounds, hit)
    deadline = time.monotonic() + 150  # the kernel may have to be compiled
    while threads() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not threads(), threads()
    act()
    if what == "save" or what == "load":
        for path in folder.glob("*.parquet"):
            assert len(probe.load(path)) == len(RUN)
    if what in ("dump", "read_dump"):
        assert len(probe.read_dump(folder / "dump").df) > 0
    if what == "keep":
        for each in folder.glob("kept*"):
            for row in probe.load(each).kept().itertuples():
                if row.status == "kept":
                    probe.load(each).tensor(row.module, row.role, step=row.step)
    here = {p.name for p in folder.rglob("*") if p.name.endswith(".part") or ".part" in p.suffixes}
    assert not here, here
    import gc
    gc.collect()
    left_over = [p.name for p in pathlib.Path(os.environ["TMPDIR"]).iterdir()]
    print("temporary", len(left_over))
"""

SECONDS = float(os.environ.get("PROBE_NB_STORM", "1.5"))
"""How long each storm lasts; `make storm` lets it last longer."""

SEED = int(os.environ.get("PROBE_NB_STORM_SEED", "1"))


@pytest.mark.parametrize(
    "what",
    ["watch", "keep", "save", "load", "compare", "dump", "read_dump", "report", "csv"],
)
def test_a_storm_of_interrupts_leaves_nothing_and_no_half_result(tmp_path, what):
    before = signal.getsignal(signal.SIGINT)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "work").mkdir()
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent(PROGRAM),
            what,
            str(SEED),
            str(SECONDS),
            str(tmp_path / "work"),
        ],
        capture_output=True,
        text=True,
        timeout=SECONDS + 200,
        check=False,
        env={
            **os.environ,
            "TMPDIR": str(tmp_path / "tmp"),
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch"),
        },
    )
    assert done.returncode == 0, done.stderr[-3000:]
    counts, temporary = done.stdout.splitlines()
    rounds, hit = map(int, counts.split())
    assert rounds >= 3
    assert hit >= 1
    assert temporary == "temporary 0"
    assert list((tmp_path / "tmp").iterdir()) == []
    assert signal.getsignal(signal.SIGINT) is before
