"""The parts of pages that follow from the code: `python -m docs.site.generated` writes them anew.

A part stands between `<!-- generated: NAME ARGUMENTS -->` and `<!-- /generated -->`. A test holds
every part to the code, so that a page cannot say what was true once.
"""

# ruff: noqa: INP001, T201 - a script, not a package; it says what it wrote

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any, Final

DOCS: Final = Path(__file__).parents[1]
PART: Final = re.compile(
    r"(?P<begin><!-- generated: (?P<name>\w+)(?P<words>[^\n]*?) -->\n).*?"
    r"(?P<end><!-- /generated -->)",
    re.DOTALL,
)
OWNERS: Final = {
    "probe_nb.Run": "run.",
    "probe_nb.Comparison": "comparison.",
    "probe_nb.debugger.PrecisionDebugger": "debugger.",
    "probe_nb.monitor.TrainerMon": "monitor.",
    "probe_nb.view.plots.Plots": "run.plot.",
}
"""What the documentation calls an object of a class."""
INTERNAL: Final = {"bind", "columns", "readers", "as_dict"}
"""What the package itself needs, although no underscore says so."""


def functions(*paths: str) -> Iterator[str]:
    """Return a table of functions, and all that their docstrings say."""
    yield from _table("function", ((_spoken(path), _first(_found(path))) for path in paths))
    for path in paths:
        kind = "class" if inspect.isclass(_found(path)) else "function"
        yield f"<!-- autodoc: {kind} {path}{_MEMBERS if kind == 'class' else ''} -->"


def methods(path: str) -> Iterator[str]:
    """Return a table of what a class answers, and all that its docstrings say."""
    kind = _found(path)
    names = [name for name in _public(kind) if _first(getattr(kind, name))]
    owner = OWNERS.get(path, "")
    yield from _table(
        "name", ((f"`{owner}{_call(kind, name)}`", _first(getattr(kind, name))) for name in names)
    )
    yield f"<!-- autodoc: class {path}{_MEMBERS} -->"


def errors() -> Iterator[str]:
    """Return a table of the errors and the builtin that each of them also is."""
    from probe_nb import errors as room

    found = [each for each in vars(room).values() if _is_error(each)]
    yield "| error | also a | raised when |"
    yield "|---|---|---|"
    for each in found:
        bases = ", ".join(f"`{base.__name__}`" for base in each.__bases__)
        yield f"| `{each.__name__}` | {bases} | {_escaped(_first(each))} |"
    yield ""
    for each in found:
        yield f"<!-- autodoc: class probe_nb.errors.{each.__name__} -->"


def options(magic: str) -> Iterator[str]:
    """Return the options of a magic, as its parser has them."""
    from probe_nb.magics.extension import ProbeMagics

    yield "| option | default | meaning |"
    yield "|---|---|---|"
    for action in getattr(ProbeMagics, magic).parser._actions:  # noqa: SLF001 - argparse has no other
        word = action.option_strings[0] if action.option_strings else ""
        takes = f"{action.metavar} ..." if action.nargs == "*" else action.metavar or ""
        default = str(action.default) if type(action.default) is int else ""
        yield f"| `{f'{word} {takes}'.strip()}` | {default} | {_escaped(action.help)} |".replace(
            "|  |", "| |"
        )


def thresholds() -> Iterator[str]:
    """Return every threshold of the findings, with what its source says."""
    from probe_nb.analysis.thresholds import Thresholds

    said = _attributes(Thresholds)
    yield "| threshold | default | what it is, and where it comes from |"
    yield "|---|---|---|"
    for each in fields(Thresholds):
        yield f"| `{each.name}` | {_number(each.default)} | {_escaped(said[each.name])} |"


PARTS: Final[dict[str, Callable[..., Iterator[str]]]] = {
    each.__name__: each for each in (functions, methods, errors, options, thresholds)
}
_MEMBERS: Final = (
    f" :members:; :inherited-members:; :exclude-members: {', '.join(sorted(INTERNAL))}"
)


def written(page: str) -> str:
    """Return a page with its generated parts as they have to be."""

    def anew(found: re.Match[str]) -> str:
        lines = PARTS[found["name"]](*found["words"].split())
        return f"{found['begin']}\n" + "\n".join(lines) + f"\n\n{found['end']}"

    return PART.sub(anew, page)


def _table(head: str, rows: Iterator[tuple[str, str]]) -> Iterator[str]:
    yield f"| {head} | |"
    yield "|---|---|"
    for name, text in rows:
        yield f"| {name} | {_escaped(text)} |"
    yield ""


def _found(path: str) -> Any:
    room, _, name = path.rpartition(".")
    return getattr(import_module(room), name)


def _spoken(path: str) -> str:
    """Return a name as a user writes it."""
    room, _, name = path.rpartition(".")
    return f"`probe.{name}`" if room == "probe_nb" else f"`{path}`"


def _public(kind: type) -> list[str]:
    """Return the public names of a class in the order of its sources, those of its bases first."""
    names: dict[str, None] = {}
    for each in reversed(inspect.getmro(kind)):
        if each.__module__.startswith("probe_nb"):
            names.update(dict.fromkeys(name for name in vars(each) if not name.startswith("_")))
    return [name for name in names if name not in INTERNAL]


def _call(kind: type, name: str) -> str:
    return f"{name}()" if callable(getattr(kind, name)) else name


def _first(found: Any) -> str:
    """Return the first paragraph of a docstring of ours."""
    ours = callable(found) or isinstance(found, property) or hasattr(found, "func")
    text = inspect.getdoc(found) if ours else ""
    return " ".join((text or "").split("\n\n")[0].split())


def _escaped(text: str) -> str:
    """Return a text as a cell of a table has it; stars outside of code are stars."""
    parts = " ".join(text.split()).replace("|", "\\|").split("`")
    parts[::2] = [part.replace("*", "\\*") for part in parts[::2]]
    return "`".join(parts)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _is_error(found: Any) -> bool:
    return inspect.isclass(found) and found.__module__ == "probe_nb.errors"


def _attributes(kind: type) -> dict[str, str]:
    """Return the texts that stand under the fields of a class."""
    body = ast.parse(inspect.getsource(kind)).body[0].body  # type: ignore[attr-defined]
    return {
        before.target.id: text.value.value
        for before, text in itertools.pairwise(body)
        if isinstance(before, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def main() -> None:
    """Write every page of which a part is not as it has to be."""
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (new := written(text)) != text:
            page.write_text(new, encoding="utf-8")
            print(f"{page.name} was written anew")


if __name__ == "__main__":
    main()
