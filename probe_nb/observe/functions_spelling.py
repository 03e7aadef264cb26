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
    "Tensor.eq": {"==": "__eq__"},
    "Tensor.ne": {"!=": "__ne__"},
    "Tensor.__rdiv__": {"/": "__rtruediv__"},
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

_READS: Final = ("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF")
"""Instructions that read a variable."""

_LIMIT: Final = 64
"""Instructions that an operand may take."""


class Operand(NamedTuple):
    """What an instruction puts on the stack, as far as that can be told without running it."""

    name: str | None = None
    constant: bool = False
    names: frozenset[str] = frozenset()
    """All that it reads on the way."""


class Spelt(NamedTuple):
    """An instruction that calls an operator: its sign, and what is on both sides.

    That of a call is `()`; what is called is on the left.
    """

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
        if spelt is None or spelt.sign == "()":
            callee = None if spelt is None else spelt.left.name
            return _called(name, operators, args, caller.f_code, callee)
        method = operators.get(spelt.sign) or operators.get(_TURNED.get(spelt.sign, ""))
        if method is None:
            return name
        reflected = method in _REFLECTED and _is_reflected(spelt, args, caller)
        return f"Tensor.{_REFLECTED[method] if reflected else method}"

    def _at(self, caller: FrameType) -> Spelt | None:
        """Return the operator or call at which a frame stands, None if it is neither."""
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


def spellings() -> frozenset[str]:
    """Return the names that calls may have beside those of the functions."""
    methods = {method for each in _OPERATORS.values() for method in each.values()}
    others = {name for each in _passed_on().values() for name in each.values()}
    return frozenset(others | {f"Tensor.{each}" for each in methods | set(_REFLECTED.values())})


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


def _called(
    name: str, operators: Mapping[str, str], args: Any, code: CodeType, callee: str | None
) -> str:
    """Return the name of a call that no operator makes: the one that the code mentions.

    `sum` and others like it mention none: they use the operator.
    """
    method = next(iter(operators.values()))
    own = name.partition(".")[2]
    if callee == own or (callee is None and own in code.co_names):
        return name
    if callee != method and len(args) > 1 and not isinstance(args[1], Tensor):
        method = _REFLECTED.get(method, method)
    return f"Tensor.{method}"


def _spelt(code: CodeType, place: int) -> Spelt | None:
    before: list[dis.Instruction] = []
    for each in dis.get_instructions(code):
        if each.offset == place:
            sign = _sign(each)
            if sign is None:
                return _call(each, before)
            return Spelt(sign, *_operands(before))
        before.append(each)
        del before[:-_LIMIT]
    return None


def _sign(instruction: dis.Instruction) -> str | None:
    name = instruction.opname
    if name in ("BINARY_OP", "COMPARE_OP"):
        return instruction.argrepr.removeprefix("bool(").removesuffix(")")
    return _SIGNS.get(name)


def _call(instruction: dis.Instruction, before: list[dis.Instruction]) -> Spelt | None:
    """Return the name that is called, of a call that says one."""
    if instruction.opname not in ("CALL", "CALL_METHOD", "CALL_FUNCTION", "PRECALL"):
        return None
    if before and before[-1].opname == "PRECALL":
        before = before[:-1]
    place = _start(before, instruction.arg or 0)
    found = before[place - 1] if place else None
    if found is None or found.opname not in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL"):
        return None
    return Spelt("()", Operand(str(found.argval)), Operand())


def _start(before: list[dis.Instruction], operands: int) -> int:
    """Return where the instructions of the last operands begin; 0 if that cannot be told."""
    missing = operands
    for place in range(len(before) - 1, 0, -1):
        if missing <= 0:
            return place + 1
        each = before[place]
        if each.opcode in dis.hasjrel or each.opcode in dis.hasjabs:
            return 0
        arg = each.arg if each.opcode >= dis.HAVE_ARGUMENT else None
        missing -= dis.stack_effect(each.opcode, arg)
    return 1 if missing <= 0 and before else 0


def _operands(before: list[dis.Instruction]) -> tuple[Operand, Operand]:
    """Return what is left and right of an operator, given the instructions before it."""
    last = before[-1] if before else None
    if last is not None and _is_pair(last):
        return Operand(str(last.argval[0])), Operand(str(last.argval[1]))
    middle = _start(before, 1)
    if not middle:
        return Operand(), Operand()
    first = _start(before[:middle], 1)
    return _operand(before[first:middle]), _operand(before[middle:])


def _operand(instructions: list[dis.Instruction]) -> Operand:
    """Return what a run of instructions puts on the stack."""
    names = {name for each in instructions for name in _names(each)}
    last = instructions[-1]
    name = str(last.argval[-1] if _is_pair(last) else last.argval) if _names(last) else None
    return Operand(name, last.opname in ("LOAD_CONST", "LOAD_SMALL_INT"), frozenset(names))


def _names(instruction: dis.Instruction) -> tuple[str, ...]:
    """Return the variables that an instruction reads."""
    if _is_pair(instruction):
        return tuple(map(str, instruction.argval))
    return (str(instruction.argval),) if instruction.opname.startswith(_READS) else ()


def _is_pair(instruction: dis.Instruction) -> bool:
    """Tell whether an instruction of Python 3.13 handles two variables at once."""
    return isinstance(instruction.argval, tuple) and "LOAD_FAST" in instruction.opname


def _is_reflected(spelt: Spelt, args: Any, caller: FrameType) -> bool:
    """Tell whether the number is on the left; taken for no where nothing tells."""
    if len(args) < 2 or isinstance(args[1], Tensor):  # noqa: PLR2004 - a tensor and a number
        return False
    left, right = spelt.left, spelt.right
    if right.constant or left.constant:
        return not right.constant
    tensor, number = args[0], args[1]
    values = [_value(each.name, caller) if each.name else None for each in (left, right)]
    if any(each is tensor or each is number for each in values):
        return values[1] is tensor or (values[0] is number and values[1] is not number)
    return not _reads_tensor(left, caller) and _reads_tensor(right, caller)


def _reads_tensor(operand: Operand, caller: FrameType) -> bool:
    return any(isinstance(_value(name, caller), Tensor) for name in operand.names)


def _value(name: str, caller: FrameType) -> Any:
    """Return what a name stands for in a frame; code of the user's is never run for it."""
    found = local(caller, name)
    return caller.f_globals.get(name) if found is None else found
