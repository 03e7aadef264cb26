"""The only file that knows device names: what they are called and what they cannot do.

What is read here is read of accelerators that the process has started already, and of torch_npu
if somebody has imported it. Only `find` asks whether a device is there, for who wants to use it.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import torch
from numpy.typing import NDArray
from torch import Tensor

from probe_nb.errors import DeviceError

_PLAIN_FORMATS: Final = (-1, 0, 1, 2, 30)
"""Layouts of an NPU tensor whose elements lie as the strides say: undefined, NCHW, NHWC, ND, NCDHW.

Which of them a tensor has follows from its number of dimensions: 30 is every 5-D one.
Source: FormatHelper and InferFormat of torch_npu, where each is its own base format.
"""

_NVIDIA_DRIVER: Final = Path("/proc/driver/nvidia/version")

SATURATES: Final = (
    "This NPU computes in saturation mode: what overflows becomes the largest number of its type, "
    "and what would be NaN becomes 0. No Inf or NaN is to be found; look at at_max_count instead."
)


def is_host(t: Tensor) -> bool:
    """Tell whether results computed from `t` can be read without waiting for a device."""
    return t.device.type == "cpu"


def has_float64(t: Tensor) -> bool:
    """Tell whether the device of `t` computes in float64: NPUs and Apple's GPUs do not."""
    return t.device.type not in ("npu", "mps")


def runs_triton(t: Tensor) -> bool:
    """Tell whether the device of `t` is of the kind that our Triton kernel was written for."""
    return t.device.type == "cuda"


def on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return a guard under which `device` is the current one of its kind."""
    module = getattr(torch, device.type)
    if device.index in (None, module.current_device()):
        return contextlib.nullcontext()
    guard: contextlib.AbstractContextManager[Any] = module.device(device)
    return guard


def capturing() -> bool:
    """Tell whether operators are being recorded into a graph, where ours must not go."""
    if torch.cuda.is_initialized():
        return torch.cuda.is_current_stream_capturing()
    npu: Any = getattr(sys.modules.get("torch_npu"), "npu", None)
    asked = getattr(npu, "is_current_stream_capturing", None)
    return asked is not None and npu.is_initialized() and bool(asked())


def stream(t: Tensor) -> Any:
    """Return the stream on which work on `t` is being queued, None where there are no streams."""
    current = getattr(getattr(torch, t.device.type, None), "current_stream", None)
    return None if current is None else current(t.device)


def join(streams: Iterable[Any]) -> None:
    """Have the current stream of each device wait for these."""
    for each in streams:
        if each is not None:
            getattr(torch, each.device.type).current_stream(each.device).wait_stream(each)


class Copy:
    """A copy of a tensor to the host that is under way, where its device can do so.

    It goes into pinned memory, and an event tells when it has come: nobody waits before `result`.
    """

    def __init__(self, t: Tensor) -> None:
        """Begin to copy; where that cannot be done on the side, copy and wait."""
        self._event: Any = None
        # as numpy sees it from now on: asking later could be seen by a mode of the user's
        self._host: NDArray[Any] = self._begun(t).numpy()

    def _begun(self, t: Tensor) -> Tensor:
        event = getattr(getattr(torch, t.device.type), "Event", None)
        if event is None or t.device.type == "cpu":
            return t.cpu()
        try:
            host = torch.empty(t.shape, dtype=t.dtype, device="cpu", pin_memory=True)
        except RuntimeError:  # the system has no such memory left, or none at all
            return t.cpu()
        with on(t.device):
            host.copy_(t, non_blocking=True)
            self._event = event()
            self._event.record()
        return host

    def is_done(self) -> bool:
        """Tell whether the copy has come."""
        return self._event is None or bool(self._event.query())

    def result(self) -> NDArray[Any]:
        """Return the copy, waiting for it."""
        if self._event is not None:
            self._event.synchronize()
        return self._host


def private_format(t: Tensor) -> bool:
    """Tell whether an NPU keeps `t` in a layout of its own (reducing it would convert it whole)."""
    npu = sys.modules.get("torch_npu")
    if npu is None or t.device.type != "npu":
        return False
    try:
        return int(npu.get_npu_format(t)) not in _PLAIN_FORMATS
    except (AttributeError, RuntimeError, TypeError):
        return False


# -- what a run says of its devices ---------------------------------------------------------------


def names() -> list[str]:
    """Return the accelerators that this process has started as people call them, or the CPU."""
    module = _started()
    if module is None:
        return ["cpu"]
    kind = _kind()
    return [f"{kind}:{i} {_name(module, i)}".strip() for i in range(module.device_count())]


def versions() -> dict[str, str]:
    """Return the version of torch, and of what drives its accelerator."""
    found = {"torch": str(torch.__version__)}
    for word in ("cuda", "hip"):
        built_for = getattr(torch.version, word, None)
        if built_for is not None:
            found[word] = str(built_for)
    return found | _nvidia_driver() | _npu_versions()


def notices() -> list[str]:
    """Return what must be known of the devices to read their numbers rightly."""
    return [SATURATES] if _npu_versions().get("npu_overflow") == "saturation" else []


def _kind() -> str | None:
    """Return the kind of accelerator that torch is built or extended for; nothing is started."""
    try:
        found = torch.accelerator.current_accelerator()
    except RuntimeError:  # torch 2.6 raises where newer ones return None
        return None
    return None if found is None else found.type


def _started() -> Any:
    """Return torch's module of the accelerator if this process has started it."""
    module = getattr(torch, _kind() or "", None)
    is_started = getattr(module, "is_initialized", None)
    return module if is_started is not None and is_started() else None


def _name(module: Any, index: int) -> str:
    try:
        return str(module.get_device_name(index))
    except (AttributeError, RuntimeError):
        return ""


def _nvidia_driver() -> dict[str, str]:
    """Read the driver's version where it says so by itself: asking CUDA would start it."""
    if _kind() != "cuda":
        return {}
    with contextlib.suppress(OSError):
        said = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", _NVIDIA_DRIVER.read_text())
        if said is not None:
            return {"cuda_driver": said[1]}
    return {}


def _npu_versions() -> dict[str, str]:
    npu = sys.modules.get("torch_npu")
    if npu is None:
        return {}
    tools = getattr(getattr(npu, "npu", None), "utils", None)
    found = {
        "torch_npu": getattr(npu, "__version__", None),
        "cann": _asked(tools, "get_cann_version", "CANN"),
        "npu_driver": _asked(tools, "get_cann_version", "DRIVER"),
    }
    if _started() is not None:  # asking would start the device
        keeps = _asked(tools, "is_support_inf_nan")
        found["npu_overflow"] = {True: "Inf and NaN", False: "saturation"}.get(keeps)
    return {word: str(value) for word, value in found.items() if value not in (None, "")}


def _asked(tools: Any, question: str, *arguments: str) -> Any:
    """Return an answer of torch_npu, None where this version has none."""
    try:
        return getattr(tools, question)(*arguments)
    except Exception:  # what it raises depends on the version and on what else is installed
        return None


# -- for who wants to use a device ----------------------------------------------------------------


def find(asked: str | torch.device | None = None) -> torch.device:
    """Return a device that is there, by default the accelerator, or the CPU if there is none.

    Raises:
        DeviceError: It is not there, or there is no such device; the message says what is.
    """
    if asked is None:
        kind = _kind()
        return _indexed(torch.device(kind if kind and torch.accelerator.is_available() else "cpu"))
    with contextlib.suppress(RuntimeError, TypeError):  # `npu` is a name only with torch_npu
        wanted = torch.device(asked)
        if wanted.type == "cpu" or _is_there(wanted):
            return _indexed(wanted)
    raise DeviceError(f"There is no device `{asked}` here; {_there()}.{_advice(str(asked))}")


def _is_there(device: torch.device) -> bool:
    count = torch.accelerator.device_count() if device.type == _kind() else 0
    return (device.index or 0) < count


def _indexed(device: torch.device) -> torch.device:
    index: int | None = device.index
    if device.type == "cpu" or index is not None:
        return device
    current = getattr(getattr(torch, device.type), "current_device", int)
    return torch.device(device.type, current())


def _there() -> str:
    kind = _kind()
    count = torch.accelerator.device_count() if kind else 0
    if not count:
        built = f", though it is built or extended for {kind}" if kind else ""
        return f"torch {torch.__version__} finds no accelerator, only `cpu`{built}"
    last = "" if count == 1 else f" to `{kind}:{count - 1}`"
    return f"torch {torch.__version__} finds `cpu` and `{kind}:0`{last}"


def _advice(asked: str) -> str:
    kind = asked.split(":", maxsplit=1)[0]
    if kind == _kind() and torch.accelerator.is_available():
        return ""
    if kind == "cuda" and torch.version.cuda is None and torch.version.hip is None:
        return " This torch is built without CUDA: install one that is, see pytorch.org."
    if kind == "cuda":
        return " Look with `nvidia-smi` whether the driver sees the GPU."
    return _npu_advice() if kind == "npu" else ""


def _npu_advice() -> str:
    if "torch_npu" in sys.modules:
        return (
            " torch_npu is imported. Look with `npu-smi info` whether the driver sees the NPU, "
            "and whether Ascend's set_env.sh was sourced before Python started."
        )
    try:
        version = metadata.version("torch_npu")
    except metadata.PackageNotFoundError:
        release = torch.__version__.split("+")[0]
        return f" torch_npu is not installed; take the version for this torch, {release}."
    return (
        f" torch_npu {version} is installed and not imported: source Ascend's set_env.sh, start "
        "Python again, and `import torch_npu`."
    )


def random_state(device: torch.device) -> Tensor | None:
    """Return the state of the device's random numbers, None where it cannot be read."""
    if device.type == "cpu":
        return torch.get_rng_state()
    try:
        state: Tensor = getattr(torch, device.type).get_rng_state(device)
    except (AttributeError, RuntimeError):
        return None
    return state


def set_random_state(device: torch.device, state: Tensor | None) -> None:
    """Put back what `random_state` returned."""
    if state is None:
        return
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        getattr(torch, device.type).set_rng_state(state, device)


def wait(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cpu":
        return
    synchronize = getattr(torch, device.type).synchronize
    if device.type == "mps":  # which are never several
        synchronize()
    else:
        synchronize(device)


@contextlib.contextmanager
def telling_waits(device: torch.device, mode: str = "warn") -> Iterator[bool]:
    """Have torch warn whenever the host waits for the device, or not; yield whether it can."""
    module: Any = getattr(torch, device.type, None)
    if device.type == "cpu" or not hasattr(module, "set_sync_debug_mode"):
        yield False
        return
    before = module.get_sync_debug_mode()
    module.set_sync_debug_mode(mode)
    try:
        yield True
    finally:
        module.set_sync_debug_mode(before)
