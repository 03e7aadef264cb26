"""Draw `rooms-light.svg` and `rooms-dark.svg`: which way data flows through the rooms.

From the root of the repository: `python -m docs.images.rooms`.
"""

# ruff: noqa: E501, INP001 - a script, not a package; a shape is a line

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

WIDTH, HEIGHT = 960, 430
FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


@dataclass(frozen=True)
class Palette:
    """The colours of a theme."""

    text: str
    soft: str
    line: str
    yours: str
    watch: str
    ask: str


LIGHT: Final = Palette("#1b1f24", "#57606a", "#8c959f", "#f6f8fa", "#ddf0ff", "#e6f6ec")
DARK: Final = Palette("#e6edf3", "#9aa4af", "#6e7681", "#20262d", "#12304a", "#14352a")

BOXES: Final = (
    # x, y, width, height, colour, name, what it holds
    (20, 150, 150, 130, "yours", "your model", ("modules", "graph of autograd", "optimizer")),
    (
        230,
        150,
        150,
        130,
        "watch",
        "observe",
        ("what hooks see:", "a tensor, its site,", "its call"),
    ),
    (
        410,
        150,
        150,
        130,
        "watch",
        "stats",
        ("12 numbers and", "a histogram; both wait", "on the device"),
    ),
    (590, 150, 150, 130, "ask", "store", ("typed columns,", "on disk beyond", "a budget")),
    (790, 30, 150, 84, "ask", "analysis", ("what is wrong,", "where they part")),
    (790, 173, 150, 84, "ask", "view", ("inspector, report,", "plots, text")),
    (790, 316, 150, 84, "ask", "dump, exports", ("msProbe's folders,", "CSV, TensorBoard")),
)
ARROWS: Final = (
    ("M170 215 H226", "hooks", 198, 204),
    ("M380 215 H406", "", 0, 0),
    ("M560 215 H586", "", 0, 0),
    ("M740 215 H786", "", 0, 0),
    ("M740 190 C765 190 760 72 786 72", "", 0, 0),
    ("M740 240 C765 240 760 358 786 358", "", 0, 0),
)
BRACKETS: Final = (
    (230, 560, 312, "session: from attach to detach"),
    (590, 740, 312, "run: needs no torch"),
)


def drawn(colours: Palette) -> str:
    """Return the picture in the colours of a theme."""
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'width="{WIDTH}" height="{HEIGHT}" role="img" font-family="{FONT}">'
        ),
        (
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{colours.line}"/></marker></defs>'
        ),
    ]
    for x, y, width, height, fill, name, lines in BOXES:
        parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" '
            f'fill="{getattr(colours, fill)}" stroke="{colours.line}"/>'
        )
        parts.append(_text(x + width / 2, y + 27, name, colours.text, 16, bold=True))
        parts += [
            _text(x + width / 2, y + 52 + 19 * number, line, colours.soft, 12.5)
            for number, line in enumerate(lines)
        ]
    for path, label, x, y in ARROWS:
        parts.append(
            f'<path d="{path}" fill="none" stroke="{colours.line}" stroke-width="2" marker-end="url(#tip)"/>'
        )
        if label:
            parts.append(_text(x, y, label, colours.soft, 13))
    for left, right, y, label in BRACKETS:
        parts.append(
            f'<path d="M{left} {y - 10} V{y} H{right} V{y - 10}" fill="none" stroke="{colours.line}"/>'
        )
        parts.append(_text((left + right) / 2, y + 20, label, colours.text, 13))
    parts.append(_text(20, 60, "Data flows one way.", colours.text, 16, bold=True, anchor="start"))
    parts.append(
        _text(
            20,
            82,
            "What is read of your model is a copy in numbers;",
            colours.soft,
            13,
            anchor="start",
        )
    )
    parts.append(_text(20, 100, "nothing goes back.", colours.soft, 13, anchor="start"))
    return "\n".join([*parts, "</svg>", ""])


def _text(
    x: float,
    y: float,
    text: str,
    fill: str,
    size: int,
    *,
    bold: bool = False,
    anchor: str = "middle",
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" fill="{fill}"{weight}>'
        f"{escape(text)}</text>"
    )


if __name__ == "__main__":
    for theme, colours in (("light", LIGHT), ("dark", DARK)):
        place = Path(__file__).with_name(f"rooms-{theme}.svg")
        place.write_text(drawn(colours), encoding="utf-8")
