"""The compiled loops against numpy float64, against the torch kernel, and as guests in a process."""

from __future__ import annotations

import math
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given

from probe_nb.stats.kernels import cpu, cpu_code, host
from probe_nb.stats.results import Results
from probe_nb.stats.summary import Reducer
from tests import measuring, oracle
from tests.measuring import by_compiled
from tests.properties.test_statistics import HARD, PATIENT, many
from tests.strategies import COMPLEX, EIGHT_BITS, SIGNED, filled, tensors

BLOCK = 2048
SERVED = (torch.float32, torch.float16, torch.bfloat16)
WHOLE = (*SIGNED, torch.uint8, torch.uint16, torch.uint32, torch.bool)
ALL = (*SERVED, torch.float64, *EIGHT_BITS, *WHOLE)
BORDERS = (1, 2, 3, 4, 5, 2047, 2048, 2049, 4095, 4096, 4097, 3 * BLOCK + 7)
STRANGE = (math.nan, math.inf, -math.inf)


@pytest.fixture(scope="module", autouse=True)
def _ready():
    """Wait for the kernel; where it is not there, every test fails."""
    thread = cpu.warm()
    if thread is not None:
        thread.join()
    for _ in range(600):
        if cpu.ready():
            return
        threading.Event().wait(0.1)  # a session of another test may have begun to warm it
    pytest.fail("the compiled kernel did not become ready; is numba installed?")


def faults(t: torch.Tensor) -> list[str]:
    """Return where the kernel breaks its bounds, or counts otherwise than the torch kernel."""
    measured = by_compiled(t)
    assert measured is not None, "the kernel refused the tensor"
    theirs = host.summarize(t, host.Scratch())
    _, counts, bins = measuring.named(theirs)
    wrong = oracle.faults(oracle.expected(t), *measured)
    if measured[1] != counts:
        wrong.append(f"counts: {measured[1]}, not {counts}")
    if measured[2] != bins:
        wrong.append("bins differ from those of the torch kernel")
    return wrong


def _spread(n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(n)).to(dtype)


def _bits(n: int, dtype: torch.dtype) -> torch.Tensor:
    """Every pattern of bits is equally likely: all exponents, many NaNs."""
    raw = np.random.default_rng(n).integers(0, 256, n * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype)


@PATIENT
@given(t=tensors(ALL, max_side=11))
def test_tensors_of_any_fill_and_layout_have_the_numbers_numpy_gives_them(t):
    if t.numel() and by_compiled(t) is not None:
        assert not faults(t)


@pytest.mark.parametrize("case", HARD)
def test_hard_values_keep_their_digits(case):
    t = HARD[case]()
    for dtype in SERVED:
        assert not faults(t.to(dtype)), dtype


@pytest.mark.parametrize("exponent", range(-149, 128))
def test_no_magnitude_overflows_or_vanishes_on_the_way(exponent):
    pair = torch.tensor([1.96875, -1.96875], dtype=torch.float64) * 2.0**exponent
    assert not faults(pair.to(torch.float32).repeat(BLOCK))


def test_blocks_of_very_different_magnitude_are_merged():
    parts = [_spread(BLOCK + 1) * 10.0**e for e in (0, 30, -30, -44, 15, -15)]
    assert not faults(torch.cat(parts))
    assert not faults(torch.cat(parts[::-1]))


@many(SERVED)
@pytest.mark.parametrize("n", BORDERS)
def test_the_border_of_a_block_loses_nothing(dtype, n):
    t = _spread(n, dtype)
    t[-1] = torch.finfo(dtype).max
    assert not faults(t)
    assert not faults(_bits(n, dtype))


@many(SERVED)
@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("place", [0, 1, 7, 2046, 2047, 2048, 4095, 4096, 5000])
def test_a_strange_element_is_counted_wherever_it_stands(dtype, strange, place):
    t = _spread(5001, dtype)
    t[place] = strange
    assert not faults(t)


@many(SERVED)
@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("kept", [0, 1, 2])
def test_few_or_no_finite_elements_among_strange_ones(dtype, strange, kept):
    t = torch.full((3 * BLOCK,), strange, dtype=dtype)
    t[BLOCK + 5 : BLOCK + 5 + kept] = -0.5
    assert not faults(t)


@many(SERVED)
def test_negative_nan_is_nan(dtype):
    ones = torch.full((70,), -1, dtype=torch.int32 if dtype == torch.float32 else torch.int16)
    assert not faults(ones.view(dtype))


@many((torch.float16, torch.bfloat16))
def test_every_value_of_a_half_type_is_counted_in_its_bin(dtype):
    t = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    assert not faults(t)


@many(SERVED)
@pytest.mark.parametrize("value", [0.1, -3.0, 7e-3, 1e-30])
def test_a_constant_has_no_spread(dtype, value):
    t = torch.full((100_001,), value, dtype=dtype)
    statistics, _, _ = by_compiled(t)
    assert statistics["std"] == 0.0
    assert statistics["mean"] == pytest.approx(t[0].item(), rel=1e-7)


def test_more_than_sixteen_million_elements_are_all_counted():
    n = 2**24 + 1
    statistics, _, bins = by_compiled(torch.ones(n))
    assert bins == {(1, 0): n}
    assert statistics["mean"] == 1.0
    assert statistics["l2"] == pytest.approx(math.sqrt(n), rel=1e-5)


@many(SERVED)
@pytest.mark.parametrize("offset", [1, 2, 3, 5, 15])
def test_elements_may_begin_anywhere_in_their_storage(dtype, offset):
    whole = _spread(4200, dtype)
    whole[:offset] = math.nan  # would be counted if it were read
    whole[-1] = math.inf
    assert not faults(whole[offset:-1])


LAYOUTS = {
    "transposed": lambda t: t.reshape(70, 60).T,
    "permuted": lambda t: t.reshape(10, 6, 7, 10).permute(2, 0, 3, 1),
    "channels last": lambda t: t.reshape(2, 3, 70, 10).contiguous(
        memory_format=torch.channels_last
    ),
    "expanded": lambda t: t[:7].unsqueeze(1).expand(7, 900),
    "one number, expanded": lambda t: t[5].expand(60, 70),
    "a scalar": lambda t: t[3],
    "every second": lambda t: t[::2],
    "windows that overlap": lambda t: t.unfold(0, 3, 1),
    "a part of each row": lambda t: t.reshape(60, 70)[:, 5:31],
    "a part of each row, transposed": lambda t: t.reshape(60, 70)[2:50, 5:31].T,
    "heads of a chunk": lambda t: (
        t.reshape(5, 7, 120)[..., 40:80].view(5, 7, 4, 10).transpose(1, 2)
    ),
    "a part, repeated": lambda t: t.reshape(60, 70)[:, ::3].unsqueeze(1).expand(60, 4, 24),
    "a diagonal": lambda t: t.reshape(60, 70).diagonal(),
    "many gaps": lambda t: t[:4096].reshape([2] * 12)[:, 0, :, 0, :, 0, :, 0],
}


@many((*SERVED, torch.float64, torch.int64, torch.uint8))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_of_any_strides_are_read_where_they_lie(dtype, layout):
    assert not faults(LAYOUTS[layout](_spread(4200, dtype)))


def _lazy_copy() -> torch.Tensor:
    return torch._lazy_clone(_spread(100))


def _without_memory() -> torch.Tensor:
    t = _spread(100)[50:]
    t.untyped_storage().resize_(0)
    return t


OTHERS = {
    "in nine dimensions with gaps": lambda: torch.zeros([3] * 9)[(slice(0, 2),) * 9],
    "negated on reading": lambda: torch._neg_view(_spread(100)),
    "nothing": lambda: torch.empty(0, 3),
    "a lazy copy": _lazy_copy,
    "memory that was let go": _without_memory,
    "memory at an odd address": lambda: torch.frombuffer(
        bytearray(401), dtype=torch.float32, offset=1
    ),
    "another device": lambda: torch.empty(3, device="meta"),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "a subclass": lambda: _spread(9).as_subclass(type("Mine", (torch.Tensor,), {})),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_cannot_be_read_by_its_address_is_left_to_others(case):
    t = OTHERS[case]()
    assert by_compiled(t) is None


@many((*COMPLEX, torch.uint64, torch.float8_e8m0fnu))
def test_other_types_are_left_to_others(dtype):
    assert by_compiled(torch.zeros(3).to(dtype)) is None


@many(EIGHT_BITS)
def test_every_byte_is_the_number_it_stands_for(dtype):
    if dtype != torch.float8_e8m0fnu:
        assert not faults(torch.arange(256, dtype=torch.uint8).repeat(9).view(dtype))


WIDE = {
    "the ends of int64": lambda: torch.tensor([-(2**63), 2**63 - 1, 0, 1, -1]),
    "int64 that float64 rounds up": lambda: torch.tensor([2**54 - 1, 2**62 - 1, 2**53 + 1]),
    "the ends of uint32": lambda: torch.tensor([0, 2**32 - 1, 2**31]).to(torch.uint32),
    "float64 close together": lambda: 1e8 + torch.linspace(0, 1e-3, 5001, dtype=torch.float64),
    "float64 out of the range of float32": lambda: torch.tensor(
        [1e300, -1e-300, 5e-324, 0.0, -0.0, 1e39, 1e-46], dtype=torch.float64
    ),
    "float64 whose squares vanish": lambda: torch.full((4099,), 3e-200, dtype=torch.float64),
    "float64 whose squares overflow": lambda: torch.tensor(
        [1e200, -3e200] * 2100, dtype=torch.float64
    ),
    "the largest float64": lambda: torch.tensor(
        [torch.finfo(torch.float64).max] * 1, dtype=torch.float64
    ),
    "float64 of every kind": lambda: torch.tensor(
        [math.nan, math.inf, -math.inf, 2.0, 1e-310], dtype=torch.float64
    ),
    "float64 without a number": lambda: torch.tensor([math.nan] * 2049, dtype=torch.float64),
    "float64 with a block of none": lambda: torch.cat(
        [torch.full((2048,), math.inf, dtype=torch.float64), torch.ones(5, dtype=torch.float64)]
    ),
}


@pytest.mark.parametrize("case", WIDE)
def test_what_float32_does_not_hold_keeps_its_digits(case):
    assert not faults(WIDE[case]())


@pytest.mark.parametrize("exponent", range(-1074, 1024, 29))
def test_no_magnitude_of_float64_overflows_or_vanishes(exponent):
    t = torch.randn(2500, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert not faults(torch.ldexp(t.clamp(-1.9, 1.9), torch.tensor(exponent, dtype=torch.float64)))


def test_a_parameter_is_a_plain_tensor():
    assert by_compiled(torch.nn.Parameter(_spread(9))) is not None


def test_a_lazy_copy_stays_lazy():
    t = _lazy_copy()
    by_compiled(t)
    assert torch._C._is_cow_tensor(t)


@many(SERVED)
def test_zeros_and_subnormals_keep_their_values_while_the_cpu_flushes_them(dtype):
    tiny = torch.finfo(dtype).tiny / 4
    t = torch.tensor([tiny, 0.0, -0.0, -tiny, -tiny, tiny / 2], dtype=dtype)
    want = oracle.expected(t)
    assert torch.set_flush_denormal(True)
    try:
        measured = by_compiled(t)
    finally:
        torch.set_flush_denormal(False)
    assert not oracle.faults(want, *measured)


@PATIENT
@given(t=filled(torch.float32, (50, 61)))
def test_the_reducer_measures_with_it(t):
    reducer = Reducer()
    reducer.see(t, once=False)
    assert repr(measuring.drained(reducer)[0]) == repr(by_compiled(t))


def test_threads_measure_at_the_same_time():
    inputs = [_spread(20_000 + i) * (i + 1) for i in range(4)]
    alone = [by_compiled(t) for t in inputs]
    wrong = []

    def work(i: int) -> None:
        wrong.extend(i for _ in range(200) if by_compiled(inputs[i]) != alone[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_nothing_is_written_to_the_tensor():
    t = _bits(5000, torch.float32)
    before, version = t.view(torch.int32).clone(), t._version
    by_compiled(t)
    assert torch.equal(t.view(torch.int32), before)
    assert t._version == version


def run(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_watched_process_never_imports_numba():
    run(
        """
import sys, warnings
from probe_nb.stats.kernels import cpu
from probe_nb.stats import summary
assert not {"numba", "llvmlite"} & set(sys.modules)
assert not cpu.ready() and cpu.kernel_name() == "torch"
before = list(warnings.filters)
cpu.warm().join()
assert cpu.warm() is None
assert cpu.ready() and cpu.kernel_name() == "numba"
assert "numba" not in sys.modules
assert list(warnings.filters) == before
"""
    )


FORKED = """
import os, warnings, torch, threading
warnings.simplefilter("ignore")
from probe_nb.stats.kernels import cpu, cpu_code, making
from probe_nb.stats.results import Results
t, results = torch.arange(5000.0), Results()
kernel, high = cpu.Kernel(results), lambda row: results.chunk.rows[row, 1]
{before}
child = os.fork()
if child == 0:
    {inside}
    os._exit(7 if good else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""


def test_a_fork_measures_with_what_was_ready():
    run(
        FORKED.format(
            before="cpu.warm().join(); kernel.reduce(t)",
            inside="good = cpu.ready() and kernel.reduce(t) == 1 and high(1) == 4999.0",
        )
    )


def test_a_fork_before_the_first_session_can_have_its_own_kernel():
    run(FORKED.format(before="", inside="cpu.warm().join(); good = cpu.ready()"))


def test_a_fork_while_the_kernel_is_made_does_without_it():
    run(
        FORKED.format(
            before="making.PATIENCE = 0; cpu_code.found = threading.Event().wait; cpu.warm()",
            inside="good = cpu.warm() is None and kernel.reduce(t) == -1 and not cpu.ready()",
        )
    )


@pytest.mark.parametrize("pause", [0, 0.02, 1])
def test_a_process_that_ends_waits_for_no_compiler_and_ends_under_no_thread(pause):
    """The compiler would take for ever: were it waited for, this test would not end."""
    run(
        f"""
import atexit, time
@atexit.register
def last():
    try:
        assert not thread.is_alive()
        assert [each for each in made if each.poll() is None] == []
    except BaseException as error:
        import os, traceback
        traceback.print_exc()
        os._exit(5)
from probe_nb.stats.kernels import cpu, cpu_code, making
making.PATIENCE = 10_000
cpu_code._SCRIPT = "import time; time.sleep(10_000)"
cpu_code._folders = lambda: []
made, popen = [], cpu_code.subprocess.Popen
cpu_code.subprocess.Popen = lambda *a, **k: made.append(popen(*a, **k)) or made[-1]
thread = cpu.warm()
time.sleep({pause})
"""
    )


@pytest.fixture
def cold(monkeypatch):
    monkeypatch.setattr(cpu, "_state", "cold")
    monkeypatch.setattr(cpu, "_entry", None)


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize(
    "error", [ImportError("numba"), OSError("no disk"), subprocess.TimeoutExpired("python", 1)]
)
def test_without_a_kernel_the_torch_kernel_serves(monkeypatch, error):
    def broken():
        raise error

    monkeypatch.setattr(cpu_code, "found", broken)
    cpu.warm().join()
    assert (cpu.ready(), cpu.kernel_name(), cpu.warm()) == (False, "torch", None)
    assert cpu.Kernel(Results()).reduce(_spread(10)) == -1
    assert not measuring.faults(measuring.by_reducer, _spread(10))


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("early", [True, False])
def test_the_torch_kernel_can_be_asked_for(early):
    if early:
        cpu.disable()
    elif thread := cpu.warm():
        thread.join()
    cpu.disable()
    assert (cpu.ready(), cpu.warm()) == (False, None)
    assert cpu.Kernel(Results()).reduce(_spread(10)) == -1


@pytest.fixture
def compiler(monkeypatch):
    """Stand in for the compiler, and count how often it is called."""
    code, calls = cpu_code.found(), []
    monkeypatch.setattr(cpu_code, "_from_another_process", lambda: calls.append(1) or code)
    return calls


def test_machine_code_is_kept_and_what_is_damaged_is_made_again(monkeypatch, tmp_path, compiler):
    monkeypatch.setattr(cpu_code, "_folders", lambda: [tmp_path / "a" / "b"])
    code = cpu_code.found()
    assert (cpu_code.found(), len(compiler)) == (code, 1)
    (kept,) = (tmp_path / "a" / "b").iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    assert (cpu_code.found(), len(compiler)) == (code, 2)
    assert (cpu_code.found(), len(compiler)) == (code, 2)


def test_where_nothing_can_be_kept_the_kernel_is_made_every_time(monkeypatch, tmp_path, compiler):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr(cpu_code, "_folders", lambda: [file / "below a file"])
    assert cpu_code.found() == cpu_code.found()
    assert len(compiler) == 2
    assert cpu_code.linked(cpu_code.found())
