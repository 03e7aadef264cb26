"""module_struct.json: what each module takes and gives, shapes and types alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from probe_nb.exports.lines import Line

_WORDS: Final = {
    "input": "input",
    "output": "output",
    "grad_input": "input_grad",
    "grad_output": "output_grad",
}
"""Of the roles that a structure has."""


def module_struct(
    rows: Iterable[Line], name: Callable[[Line], str]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return of each module, in the first call that is there, what it takes and gives.

    As in msProbe: `{"0:fc": {"input": {"config": "list[1]", "0": "size=(4, 8), dtype=..."}}}`.
    """
    found: dict[str, dict[str, list[Line]]] = {}
    first: dict[tuple[str, str], tuple[Any, ...]] = {}
    for line in rows:
        word = _WORDS.get(line.role)
        if word is None or line.recompute or line.api:
            continue
        key = name(line)
        if first.setdefault((key, word), line.place) == line.place:
            found.setdefault(key, {}).setdefault(word, []).append(line)
    return {
        key: {word: _described(word, lines) for word, lines in words.items()}
        for key, words in found.items()
    }


def _described(word: str, lines: list[Line]) -> dict[str, Any]:
    texts = {line.leaf: f"size={line.shape}, dtype=torch.{line.dtype}" for line in lines}
    if word == "output" and list(texts) == ["0"]:
        return {"config": "tensor", "tensor": texts["0"]}
    kind = "list" if word == "input" else "tuple"
    leaves = list(texts) if word != "input" else [str(n) for n in range(len(texts))]
    return {"config": f"{kind}[{len(texts)}]", **dict(zip(leaves, texts.values(), strict=True))}
