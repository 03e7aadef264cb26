"""Fixtures of the browser tests: servers that last for the session, and a browser for each test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.harness import Notebook, open_page, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from playwright.sync_api import Page

    from tests.browser.harness import Server

HERE = Path(__file__).parent
SCREENSHOTS = HERE.parents[1] / "build" / "browser"
FAILED = pytest.StashKey[bool]()


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


@pytest.fixture
def page(request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page in a fresh browser; `build/browser/` gets a screenshot of it if the test fails."""
    with open_page() as page:
        yield page
        if request.node.stash.get(FAILED, False):
            SCREENSHOTS.mkdir(parents=True, exist_ok=True)
            name = "".join(c if c.isalnum() else "_" for c in request.node.name)
            page.screenshot(path=SCREENSHOTS / f"{name}.png")


@pytest.fixture
def open_in_lab(page: Page, lab: Server) -> Callable[[Sequence[str] | Path], Notebook]:
    """Open code cells, or a notebook file, in JupyterLab."""
    return lambda cells: Notebook(page, lab, cells)


@pytest.fixture
def open_notebook(page: Page, server: Server) -> Callable[[Sequence[str] | Path], Notebook]:
    """Open code cells, or a notebook file, in JupyterLab and, as a second test, in Notebook 7."""
    return lambda cells: Notebook(page, server, cells)
