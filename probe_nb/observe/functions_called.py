"""What a caller wrote between the brackets: `F.embedding(x, w, None)` has three arguments.

A function of torch that is written in Python hands a mode its parameters as torch sorts them, most
of them by keyword, with defaults that nobody gave. The instruction at which the caller stands says
how many arguments there are, and which of them have a keyword.
"""

from __future__ import annotations

import dis
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

import torch

from probe_nb.observe.regions import local

_handles: Final = torch.overrides.handle_torch_function.__code__
"""Calls modes for functions that are written in Python, from inside of them."""

_dispatched: Final = torch.nn.functional.max_pool1d.__code__
"""Stands between the caller and some functions, and hands on what it was given."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Form(NamedTuple):
    """How the arguments of a call are written: so many without a keyword, these with one."""

    plain: int
    named: tuple[str, ...]


class Written:
    """Reads the instructions of callers, each once."""

    def __init__(self) -> None:
        """Have read none."""
        self._read: dict[int, tuple[CodeType, dict[int, Form | None]]] = {}

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any], mode: FrameType) -> Arguments:
        """Return the arguments of a call as its caller wrote them, where that can be told.

        `mode` is the frame of the mode that was called.
        """
        above = mode.f_back
        if above is None or above.f_code is not _handles:
            return args, kwargs
        function = above.f_back
        caller = None if function is None else function.f_back
        if function is None or caller is None:
            return args, kwargs
        form = _handed_on(caller) if caller.f_code is _dispatched else self._at(caller)
        return _sorted(args, kwargs, function, form) if form else (args, kwargs)

    def _at(self, caller: FrameType) -> Form | None:
        code, place = caller.f_code, caller.f_lasti
        known = self._read.get(id(code))
        if known is None or known[0] is not code:
            known = self._read[id(code)] = code, {}
        if place not in known[1]:
            known[1][place] = form_at(code, place)
        return known[1][place]

    def forget(self) -> None:
        """Let go of what was read."""
        self._read.clear()


def form_at(code: CodeType, place: int) -> Form | None:
    """Return how the call at an instruction is written, None if it is none, or unpacks something.

    `place` may be behind the instruction, where Python 3.11 caches what it knows of it.

    >>> code = compile("f(1, 2, key=3)", "", "eval")
    >>> found = [form_at(code, each.offset) for each in dis.get_instructions(code)]
    >>> [form for form in found if form][-1]
    Form(plain=2, named=('key',))
    """
    found: list[dis.Instruction] = []
    for each in dis.get_instructions(code):
        if each.offset > place:
            break
        if each.opname != "PRECALL":
            found.append(each)
            del found[:-2]
    return _form(found[-1], code, found[0]) if found else None


def _form(call: dis.Instruction, code: CodeType, before: dis.Instruction) -> Form | None:
    count, names = call.arg or 0, ()
    if before.opname in ("KW_NAMES", "LOAD_CONST"):
        names = code.co_consts[before.arg or 0]
    if call.opname in ("CALL_KW", "CALL_FUNCTION_KW"):  # Python 3.13, and 3.10
        return Form(count - len(names), names) if type(names) is tuple else None
    if call.opname not in ("CALL", "CALL_FUNCTION", "CALL_METHOD"):
        return None
    return Form(count - len(names), names) if before.opname == "KW_NAMES" else Form(count, ())


def _handed_on(caller: FrameType) -> Form | None:
    args, kwargs = local(caller, "args"), local(caller, "kwargs")
    return Form(len(args), tuple(kwargs)) if type(args) is tuple and type(kwargs) is dict else None


def _sorted(
    args: tuple[Any, ...], kwargs: dict[str, Any], function: FrameType, form: Form
) -> Arguments:
    """Sort the parameters of a function as they were written; as they are where one is missing.

    Torch does not hand on all of them: the others are variables of the function.
    """
    code = function.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    given = dict(zip(names, args, strict=False)) | kwargs
    plain = names[: form.plain]
    if len(plain) < form.plain or not set(form.named) <= set(names):
        return args, kwargs
    for name in {*plain, *form.named} - given.keys():
        given[name] = local(function, name)
    return tuple(given[name] for name in plain), {name: given[name] for name in form.named}
