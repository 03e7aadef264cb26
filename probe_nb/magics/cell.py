"""Run the body of a cell magic as if the line above it were not there."""

from __future__ import annotations

import ast
import inspect
import io
import tokenize
from dataclasses import dataclass
from types import CodeType
from typing import Any

from IPython.core.error import UsageError


@dataclass(frozen=True)
class Code:
    """A compiled cell: its statements, and its last expression where that is to be shown."""

    body: CodeType
    last: CodeType | None
    silent: bool

    def run(self, shell: Any) -> Any:
        """Run it as the shell would and return what is to be shown."""
        __tracebackhide__ = True
        exec(self.body, shell.user_global_ns, shell.user_ns)  # noqa: S102 - the user's cell
        if self.last is None:
            return None
        value = eval(self.last, shell.user_global_ns, shell.user_ns)  # noqa: S307 - the user's cell
        return None if self.silent else value


def compiled(shell: Any, cell: str) -> Code:
    r"""Compile the body of a cell magic as the shell compiles a cell.

    Line numbers are those of the whole cell, whose first line is the magic. Not `run_cell`: a
    cell run inside a cell reports success when it fails, and runs every callback twice. The
    last `;` is looked for here because IPython's `output_can_be_silenced`, where a version has
    it, reads the cell before `!echo \(` has become Python, and fails.

    Raises:
        UsageError: The cell awaits at its top level, which a magic cannot do for it.
    """
    python = shell.transform_cell(cell)
    blank = next((n for n, text in enumerate(cell.splitlines()) if text.strip()), 0)
    source = "\n" * (1 + blank) + python  # the shell takes blank lines at the top away
    name = shell.compile.cache(source, _number(shell), raw_code=cell)
    tree = shell.transform_ast(shell.compile.ast_parse(source, filename=name))
    if _awaits(tree, name):
        raise UsageError(
            "This cell awaits at its top level, which `%%probe` cannot. Use `with "
            "probe.watch(model):` in the cell, or `%probe_start` before it and `%probe_stop` after."
        )
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    return Code(
        shell.compile(tree, name, "exec"),
        None if last is None else shell.compile(last, name, "eval"),
        silent=_ends_silent(python),
    )


def _number(shell: Any) -> int:
    """Return the number of the running cell; newer shells count on before they run it."""
    running = getattr(shell.displayhook, "exec_result", None)
    number: int = getattr(running, "execution_count", None) or shell.execution_count
    return number


def _ends_silent(python: str) -> bool:
    """Tell whether the last thing but comments and line ends is a `;`."""
    blank = (tokenize.COMMENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.NEWLINE, tokenize.NL)
    tokens = tokenize.generate_tokens(io.StringIO(python).readline)
    words = [token.string for token in tokens if token.type not in blank]
    return words[-1:] == [";"]


def _awaits(tree: ast.Module, name: str) -> bool:
    try:
        code = compile(tree, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except SyntaxError:  # told by the shell's own compiler
        return False
    return bool(code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR))
