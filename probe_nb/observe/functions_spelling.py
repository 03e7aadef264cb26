"""How a call is written: `x + 1` and `x.add(1)` are one function of torch, and two APIs.

Torch hands the same function to a mode for both. The instruction at which the caller stands says
which it was. Where a number is on the left, as in `2 * x`, Python asks the tensor on the right, and
the name is that of the reflected operator.
"""

from __future__ import annotations

import dis
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from torch import Tensor, nn

from probe_nb.observe.regions import local

_OPERATORS: Final[dict[str, dict[str, str]]] = {
    "Tensor.add": {"+": "__add__"},
    "Tensor.add_": {"+=": "__iadd__"},
    "Tensor.sub": {"-": "__sub__"},
    "Tensor.sub_": {"-=": "__isub__"},
    "Tensor.mul": {"*": "__mul__"},
    "Tensor.mul_": {"*=": "__imul__"},
    "Tensor.div": {"/": "__truediv__"},
    "Tensor.div_": {"/=": "__itruediv__"},
    "Tensor.matmul": {"@": "__matmul__"},
    "Tensor.remainder": {"%": "__mod__"},
    "Tensor.remainder_": {"%=": "__imod__"},
    "Tensor.gt": {">": "__gt__"},
    "Tensor.ge": {">=": "__ge__"},
    "Tensor.lt": {"<": "__lt__"},
    "Tensor.le": {"<=": "__le__"},
    "Tensor.neg": {"UNARY_NEGATIVE": "__neg__"},
}
"""Functions that operators call, and as which method each of them does."""

_SIGNS: Final = {
    "BINARY_ADD": "+",
    "INPLACE_ADD": "+=",
    "BINARY_SUBTRACT": "-",
    "INPLACE_SUBTRACT": "-=",
    "BINARY_MULTIPLY": "*",
    "INPLACE_MULTIPLY": "*=",
    "BINARY_TRUE_DIVIDE": "/",
    "INPLACE_TRUE_DIVIDE": "/=",
    "BINARY_MATRIX_MULTIPLY": "@",
    "BINARY_MODULO": "%",
    "INPLACE_MODULO": "%=",
    "UNARY_NEGATIVE": "UNARY_NEGATIVE",
}
"""Instructions of Python 3.10 that stand for one operator each, and one of all versions."""

_REFLECTED: Final = {"__add__": "__radd__", "__mul__": "__rmul__"}
"""Operators that torch runs in the same way whatever is on the left."""

_TURNED: Final = {">": "<", ">=": "<=", "<": ">", "<=": ">="}
"""How a comparison reads from the right: Python asks the tensor in `0 < x` whether `x > 0`."""

_LIMIT: Final = 64
"""Instructions that an operand may take."""


class Operand(NamedTuple):
    """What an instruction puts on the stack, as far as that can be told without running it."""

    name: str | None = None
    constant: bool = False


class Spelt(NamedTuple):
    """An instruction that calls an operator: its sign, and what is on both sides."""

    sign: str
    left: Operand
    right: Operand


class Spelling:
    """Reads the instructions of callers, each once."""

    def __init__(self) -> None:
        """Have read none."""
        self._read: dict[int, tuple[CodeType, dict[int, Spelt | None]]] = {}
        self._around = _passed_on()

    def may_differ(self, name: str) -> bool:
        """Tell whether calls of a function have other names than the function's."""
        return name in _OPERATORS or name in self._around

    def of(self, name: str, args: Any, caller: FrameType) -> str:
        """Return the name of a call of a function."""
        around = self._around.get(name, {}).get(caller.f_code)
        operators = _OPERATORS.get(name)
        if around is not None or operators is None:
            return around or name
        spelt = self._at(caller)
        if spelt is None:
            return _called(name, operators, args, caller.f_code)
        method = operators.get(spelt.sign) or operators.get(_TURNED.get(spelt.sign, ""))
        if method is None:
            return name
        reflected = method in _REFLECTED and _is_reflected(spelt, args, caller)
        return f"Tensor.{_REFLECTED[method] if reflected else method}"

    def _at(self, caller: FrameType) -> Spelt | None:
        """Return the operator at which a frame stands, None if it stands at a call."""
        code, place = caller.f_code, caller.f_lasti
        known = self._read.get(id(code))
        if known is None or known[0] is not code:
            known = self._read[id(code)] = code, {}
        if place not in known[1]:
            known[1][place] = _spelt(code, place)
        return known[1][place]

    def forget(self) -> None:
        """Let go of what was read."""
        self._read.clear()


def _passed_on() -> dict[str, dict[CodeType, str]]:
    """Return the functions that only call another one: torch does not tell that they run."""
    pairs = {
        "Tensor.sigmoid": ("sigmoid",),
        "Tensor.tanh": ("tanh",),
        "Functional.interpolate": ("upsample", "upsample_nearest", "upsample_bilinear"),
    }
    found: dict[str, dict[CodeType, str]] = {}
    for name, others in pairs.items():
        codes = {
            each: getattr(getattr(nn.functional, each, None), "__code__", None) for each in others
        }
        found[name] = {c: f"Functional.{each}" for each, c in codes.items() if c is not None}
    return found


def _called(name: str, operators: Mapping[str, str], args: Any, code: CodeType) -> str:
    """Return the name of a call that no operator makes: it is the one that the code mentions.

    `sum` and others like it mention none: they use the operator.
    """
    if name.partition(".")[2] in code.co_names:
        return name
    method = next(iter(operators.values()))
    if len(args) > 1 and not isinstance(args[1], Tensor) and method not in code.co_names:
        method = _REFLECTED.get(method, method)
    return f"Tensor.{method}"


def _spelt(code: CodeType, place: int) -> Spelt | None:
    before: list[dis.Instruction] = []
    for each in dis.get_instructions(code):
        if each.offset == place:
            sign = _sign(each)
            return None if sign is None else Spelt(sign, *_operands(before))
        before.append(each)
        del before[:-_LIMIT]
    return None


def _sign(instruction: dis.Instruction) -> str | None:
    name = instruction.opname
    if name in ("BINARY_OP", "COMPARE_OP"):
        return instruction.argrepr.removeprefix("bool(").removesuffix(")")
    return _SIGNS.get(name)


def _operands(before: list[dis.Instruction]) -> tuple[Operand, Operand]:
    """Return what is left and right of an operator, given the instructions before it."""
    if not before:
        return Operand(), Operand()
    last = before[-1]
    if isinstance(last.argval, tuple) and last.opname.startswith("LOAD_FAST"):  # two at once
        return Operand(str(last.argval[0])), Operand(str(last.argval[1]))
    missing = 1
    for place in range(len(before) - 1, 0, -1):
        each = before[place]
        if each.opcode in dis.hasjrel or each.opcode in dis.hasjabs:
            break
        arg = each.arg if each.opcode >= dis.HAVE_ARGUMENT else None
        missing -= dis.stack_effect(each.opcode, arg)
        if missing <= 0:
            return _operand(before[place - 1]), _operand(last)
    return Operand(), _operand(last)


def _operand(instruction: dis.Instruction) -> Operand:
    name, value = instruction.opname, instruction.argval
    if name in ("LOAD_CONST", "LOAD_SMALL_INT"):
        return Operand(constant=True)
    if isinstance(value, tuple) and "LOAD_FAST" in name:
        return Operand(str(value[-1]))
    if name.startswith(("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF")):
        return Operand(str(value))
    return Operand()


def _is_reflected(spelt: Spelt, args: Any, caller: FrameType) -> bool:
    """Tell whether the number is on the left; taken for no where nothing tells."""
    if len(args) < 2 or isinstance(args[1], Tensor):  # noqa: PLR2004 - a tensor and a number
        return False
    if spelt.right.constant or spelt.left.constant:
        return not spelt.right.constant
    tensor, number = args[0], args[1]
    right, left = (_value(each, caller) for each in (spelt.right, spelt.left))
    if right is tensor or left is tensor:
        return right is tensor
    return left is number and right is not number


def _value(operand: Operand, caller: FrameType) -> Any:
    """Return what a name stands for in a frame; code of the user's is never run for it."""
    if operand.name is None:
        return _value
    found = local(caller, operand.name)
    return caller.f_globals.get(operand.name, _value) if found is None else found
