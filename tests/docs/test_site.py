"""The site: it builds without a warning and offline, and all of its links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import deque
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

import probe_nb

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.xdist_group("site")  # so that one process builds it, once

LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "srcset", "link": "href"}
"""What a browser fetches by itself."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    command += ["-c", "docs/site", "-d", str(folder / "read"), ".", str(folder / "html")]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "html"


class Read(HTMLParser):
    """What a page links to, fetches, and can be linked to by."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links, self.fetched, self.anchors = [], [], {""}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.anchors.add(found.get("id") or "")
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in LOADS and LOADS[tag] in found and found.get("rel") != "canonical":
            self.fetched.append(found[LOADS[tag]])


@cache
def read(page: Path) -> Read:
    return Read(page.read_text(encoding="utf-8"))


@cache
def article(page: Path) -> Read:
    """Read what a page says, without the navigation beside it."""
    text = page.read_text(encoding="utf-8")
    return Read(text[text.index("<article") : text.index("</article")])


def target(page: Path, link: str) -> tuple[Path, str]:
    path, _, anchor = link.partition("#")
    return ((page.parent / unquote(path)).resolve() if path else page), unquote(anchor)


def test_every_link_leads_to_a_file_and_an_anchor_of_the_site(site):
    lost = []
    for page in site.rglob("*.html"):
        for link in read(page).links + read(page).fetched:
            if "://" in link or link.startswith(("mailto:", "data:")):
                continue
            path, anchor = target(page, link.partition("?")[0])
            if not path.is_file() or (path.suffix == ".html" and anchor not in read(path).anchors):
                lost.append((page.relative_to(site).as_posix(), link))
    assert lost == []


def test_a_page_fetches_nothing_from_elsewhere(site):
    fetched = {link for page in site.rglob("*.html") for link in read(page).fetched}
    assert {link for link in fetched if "//" in link} == set()
    for file in site.rglob("*.css"):
        links = re.findall(r"url\(['\"]?([^)'\"]+)|@import ['\"]([^'\"]+)", file.read_text("utf-8"))
        assert [link for pair in links for link in pair if link.startswith(("http", "//"))] == []


def test_every_page_is_three_clicks_at_most_from_the_front_door(site):
    door = (site / "docs/index.html").resolve()
    far, left = {door: 0}, deque([door])
    while left:
        page = left.popleft()
        for link in article(page).links:
            path, _ = target(page, link)
            if "://" not in link and path.suffix == ".html" and path not in far and path.is_file():
                far[path] = far[page] + 1
                left.append(path)
    pages = {page.resolve() for page in (site / "docs").rglob("*.html")}
    assert pages - far.keys() == set()
    assert max(far[page] for page in pages) <= 3


def test_every_public_name_and_every_method_of_a_run_is_described(site):
    described = {each for page in (site / "docs").glob("api*.html") for each in read(page).anchors}
    names = {f"probe_nb.{name}" for name in set(probe_nb.__all__) - {"__version__"}}
    names |= {f"probe_nb.Run.{name}" for name in dir(probe_nb.Run) if not name.startswith("_")}
    names |= {f"probe_nb.Comparison.{n}" for n in dir(probe_nb.Comparison) if not n.startswith("_")}
    spelled = {name.replace("probe_nb.NonFinite", "probe_nb.errors.NonFinite") for name in names}
    assert spelled - described == {"probe_nb.Run.bind"}


def test_code_that_names_something_public_leads_to_its_description(site):
    links = article(site / "docs/findings.html").links
    assert "api-run.html#probe_nb.Run.findings" in links
    assert "api-run.html#probe_nb.Run.what_if" in links
    assert "api.html#probe_nb.compare" in article(site / "docs/magics.html").links


def test_a_picture_is_there_for_each_theme(site):
    text = (site / "docs/index.html").read_text(encoding="utf-8")
    shown = re.findall(r'<img[^>]*class="(only-\w+)"[^>]*src="([^"]+)"', text)
    shown += [
        (kind, src)
        for src, kind in re.findall(r'<img[^>]*src="([^"]+)"[^>]*class="(only-\w+)', text)
    ]
    assert {kind for kind, _ in shown} == {"only-light", "only-dark"}


def test_the_front_door_is_where_a_server_looks_for_it(site):
    assert 'url=docs/index.html"' in (site / "index.html").read_text(encoding="utf-8")
