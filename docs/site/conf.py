"""How the site is made of the pages: `make docs`.

The sources are the repository itself, so that a link means the same on GitHub and on the site: the
README, what stands beside it, and everything in `docs/`.
"""

# ruff: noqa: INP001 - Sphinx reads it as a file

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import probe_nb  # noqa: E402 - found through the path above

project = "probe_nb"
author = "the probe_nb authors"
copyright = author  # noqa: A001 - Sphinx's name
release = version = probe_nb.__version__
language = "en"

root_doc = "docs/index"
include_patterns = [
    "*.md",
    "docs/**.md",
    "benchmarks/README.md",
    "benchmarks/results/*.md",
]
exclude_patterns = [".*", "build", "dist", "**/node_modules", "tests", "notebooks", "probe_nb"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "pages",
]
nitpicky = True

# -- pages ---------------------------------------------------------------------------------------

myst_heading_anchors = 4
myst_enable_extensions = ["html_image"]
highlight_language = "text"
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

# -- reference -----------------------------------------------------------------------------------

default_role = "code"  # a docstring says `x`, as Markdown does
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
nitpick_ignore = [  # types that are handed on, and that nobody asks for by their names
    *(
        ("py:class", f"probe_nb.{name}")
        for name in (
            "analysis.ranks.statement.Statement",
            "debugger.config.Settings",
            "doors.Watch",
            "reproduce.finding.Call",
            "reproduce.finding.Draw",
            "reproduce.saving.Writing",
            "store.columns.Columns",
            "store.keeping.Tensors",
        )
    ),
    *(("py:class", name) for name in ("Kind", "Phase")),
]

# -- look ----------------------------------------------------------------------------------------

html_theme = "furo"
html_title = f"probe_nb {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
templates_path = ["templates"]
html_additional_pages = {"index": "front.html"}
html_copy_source = False
html_show_sphinx = False
html_use_index = True
html_domain_indices = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#0b5cad",
        "color-brand-content": "#0b5cad",
    },
    "dark_css_variables": {
        "color-brand-primary": "#7cc0ff",
        "color-brand-content": "#7cc0ff",
    },
    "footer_icons": [],
}
