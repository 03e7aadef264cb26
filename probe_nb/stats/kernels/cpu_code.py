"""The machine code of the compiled kernel: compiled once per machine, kept, and linked.

Compiling takes seconds, imports numba, and changes the process-wide warning filters meanwhile: a
process of its own does it. The one that is watched only links an object file, with llvmlite.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final

ENTRY: Final = "probe_nb_summarize"
"""The one symbol of the object file that is used."""

_HERE: Final = Path(__file__).parent
_SOURCES: Final = sorted(_HERE.glob("cpu_*.py"))
_PATIENCE: Final = 300.0
_DIGEST: Final = 32
_SCRIPT: Final = """
import sys
sys.path.insert(0, sys.argv[1])
from probe_nb.stats.kernels import cpu_code
sys.stdout.buffer.write(cpu_code.compiled())
"""

_compilers: list[subprocess.Popen[bytes]] = []
_given_up = threading.Event()
_kept: list[object] = []  # what the machine code lives in


def found() -> bytes:
    """Return the object file, from where it was kept or from a compiler.

    Cost: some seconds the first time, in which another process works.

    Raises:
        ImportError: if llvmlite is not installed.
        Exception: whatever keeps a compiler from its work.
    """
    name = _name()
    for folder in _folders():
        with contextlib.suppress(OSError):
            kept = (folder / name).read_bytes()
            if hashlib.sha256(kept[_DIGEST:]).digest() == kept[:_DIGEST]:
                return kept[_DIGEST:]
    code = _from_another_process()
    for folder in _folders():
        with contextlib.suppress(OSError):
            _keep(folder / name, hashlib.sha256(code).digest() + code)
            break
    return code


def _folders() -> Iterator[Path]:
    """Yield where machine code is kept: beside Python's own, or with the user's caches."""
    yield _HERE / "__pycache__"
    with contextlib.suppress(RuntimeError):  # a user without a home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "probe_nb"


def _name() -> str:
    """Name the file after all that its content depends on."""
    import llvmlite.binding as llvm

    versions = [metadata.version(package) for package in ("numba", "llvmlite")]
    words = [*versions, llvm.get_default_triple(), *_processor(llvm)]
    content = b"".join(source.read_bytes() for source in _SOURCES) + "\n".join(words).encode()
    return f"cpu-{hashlib.sha256(content).hexdigest()[:32]}.o"


def _processor(llvm: Any) -> tuple[str, str]:
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def _keep(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)


def _from_another_process() -> bytes:
    """Compile where imports, warnings and locks disturb nobody."""
    with subprocess.Popen(  # noqa: S603 - our own script, with the Python that runs
        [sys.executable, "-c", _SCRIPT, str(_HERE.parents[2])],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")},
        start_new_session=True,
    ) as compiler:
        _compilers.append(compiler)
        try:
            if _given_up.is_set():
                raise InterruptedError("the process ends")
            code, _ = compiler.communicate(timeout=_PATIENCE)
        finally:
            _compilers.remove(compiler)
            compiler.kill()
    if compiler.returncode:
        raise subprocess.CalledProcessError(compiler.returncode, "the compiler of the kernel")
    return code


def give_up() -> None:
    """End the compiler's process, now and later: whoever waits for it gets an error."""
    _given_up.set()
    for compiler in tuple(_compilers):
        compiler.kill()


def forget() -> None:
    """In a child after a fork: the compiler is its parent's."""
    _compilers.clear()


def compiled() -> bytes:
    """Compile the loops into an object file for this processor; imports numba.

    Raises:
        RuntimeError: if the code would call anything but what every process has.
    """
    import llvmlite.binding as llvm
    from numba import types

    from probe_nb.stats.kernels.cpu_loops import summarize

    summarize.compile((types.intp,))
    result = next(iter(summarize.overloads.values()))
    module = llvm.parse_assembly(result.library.get_llvm_str())
    for function in module.functions:
        if function.is_declaration and not function.name.startswith(("llvm.", "mem")):
            raise RuntimeError(f"The kernel would call {function.name}.")
        if function.name == result.fndesc.llvm_func_name:
            function.name = ENTRY
    processor, features = _processor(llvm)
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(cpu=processor, features=features, opt=3, jit=True)
    return bytes(machine.emit_object(module))


def linked(code: bytes) -> Callable[..., int]:
    """Put an object file into memory and return its entry, which lets other threads run.

    Arguments of that: `c_void_p` objects with the addresses of two words that numba writes, and
    of the scratch memory of `cpu_loops.summarize`.
    Cost: 20 ms.
    """
    import llvmlite.binding as llvm

    with contextlib.suppress(RuntimeError):  # newer versions do this by themselves
        llvm.initialize()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _kept.append(engine)
    address: int = engine.get_function_address(ENTRY)
    if not address:
        raise RuntimeError(f"The object file has no {ENTRY}.")
    made: Any = ctypes.CFUNCTYPE(ctypes.c_int)(address)  # undeclared arguments are fastest
    return made  # type: ignore[no-any-return]
