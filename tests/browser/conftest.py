"""Fixtures of the browser tests: servers that last for the session, a browser for each module, a page for each test."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.browser.harness import Notebook, new_page, open_browser, serve
from tests.browser.mounting import mount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from playwright.sync_api import Browser, Page

    from tests.browser.harness import Server

HERE = Path(__file__).parent
SCREENSHOTS = HERE.parents[1] / "build" / "browser"
FAILED = pytest.StashKey[bool]()

expect.set_options(timeout=30_000)  # what is awaited may have to come from a kernel that is busy


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and keep them in one process: they share the servers."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.xdist_group("browser"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Remember a failure for the fixture that takes the screenshot."""
    report = yield
    if report.when == "call":
        item.stash[FAILED] = report.failed
    return report


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """JupyterLab."""
    with serve("lab", tmp_path_factory.mktemp("lab")) as server:
        yield server


@pytest.fixture(scope="session")
def notebook7(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Notebook 7."""
    with serve("notebook", tmp_path_factory.mktemp("notebook")) as server:
        yield server


@pytest.fixture(params=["lab", "notebook7"])
def server(request: pytest.FixtureRequest) -> Server:
    """Each of the two in turn."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser that starts once per module."""
    with open_browser() as browser:
        yield browser


@pytest.fixture
def page(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Page]:
    """A page that shares nothing with others; `build/browser/` gets a screenshot of it if the test fails."""
    page = new_page(browser)
    yield page
    if request.node.stash.get(FAILED, False):
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        name = "".join(c if c.isalnum() else "_" for c in request.node.name)
        page.screenshot(path=SCREENSHOTS / f"{name}.png")
    page.context.close()


@pytest.fixture
def mounted(page: Page, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Show widgets without Jupyter; errors of the page fail the test, and so does what it asks of a network."""
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda said: troubles.append(said.text) if said.type == "error" else None)
    page.on("request", lambda asked: troubles.append(asked.url) if remote(asked.url) else None)
    yield functools.partial(mount, page, tmp_path)
    assert troubles == []


def remote(url: str) -> bool:
    """Tell whether an address leaves the machine."""
    return url.startswith(("http:", "https:", "ws:", "wss:"))


@pytest.fixture
def open_in_lab(page: Page, lab: Server) -> Iterator[Callable[[Sequence[str] | Path], Notebook]]:
    """Open code cells, or a notebook file, in JupyterLab."""
    yield lambda cells: Notebook(page, lab, cells)
    lab.end_kernels()


@pytest.fixture
def open_notebook(
    page: Page, server: Server
) -> Iterator[Callable[[Sequence[str] | Path], Notebook]]:
    """Open code cells, or a notebook file, in JupyterLab and, as a second test, in Notebook 7."""
    yield lambda cells: Notebook(page, server, cells)
    server.end_kernels()
