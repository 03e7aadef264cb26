"""What the site needs beyond Markdown: so little that the pages read the same on GitHub.

* the index's headings and links become the navigation;
* `<!-- autodoc: ... -->` becomes what the docstrings say;
* a `<picture>` follows the theme that the reader chose;
* a type in a signature leads to where it is described;
* code such as `run.findings()` leads to the reference, and `docs/steps.md` to its page;
* a link to a folder is plain text, for there are no folders on a site.
"""

# ruff: noqa: INP001 - Sphinx imports it from this folder

from __future__ import annotations

import builtins
import re
from pathlib import Path
from typing import Any, Final

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform

AUTODOC: Final = re.compile(
    r"^<!-- autodoc: (?P<kind>\w+) (?P<name>[\w.]+)(?P<more>.*?) -->$", re.MULTILINE
)
PICTURE: Final = re.compile(
    r'<picture>\s*<source [^>]*srcset="(?P<dark>[^"]+)"[^>]*>\s*'
    r'<img alt="(?P<alt>[^"]*)" src="(?P<light>[^"]+)"[^>]*>\s*</picture>'
)
FOLDER: Final = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<to>[^)#:\s]+)\)")
HEADING: Final = re.compile(r"^## (?P<caption>.+)$", re.MULTILINE)
PAGE: Final = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<to>[\w./-]+)\.md\)")
CONTENTS: Final = ("docs/index", "docs/decisions/README")
"""The pages whose tables are the navigation. What stands outside of docs/ need not be in it."""
SPOKEN: Final = re.compile(
    r"^(?P<owner>probe|run|comparison|debugger|monitor|Run|Comparison)\.(?P<path>\w+(\.\w+)?)(\(.*\))?$",
    re.DOTALL,
)
OWNERS: Final = {
    "probe": "probe_nb",
    "run": "probe_nb.Run",
    "Run": "probe_nb.Run",
    "comparison": "probe_nb.Comparison",
    "Comparison": "probe_nb.Comparison",
    "debugger": "probe_nb.debugger.PrecisionDebugger",
    "monitor": "probe_nb.monitor.TrainerMon",
}
ANYTHING: Final = re.compile(r": ~?(typing\.)?Any\b(?=\s*[=,)])")
ATTRIBUTES: Final = "Attributes:"
MADE: Final = frozenset(
    (
        "probe_nb.Keep",
        "probe_nb.debugger.PrecisionDebugger",
        "probe_nb.monitor.TrainerMon",
        "probe_nb.monitor.TrainerMonitorV2",
    )
)
KINDS: Final = ("class", "exception", "data")
ELSEWHERE: Final = frozenset(
    (
        "Axes",
        "collections",
        "matplotlib",
        "np",
        "numpy",
        "os",
        "pandas",
        "pathlib",
        "pd",
        "torch",
        "types",
    )
)
TAKEN: Final = (nodes.reference, nodes.title, addnodes.pending_xref)
PLOTS: Final = {"probe_nb.Run.plot": "probe_nb.view.plots.Plots"}


def read(app: Sphinx, page: str, content: list[str]) -> None:
    """Turn what GitHub passes over into what Sphinx understands."""
    here = Path(app.env.doc2path(page)).parent
    text = PICTURE.sub(_picture, content[0])
    text = FOLDER.sub(lambda found: _unless_folder(found, here), text)
    text = AUTODOC.sub(_autodoc, text)
    if page in CONTENTS:
        text += _navigation(text)
    elif not page.startswith("docs/"):
        text = f"---\norphan: true\n---\n{text}"
    content[0] = text


def _picture(found: re.Match[str]) -> str:
    """Return an image for each theme."""
    return "\n".join(
        f'<img class="only-{theme}" alt="{found["alt"]}" src="{found[theme]}">'
        for theme in ("light", "dark")
    )


def _unless_folder(found: re.Match[str], here: Path) -> str:
    return found["text"] if (here / found["to"]).is_dir() else found[0]


def _autodoc(found: re.Match[str]) -> str:
    """Return a directive of autodoc; `more` has its options, with `;` between."""
    options = "".join(f"\n   {each.strip()}" for each in found["more"].split(";") if each.strip())
    return f"```{{eval-rst}}\n.. auto{found['kind']}:: {found['name']}{options}\n```"


def _navigation(index: str) -> str:
    """Return hidden trees of contents: of the links under each heading, or of all."""
    parts = HEADING.split(index)
    found = list(zip(parts[1::2], parts[2::2], strict=True)) or [("", index)]
    named: set[str] = set()
    trees = ["\n"]
    for caption, body in found:
        pages = {to: _title(text) for text, to in PAGE.findall(body) if to not in named}
        named.update(pages)
        head = f":caption: {caption}\n" if caption else ""
        entries = "\n".join(f"{title} <{to}>" for to, title in pages.items())
        trees.append(f"```{{toctree}}\n:hidden:\n{head}\n{entries}\n```\n")
    return "\n".join(trees)


def _title(text: str) -> str:
    """Return the text of a link as the navigation has it: plain, with a capital."""
    plain = text.replace("`", "")
    return plain if plain.startswith("ms") else plain[0].upper() + plain[1:]


class Spoken(SphinxPostTransform):
    """Let code that names something public lead to where it is described."""

    default_priority = 200

    def run(self, **_: Any) -> None:
        """Wrap each literal that names an object or a page in a reference to it."""
        for literal in list(self.document.findall(nodes.literal)):
            if not isinstance(
                literal.parent, nodes.reference | nodes.title | addnodes.pending_xref
            ):
                reference = self._of(literal)
                if reference is not None:
                    literal.replace_self(reference)
                    reference += literal

    def _of(self, literal: nodes.literal) -> nodes.reference | None:
        text = literal.astext()
        place = self._object(text) or self._page(text)
        if place is None:
            return None
        page, anchor = place
        if page == self.env.docname and not anchor:
            return None
        uri = self.app.builder.get_relative_uri(self.env.docname, page)
        literal["classes"].append("xref")
        return nodes.reference("", "", internal=True, refuri=f"{uri}#{anchor}" if anchor else uri)

    def _object(self, text: str) -> tuple[str, str] | None:
        found = SPOKEN.match(text)
        if found is None:
            return None
        owner, name = OWNERS[found["owner"]], found["path"]
        known = self.env.domains.python_domain.objects
        for full in (
            f"{owner}.{name}",
            *self._plotted(owner, name),
            f"{owner}.{name.split('.')[0]}",
        ):
            if full in known:
                return known[full].docname, known[full].node_id
        return None

    @staticmethod
    def _plotted(owner: str, name: str) -> list[str]:
        first, _, rest = name.partition(".")
        return [f"{PLOTS[key]}.{rest}"] if (key := f"{owner}.{first}") in PLOTS and rest else []

    def _page(self, text: str) -> tuple[str, str] | None:
        page = text.removesuffix(".md")
        return (page, "") if page != text and page in self.env.all_docs else None


def described(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, shown: nodes.Element
) -> nodes.Element | None:
    """Find the type of a signature under its last name; what is not ours is shown as it is.

    A docstring says `ConfigError`, and an annotation `probe_nb.run.Run`: both are in the reference
    under one name. Types of Python, torch and pandas are described elsewhere, and a site that
    is read without a network does not lead there.
    """
    if node["refdomain"] != "py":
        return None
    target = str(node["reftarget"])
    last = target.rpartition(".")[2]
    found = {
        (each.docname, each.node_id)
        for name, each in env.domains.python_domain.objects.items()
        if name.rpartition(".")[2] == last and each.objtype in KINDS
    }
    if len(found) == 1:
        ((page, anchor),) = found
        uri = app.builder.get_relative_uri(node["refdoc"], page)
        reference = nodes.reference("", "", internal=True, refuri=f"{uri}#{anchor}")
        reference += shown
        return reference
    elsewhere = target.partition(".")[0] in ELSEWHERE or hasattr(builtins, target)
    return shown if elsewhere else None


def as_list(
    _app: Sphinx, what: str, _name: str, _found: object, _options: object, lines: list[str]
) -> None:
    """Make a list of what a docstring says of attributes, before napoleon reads it.

    Napoleon takes `a, b: text` for a type and a name; and `The plots: ...`, which is all that a
    property says, as well.
    """
    if what in {"property", "attribute", "data"} and lines:
        lines[0] = f": {lines[0]}"
    elif ATTRIBUTES in lines:
        first = lines.index(ATTRIBUTES) + 1
        last = next((n for n in range(first, len(lines)) if lines[n][:1].strip()), len(lines))
        lines[first - 1 : last] = ["**Attributes**", "", *map(_entry, lines[first:last])]


def _entry(line: str) -> str:
    """Return one line of the attributes as a line of a list."""
    found = re.match(r"    (?P<names>[\w, `]+): (?P<text>.*)$", line)
    if found is None:
        return line[6:]
    names = ", ".join(f"``{name.strip(' `')}``" for name in found["names"].split(","))
    return f"* {names}: {found['text']}"


def called(
    _app: Sphinx, what: str, name: str, _found: object, _options: object, *signature: str | None
) -> tuple[str, str | None] | None:
    """Show how a class is made only where users make it, and no type that allows everything."""
    arguments, returned = signature
    if arguments is None:
        return None
    if what in {"class", "exception"} and name not in MADE:
        return "", None
    return ANYTHING.sub("", arguments).replace("config.MEMORY", "'1GiB'"), returned


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("source-read", read)
    app.connect("missing-reference", described)
    app.connect("autodoc-process-docstring", as_list, priority=400)  # napoleon has 500
    app.connect("autodoc-process-signature", called)
    app.add_post_transform(Spoken)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
