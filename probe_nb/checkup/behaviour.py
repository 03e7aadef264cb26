"""Is training the same bit for bit, does nothing wait, is all given back, and at what cost?"""

from __future__ import annotations

import statistics
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from probe_nb import devices, doors
from probe_nb.checkup.models import (
    SPECIMENS,
    STEPS,
    Specimen,
    same_random_numbers,
    trained,
    transformer,
    waits_in,
)
from probe_nb.checkup.report import Check

_COPIES: Final = ("_local_scalar_dense", "_to_copy", "copy_")
_PAIRS: Final = 9
"""Steps that are timed with the watch, and without."""


def identity(device: torch.device) -> Iterator[Check]:
    """Train each model with and without the watch."""
    for specimen in SPECIMENS:
        for bfloat16 in (False, True):
            yield _identity(specimen, device, bfloat16=bfloat16)


def _identity(specimen: Specimen, device: torch.device, *, bfloat16: bool) -> Check:
    subject = f"{specimen.name}, {'bfloat16 autocast' if bfloat16 else 'float32'}"
    try:
        bare, again = (
            trained(specimen, device, watched=False, bfloat16=bfloat16) for _ in range(2)
        )
    except Exception as error:  # nothing of ours was at work
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return Check("identity", subject, "skipped", f"the device cannot run it: {said}")
    shaky = bare.first_difference(again)
    if shaky is not None:
        said = f"two trainings without a watch differ in the {shaky}: it is not deterministic here"
        return Check("identity", subject, "skipped", said)
    watched = trained(specimen, device, watched=True, bfloat16=bfloat16)
    wrong = list(watched.faults)
    changed = bare.first_difference(watched)
    if changed is not None:
        wrong.append(f"the {changed} is another one with the watch")
    frame = watched.run.df if watched.run is not None else None
    if frame is None or sorted(frame["step"].unique()) != list(range(STEPS)):
        wrong.append("the watch did not record every step")
    elif (frame["status"] == "failed").any():
        wrong.append(f"{(frame['status'] == 'failed').sum()} records failed")
    if wrong:
        return Check("identity", subject, "failed", "; ".join(wrong[:4]))
    said = f"the same bits in {len(bare.tensors)} tensors of {STEPS} steps"
    return Check("identity", subject, "passed", said)


def waits(device: torch.device) -> Iterator[Check]:
    """Count how often the host waits for the device, with the watch and without."""
    subject = f"{STEPS} steps of the {SPECIMENS[0].name}"
    if device.type == "cpu":
        yield Check("waits", subject, "skipped", "there is nothing to wait for on the CPU")
        return
    with warnings.catch_warnings(), devices.telling_waits(device) as tells:
        warnings.simplefilter("ignore")  # what is counted is caught inside
        if not (tells and _tells_of_one(device)):
            yield Check("waits", subject, "skipped", "torch cannot tell of waits for this device")
            return
        trained(SPECIMENS[0], device, watched=True)  # the first time takes more
        bare, watched = (
            trained(SPECIMENS[0], device, watched=watched).waits for watched in (False, True)
        )
    more = watched - bare
    said = f"{more} more with the watch; one per step, {STEPS}, may bring the results to the host"
    yield Check("waits", subject, "passed" if 0 <= more <= STEPS else "failed", said)


def _tells_of_one(device: torch.device) -> bool:
    """Try whether a wait that is certain is told of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.ones((), device=device).item()
    return waits_in(caught) > 0


class _Operators(TorchDispatchMode):
    """Writes down every operator, as a mode of the user's would see it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Note the name and let it run."""
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def operators(device: torch.device) -> Iterator[Check]:
    """Look at the operators that a dispatch mode sees: none of ours may be among them."""
    specimen, seen = SPECIMENS[0], []
    for watched in (False, True):
        with _Operators() as mode:
            trained(specimen, device, watched=watched)
        seen.append(mode.seen)
    bare, watching = seen
    subject = f"{STEPS} steps of the {specimen.name}"
    if bare == watching:
        to_host = sum(name.split(".")[1] in _COPIES for name in bare)
        said = f"a dispatch mode sees the same {len(bare)}, {to_host} of which copy or read a value"
        yield Check("operators", subject, "passed", said)
        return
    more = Counter(watching)
    more.subtract(Counter(bare))
    names = ", ".join(sorted(name for name, n in more.items() if n)) or "the same in another order"
    yield Check("operators", subject, "failed", f"a dispatch mode sees, with the watch: {names}")


def given_back(device: torch.device, before: dict[str, object]) -> Iterator[Check]:
    """Compare what `fingerprint` returned before everything with what there is now."""
    after = fingerprint(device)
    changed = sorted(name for name, value in after.items() if value != before[name])
    subject = "hooks, modes, random numbers"
    said = f"not as before: {', '.join(changed)}" if changed else "as before, after every watch"
    yield Check("given back", subject, "failed" if changed else "passed", said)


def fingerprint(device: torch.device) -> dict[str, object]:
    """Read what a watch could change in the process and forget to change back."""
    tables = {
        name: dict(value)
        for room in (torch_module, torch_optimizer)
        for name, value in vars(room).items()
        if name.startswith("_global_") and isinstance(value, dict)
    }
    states = {place: devices.random_state(place) for place in (torch.device("cpu"), device)}
    random = {
        f"random numbers of {place}": None if state is None else state.cpu().tolist()
        for place, state in states.items()
    }
    return (
        tables
        | random
        | {
            "function modes": len(torch.overrides._get_current_function_mode_stack()),  # noqa: SLF001
            "dispatch modes": len(_python_dispatch._get_current_dispatch_mode_stack()),  # noqa: SLF001
            "grad mode": torch.is_grad_enabled(),
            "default dtype": torch.get_default_dtype(),
            "threads": torch.get_num_threads(),
            "fast attention": torch.backends.mha.get_fastpath_enabled(),
        }
    )


def cost(device: torch.device) -> Iterator[Check]:
    """Time steps with the watch and without, in turns, so that both have the same weather."""
    with same_random_numbers(device):
        model = transformer(layers=4, width=128).to(device)
        x = torch.randn(4, 64, 128, device="cpu").to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> float:
        devices.wait(device)
        began = time.perf_counter()
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        devices.wait(device)
        return time.perf_counter() - began

    step()
    bare, watched = [], []
    for _ in range(_PAIRS):
        bare.append(step())
        with doors.watch(model, optimizer=optimizer, live=False):
            step()  # the first of a watch prepares; in the second the results of it are taken in
            watched.append(step())
    ratio = statistics.median(watched) / statistics.median(bare)
    said = f"{ratio:.2f} times a bare step (medians of {_PAIRS}, in turns, every role)"
    yield Check("cost", "a step of a transformer", "measured", said)
