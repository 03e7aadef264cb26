"""msProbe's rules: which row of a call is an error or a warning, and what it says of it.

The thresholds and words are msProbe's, also where its words and its thresholds differ.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from probe_nb.dump.verdict_lines import NOT_THERE

Row = dict[str, Any]
RESULT: Final = "Result"
MESSAGE: Final = "Err_message"
PASS, WARNING, ERROR = "pass", "warning", "error"

_LEVELS: Final = (PASS, WARNING, ERROR)
_ALL_IGNORED: Final = frozenset(
    {
        *("empty", "empty_like", "numpy", "to", "__setitem__", "empty_with_format"),
        *("new_empty_strided", "new_empty", "empty_strided"),
    }
)
"""What these give out is not written yet, or was not computed."""

_INPUT_IGNORED: Final = frozenset(
    {"_reduce_scatter_base", "_all_gather_base", "all_to_all_single", "batch_isend_irecv"}
)
"""What these are fed is where they write."""

_NON_FINITE: Final = "error: There is nan/inf/-inf in the maximum or minimum value of NPU."
_NORM: Final = "error: The NormRelativeErr of output is greater than 0.5."
_RATIO: Final = (
    "error: The input/parameters of One Thousandth Err Ratio > 0.9 while the output < 0.6."
)
_GRAD: Final = "error: The Required_Grad of NPU and Bench are inconsistent"
_SCALAR: Final = "error: The scalar parameters of NPU and Bench are inconsistent."
_DTYPE: Final = "error: The dtype of NPU and Bench are inconsistent."
_SHAPE: Final = "error: The shape of NPU and Bench are inconsistent."
_TIMES: Final = "warning: The norm relative error of output is 10 times that of input."
_COSINE: Final = (
    "warning: The input/parameters of Cosine > 0.9, and input/parameters - output > 0.1"
)
_CRC: Final = "error: The CRC-32 value of NPU differs from that of the bench."
_NO_CRC: Final = "warning: The parameter of NPU does not match the bench."


class Call:
    """The rows of one call: those of its outputs, and the others."""

    def __init__(self, rows: Sequence[Row]) -> None:
        """Let all pass at first."""
        for row in rows:
            row[RESULT], row[MESSAGE] = PASS, []
        self.outputs = [row for row in rows if ".output." in row["NPU Name"]]
        self.others = [row for row in rows if ".output." not in row["NPU Name"]]
        words = self.others[0]["NPU Name"].split(".") if self.others else []
        name = words[1] if len(words) > 1 else ""
        self.judged = [*self.others, *self.outputs]
        self.as_one = name not in _ALL_IGNORED | _INPUT_IGNORED
        if name in _ALL_IGNORED:
            self.judged = []
        elif name in _INPUT_IGNORED:
            self.judged = self.outputs

    def end(self, rows: Sequence[Row]) -> None:
        """Write the messages as msProbe does."""
        for row in rows:
            row[MESSAGE] = json.dumps(row[MESSAGE])


def judge(rows: Sequence[Row], mode: str) -> None:
    """Fill in the result of each row of one call, and why."""
    call = Call(rows)
    for rule in RULES[mode]:
        rule(call)
    call.end(rows)


def _tell(row: Row, message: str) -> None:
    level = message.partition(":")[0]
    row[RESULT] = max(row[RESULT], level, key=_LEVELS.index)
    row[MESSAGE].append(message)


def _is_matched(row: Row) -> bool:
    return bool(row["Bench Name"] != NOT_THERE)


def _is_odd(value: Any) -> bool:
    """Tell whether a number is not finite; NaN is a word here."""
    if isinstance(value, float):
        return not math.isfinite(value)
    return isinstance(value, str) and value.strip().lower() in ("inf", "-inf", "nan")


def _non_finite(call: Call) -> None:
    for row in call.judged:
        bench = _is_odd(row["Bench max"]) or _is_odd(row["Bench min"])
        if not bench and (_is_odd(row["NPU max"]) or _is_odd(row["NPU min"])):
            _tell(row, _NON_FINITE)


def _share(text: Any) -> float:
    """Return a percentage as a number, 0 for what is none."""
    try:
        return float(str(text).strip("%")) / 100
    except ValueError:
        return 0.0


def _extreme(rows: Sequence[Row], column: str, pick: Callable[..., Any], first: float) -> float:
    """Return the largest or smallest of what are numbers in a column."""
    values = [row[column] for row in rows]
    numbers = [_share(v) if isinstance(v, str) and v.endswith("%") else v for v in values]
    there = [n for n in numbers if isinstance(n, (int, float))]
    found: float = pick([first, *there])
    return found


def _norm(call: Call) -> None:
    if call.as_one and _extreme(call.others, "NormRelativeErr", max, 0.0) < 0.1:  # noqa: PLR2004
        for row in call.outputs:
            if _share(row["NormRelativeErr"]) > 0.5:  # noqa: PLR2004
                _tell(row, _NORM)


def _times(call: Call) -> None:
    if not call.as_one or not call.outputs:
        return
    given = _extreme(call.others, "NormRelativeErr", max, 0.0)
    came = _extreme(call.outputs, "NormRelativeErr", max, 0.0)
    if came > 0.1 if given == 0 else came / given > 10:  # noqa: PLR2004
        _tell(call.outputs[0], _TIMES)


def _ratio(call: Call) -> None:
    if not call.as_one or not call.outputs:
        return
    column = "One Thousandth Err Ratio"
    given = _extreme(call.others, column, min, 1.0)
    if given > 0.9 and _extreme(call.outputs, column, min, 1.0) < 0.1:  # noqa: PLR2004
        _tell(call.outputs[0], _RATIO)


def _cosine(call: Call) -> None:
    if not call.as_one or not call.outputs:
        return
    given = _extreme(call.others, "Cosine", min, 1.0)
    if given > 0.9 and given - _extreme(call.outputs, "Cosine", min, 1.0) > 0.1:  # noqa: PLR2004
        _tell(call.outputs[0], _COSINE)


def _scalar(call: Call) -> None:
    for row in call.others if call.as_one else ():
        scalars = "class" in row["NPU Dtype"] and "class" in row["Bench Dtype"]
        if not _is_matched(row) or not scalars or row["NPU Tensor Shape"] != "[]":
            continue
        if row["NPU max"] != row["Bench max"]:
            _tell(row, _SCALAR)


def _differs(column: str, message: str) -> Callable[[Call], None]:
    def rule(call: Call) -> None:
        for row in call.judged:
            mine, other = row[f"NPU {column}"], row[f"Bench {column}"]
            if _is_matched(row) and mine and other and mine != other:
                _tell(row, message)

    return rule


def _checksum(call: Call) -> None:
    nothing = (NOT_THERE, "Nan", "")
    for row in call.judged:
        mine, other = row["NPU MD5"], row["BENCH MD5"]
        if mine != other:
            _tell(row, _NO_CRC if mine in nothing or other in nothing else _CRC)


_ALIKE: Final = (
    _differs("Requires_grad", _GRAD),
    _scalar,
    _differs("Dtype", _DTYPE),
    _differs("Tensor Shape", _SHAPE),
)
RULES: Final[dict[str, tuple[Callable[[Call], None], ...]]] = {
    "statistics": (_non_finite, _norm, *_ALIKE, _times),
    "tensor": (_non_finite, _ratio, *_ALIKE, _cosine),
    "md5": (_checksum,),
}
"""The rules of each kind of dump, in the order in which msProbe tells of them."""
