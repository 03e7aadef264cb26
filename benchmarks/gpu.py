"""What watching costs on a GPU: `python -m benchmarks.gpu [--write]`, on a machine that has one.

One block of a transformer of about a billion parameters in bfloat16, bare, watched, and with the
hooks that everyone writes first: one `.item()` for each tensor. Ratios of medians, taken in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

import probe_nb
from benchmarks.models import items
from benchmarks.table import Row, markdown
from benchmarks.timing import Stopwatch, between, ratio

WIDTH: Final = 2048
HEADS: Final = 16
BATCH: Final = (4, 512)
LAYERS: Final = 2
ROUNDS: Final = 9
STEPS: Final = 5
_RESULTS: Final = Path(__file__).parent / "results"


def model(device: str) -> nn.Module:
    """Return two layers as wide as those of a model of a billion parameters."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
    )
    stack = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    return stack.to(device, torch.bfloat16)


def train(net: nn.Module, x: Tensor) -> None:
    """Run one step and wait for it."""
    net.zero_grad(set_to_none=True)
    net(x).square().mean().backward()
    torch.accelerator.synchronize()


def waits(act: Callable[[], None]) -> int:
    """Count the calls by which a step waits for the device, as the profiler sees them."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        act()
    names = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
    return sum(each.count for each in profile.key_averages() if each.key in names)


def measure(net: nn.Module, x: Tensor, session: Callable[[], object]) -> list[float]:
    """Return the ratio of a watched step to a bare one, round by round."""
    watch, bare, watched = Stopwatch(), [], []
    step = functools.partial(train, net, x)
    for _ in range(3):
        step()
    for _ in range(ROUNDS):
        bare.append(watch.per_run(step, STEPS))
        with session() as run:  # type: ignore[attr-defined]

            def act(run: object = run) -> None:
                step()
                if isinstance(run, probe_nb.Run):
                    run.step()

            for _ in range(3):
                act()
            watched.append(watch.per_run(act, STEPS))
    bare.append(watch.per_run(step, STEPS))
    return between(bare, watched)


def rows(net: nn.Module, x: Tensor) -> Iterator[Row]:
    """Measure every row of the table."""
    ours = functools.partial(probe_nb.watch, net, live=False)
    outputs = functools.partial(probe_nb.watch, net, live=False, roles="output")
    with ours() as run:  # the kernel is compiled meanwhile
        for _ in range(20):
            train(net, x)
            run.step()
    yield Row("bare step (the noise of this run)", ratio(measure(net, x, contextlib.nullcontext)))
    yield Row("every role, exact histograms", ratio(measure(net, x, ours)))
    yield Row("outputs only", ratio(measure(net, x, outputs)))
    yield Row("six `.item()` for each output", ratio(measure(net, x, lambda: items(net))))


def counts(net: nn.Module, x: Tensor) -> str:
    """Return how often a step waits and how much memory it takes, bare and watched."""
    step = functools.partial(train, net, x)
    step()
    torch.cuda.reset_peak_memory_stats()
    step()
    bare, memory = waits(step), torch.cuda.max_memory_allocated()
    with probe_nb.watch(net, live=False) as run:
        step()
        run.step()
        torch.cuda.reset_peak_memory_stats()
        inside = waits(step)
        more = torch.cuda.max_memory_allocated() - memory
        run.step()
    return (
        f"Waits in a step: {bare} bare, {inside} watched. "
        f"Peak memory of the device: {more / 2**20:+.1f} MiB for {len(run) // 2} rows."
    )


def main(arguments: list[str]) -> int:
    """Print the table, and with `--write` keep it among the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep the table in results/")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("There is no CUDA device here, so nothing is measured and nothing is claimed.")
        return 1
    net, x = model("cuda"), torch.randn(*BATCH, WIDTH, device="cuda", dtype=torch.bfloat16)
    table = markdown(list(rows(net, x)))
    device = torch.cuda.get_device_name()
    today = dt.datetime.now(dt.timezone.utc).date()
    text = f"{today}; {device}; torch {torch.__version__}.\n\n{table}\n\n{counts(net, x)}\n"
    print(text)
    if options.write:
        (_RESULTS / f"{today}-gpu.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
