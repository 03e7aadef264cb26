"""JSON as msProbe writes it, read entry by entry in bounded memory.

It is not strict: `NaN` and `Infinity` are written as they are, and a file may end anywhere, since
the process that wrote it was killed. What is whole is read; what is not is reported.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import IO, Any, Final, NamedTuple

from probe_nb.dump.reports import Report
from probe_nb.progress import Told, silent
from probe_nb.terms import printable

LARGEST: Final = 2**24
"""Characters that one entry may take: tens of thousands of tensors in one call."""

LONGEST: Final = 4096
"""Characters that a name may have."""

_CHUNK: Final = 2**20
_DECODE: Final = json.JSONDecoder().raw_decode
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|["\[{\]}]', re.DOTALL)
_SCALAR: Final = re.compile(r'[^\s,:"\[\]{}]+')


class Member(NamedTuple):
    """One member of an object: of the file itself, or of the one that was looked into."""

    name: str
    value: Any
    inside: bool


class _BrokenError(Exception):
    """Nothing more can be read; the message says why."""


class _Text:
    """The text of a file, of which only the part that is being read is held."""

    def __init__(self, file: IO[bytes], progress: Told) -> None:
        self._file = file
        self._progress = progress
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self.text = ""
        self.at = 0
        self.ended = False

    def more(self) -> bool:
        """Read on; tell whether there was anything."""
        if self.ended:
            return False
        left = self.text[self.at :]
        if len(left) > LARGEST:
            raise _BrokenError(f"has an entry of more than {LARGEST:,} characters")
        data = self._file.read(max(_CHUNK, len(left)))
        self._progress(len(data))
        self.ended = not data
        self.text, self.at = left + self._decoder.decode(data, final=self.ended), 0
        return not self.ended

    def peek(self) -> str:
        """Return the next character that is no space, "" at the end."""
        while True:
            found = _SPACE.match(self.text, self.at)
            self.at = self.at if found is None else found.end()
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""

    def value(self) -> Any:
        """Read one value.

        Raises:
            ValueError: It cannot be read, and was skipped.
        """
        self.peek()
        while True:
            try:
                value, end = _DECODE(self.text, self.at)
            except (ValueError, RecursionError, MemoryError) as error:
                if (end := self._end()) < 0:
                    continue
                self.at = end
                raise ValueError(_why(error)) from None
            if end < len(self.text) or self.ended:
                self.at = end
                return value
            self.more()  # a number may go on

    def _end(self) -> int:
        """Return where a value ends that cannot be read; -1 if there is more of it to read now."""
        end = _after(self.text, self.at)
        if end >= 0:
            return end
        if self.more():
            return -1
        raise _BrokenError("ends in the middle")


def _after(text: str, at: int) -> int:
    """Return where the value at a place ends, -1 if its end is not there."""
    if at < len(text) and text[at] not in '"[{':
        found = _SCALAR.match(text, at)
        end = at + 1 if found is None else found.end()
        return end if end < len(text) else -1
    depth = 0
    for token in _TOKEN.finditer(text, at):
        first = token[0][0]
        if token[0] == '"':  # a text whose end is not there
            return -1
        depth += (first in "[{") - (first in "]}")
        if depth <= 0:
            return token.end()
    return -1


def _why(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, MemoryError):
        return "it is too large"
    return "a number has too many digits" if "digits" in str(error) else "it is no JSON"


def members(
    file: IO[bytes],
    report: Report,
    *,
    inside: str = "",
    progress: Told = silent,
) -> Iterator[Member]:
    """Yield the members of the object in a file, and in place of one those of its object.

    Args:
        file: What is read.
        report: Hears what is not there, or was skipped, and why.
        inside: The member that is looked into.
        progress: Hears how many bytes were read.
    """
    reader = _Reader(_Text(file, progress), report)
    try:
        yield from reader.object(inside)
    except _BrokenError as error:
        at = f" of `{reader.name}`" if "middle" in str(error) and reader.name else ""
        after = f": the {reader.read:,} entries before it were read" if reader.read else ""
        report(f"{error}{at}{after}")


class _Reader:
    def __init__(self, text: _Text, report: Report) -> None:
        self._text = text
        self._report = report
        self.name = ""
        self.read = 0

    def object(self, into: str, *, inside: bool = False) -> Iterator[Member]:
        """Yield the members of the object that begins here."""
        text = self._text
        if (first := text.peek()) != "{":
            raise _BrokenError("is no JSON object" if first else "is empty")
        text.at += 1
        while (found := text.peek()) != "}":
            if found == ",":
                text.at += 1
                continue
            name = self._name(found)
            if name == into and into and text.peek() == "{":
                yield from self.object("", inside=True)
            else:
                yield from self._member(name, inside=inside)
        text.at += 1

    def _name(self, first: str) -> str:
        if first not in ('"', ""):
            raise _BrokenError("is no JSON from some place on")
        text = self._text
        if not first:
            raise _BrokenError("ends in the middle")
        try:
            name = str(text.value())
        except ValueError:
            raise _BrokenError("is no JSON from some place on") from None
        if (sign := text.peek()) != ":":
            raise _BrokenError("is no JSON from some place on" if sign else "ends in the middle")
        text.at += 1
        self.name = printable(name[:LONGEST])
        if len(name) > LONGEST:
            self._report(f"has a name of {len(name):,} characters; it is cut off")
        return self.name

    def _member(self, name: str, *, inside: bool) -> Iterator[Member]:
        try:
            value = self._text.value()
        except ValueError as error:
            self._report(f"`{name}` was skipped: {error}")
            return
        self.read += inside
        yield Member(name, value, inside)
