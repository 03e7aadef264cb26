"""A real notebook in a real browser: a Jupyter server on the loopback, and Debian's Chromium driven by Playwright.

`serve` starts JupyterLab or Notebook 7 with settings of its own, `open_page` starts the browser, and `Notebook` opens a
notebook in it, runs cells and reads what they show::

    with serve("lab", folder) as server, open_page() as page:
        notebook = Notebook(page, server, ["1 + 1"])
        notebook.run(0)
        assert notebook.output(0).inner_text() == "2"
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.error import URLError

import nbformat
from playwright.sync_api import sync_playwright

from tools.chromium import find_chromium

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from playwright.sync_api import Browser, Locator, Page

App = Literal["lab", "notebook"]

SERVER_SECONDS = OPEN_SECONDS = RUN_SECONDS = 200
"""What each may take on a machine that is busy with much else."""

BROWSER_ARGUMENTS = [
    "--no-sandbox",  # containers have no user namespaces
    "--disable-dev-shm-usage",  # ... and little shared memory
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
# A key press before the kernel is idle is lost. While there is no kernel at all the indicator says
# "idle" as well, so the kernel's name counts too.
READY = """() => {
    const name = document.querySelector(".jp-KernelName")?.innerText;
    const idle = document.querySelector(".jp-Notebook-ExecutionIndicator[data-status='idle']");
    return Boolean(idle && name && name !== "No Kernel");
}"""
FOCUSED = """(editor) => {
    editor.focus();
    return document.activeElement === editor;
}"""
RUNNING_PROMPTS = ("", "[ ]:", "[*]:")


@dataclass(frozen=True)
class Server:
    """A running Jupyter server."""

    app: App
    url: str
    token: str
    folder: Path
    log: Path

    def address(self, name: str) -> str:
        """Return where a notebook of the served folder is opened."""
        # a workspace of its own: where the page is loaded again, no other notebook comes back with it
        own = f"lab/workspaces/{name.removesuffix('.ipynb').replace('/', '-')}/tree/{name}"
        path = own if self.app == "lab" else f"notebooks/{name}"
        return f"{self.url}/{path}?token={self.token}&reset"

    def answers(self) -> bool:
        """Tell whether the server is up."""
        try:
            with urllib.request.urlopen(f"{self.url}/api?token={self.token}", timeout=2):
                return True
        except (URLError, ConnectionError, TimeoutError):
            return False

    def end_kernels(self) -> None:
        """End the kernels of all notebooks: each keeps half a gigabyte until the server ends."""
        address = f"{self.url}/api/sessions"
        with urllib.request.urlopen(
            f"{address}?token={self.token}", timeout=SERVER_SECONDS
        ) as answer:
            sessions = json.load(answer)
        for session in sessions:
            one = f"{address}/{session['id']}?token={self.token}"
            with contextlib.suppress(URLError):  # it may have ended by itself
                urllib.request.urlopen(
                    urllib.request.Request(one, method="DELETE"), timeout=SERVER_SECONDS
                )


@contextlib.contextmanager
def serve(app: App, folder: Path, python: Sequence[str] = (sys.executable,)) -> Iterator[Server]:
    """Serve `folder` (made if need be) by JupyterLab or Notebook 7, with private settings inside it.

    `python` is the interpreter of the server and of its kernels, and what comes before it on the command line.
    """
    settings = folder / ".jupyter"
    log = settings / "server.log"
    _silence_news(settings)
    port, token = _free_port(), secrets.token_hex(8)
    server = Server(app, f"http://127.0.0.1:{port}", token, folder, log)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*python, *_command(app, folder, port, token)],
            env=_environment(settings),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _await(server, process)
        yield server
    finally:
        _stop(process)


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """Start a browser.

    While it runs, Playwright keeps an event loop going in the thread, and others that run in this process could not
    start theirs: it lasts for a module of tests, and not for the session.
    """
    executable = find_chromium()
    if executable is None:
        raise RuntimeError("no Chromium found: see `python tools/chromium.py`")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable, headless=True, args=BROWSER_ARGUMENTS
        )
        try:
            yield browser
        finally:
            browser.close()


def new_page(browser: Browser, *, dark: bool = False, scripts: bool = True) -> Page:
    """Open an empty page that shares nothing with the others of this browser."""
    context = browser.new_context(
        viewport={"width": 1400, "height": 1000},
        color_scheme="dark" if dark else "light",
        java_script_enabled=scripts,
    )
    context.set_default_timeout(OPEN_SECONDS * 1000)
    return context.new_page()


@contextlib.contextmanager
def open_page(*, dark: bool = False) -> Iterator[Page]:
    """Start a browser with one empty page."""
    with open_browser() as browser:
        yield new_page(browser, dark=dark)


class Notebook:
    """A notebook open in a browser page."""

    def __init__(
        self, page: Page, server: Server, cells: Sequence[str] | Path, *, name: str = ""
    ) -> None:
        """Write code cells (or copy an `.ipynb` file) into the served folder, and open the result.

        Args:
            page: the browser page to open it in.
            server: who serves it.
            cells: the sources of the code cells, or a notebook file.
            name: of the file; one that no other test uses by default.
        """
        self.page = page
        self.server = server
        self.path = server.folder / (name or f"{secrets.token_hex(4)}.ipynb")
        _write(self.path, cells)
        self.open()

    def open(self) -> None:
        """Open the file as it is on disk, and wait for its kernel."""
        name = self.path.relative_to(self.server.folder).as_posix()
        self.page.goto(self.server.address(name))
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=OPEN_SECONDS * 1000)
        self.page.wait_for_function(READY, timeout=OPEN_SECONDS * 1000)

    def cell(self, index: int) -> Locator:
        """Return the cell with this index, from 0."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(index)

    def output(self, index: int) -> Locator:
        """Return what stands under a cell."""
        return self.cell(index).locator(".jp-OutputArea-output")

    def prompt(self, index: int) -> str:
        """Return a cell's prompt: `[ ]:` before it ran, `[*]:` while it runs, `[3]:` after it."""
        return self.cell(index).locator(".jp-InputArea-prompt").inner_text().strip()

    def running(self, index: int) -> bool:
        """Tell whether a cell runs now."""
        return self.prompt(index) == "[*]:"

    def start(self, index: int) -> None:
        """Start a cell, and return while it runs."""
        self.enter(index)
        self.page.keyboard.press("Control+Enter")

    def enter(self, index: int) -> None:
        """Put the cursor into a cell.

        Without the mouse: an output above that still grows would move under it, and take the click.
        """
        editor = self.cell(index).locator(".cm-content")
        deadline = time.monotonic() + RUN_SECONDS
        while not editor.evaluate(FOCUSED):  # what is out of view is not drawn, and cannot be
            if time.monotonic() > deadline:
                raise TimeoutError(f"the cursor does not go into cell {index}")
            self.cell(index).evaluate("(cell) => cell.scrollIntoView({ block: 'nearest' })")
            self.page.wait_for_timeout(50)

    def run(self, index: int, *, seconds: float = RUN_SECONDS) -> None:
        """Run a cell to its end, whether it succeeds or raises."""
        self.start(index)
        self.wait(index, seconds=seconds)

    def run_all(self) -> None:
        """Run every cell in order."""
        for index in range(self.page.locator(".jp-Notebook .jp-Cell").count()):
            self.run(index)

    def wait(self, index: int, *, seconds: float = RUN_SECONDS) -> None:
        """Wait until a started cell has ended.

        Raises:
            TimeoutError: with what the cell has shown so far.
        """
        deadline = time.monotonic() + seconds
        while self.prompt(index) in RUNNING_PROMPTS:
            if time.monotonic() > deadline:
                shown = "\n".join(self.output(index).all_inner_texts())
                raise TimeoutError(
                    f"cell {index} still runs after {seconds} s, and shows:\n{shown}"
                )
            self.page.wait_for_timeout(50)

    def interrupt(self) -> None:
        """Stop the running cell by the keyboard, as a user does: `i` twice in command mode."""
        self.page.keyboard.press("Escape")
        self.page.keyboard.press("i")
        self.page.keyboard.press("i")

    def save(self) -> nbformat.NotebookNode:
        """Save the notebook by the keyboard, and return it as it then is on disk."""
        before = self.path.stat().st_mtime_ns
        self.page.keyboard.press("Control+s")
        deadline = time.monotonic() + RUN_SECONDS
        while self.path.stat().st_mtime_ns == before:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.path.name} has not been saved")
            self.page.wait_for_timeout(50)
        while not self.path.stat().st_size and time.monotonic() < deadline:
            self.page.wait_for_timeout(50)  # the server is writing it
        self.page.wait_for_timeout(50)
        return nbformat.read(self.path, as_version=4)


def _write(path: Path, cells: Sequence[str] | Path) -> None:
    if isinstance(cells, Path):
        path.write_bytes(cells.read_bytes())
        return
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in cells],
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}
        },
    )
    nbformat.write(notebook, path)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _command(app: App, folder: Path, port: int, token: str) -> list[str]:
    return [
        "-m",
        "jupyterlab" if app == "lab" else "notebook",
        "--no-browser",
        "--ip=127.0.0.1",
        f"--port={port}",
        "--ServerApp.port_retries=0",
        f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={folder}",
        *(["--allow-root"] if os.geteuid() == 0 else []),
    ]


def _environment(settings: Path) -> dict[str, str]:
    """Return this process's environment, with nothing of the user's own Jupyter in it."""
    places = {
        "IPYTHONDIR": "ipython",
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "lab-settings",
        "JUPYTERLAB_WORKSPACES_DIR": "lab-workspaces",
    }
    return {**os.environ, **{name: str(settings / place) for name, place in places.items()}}


def _silence_news(settings: Path) -> None:
    """Keep the question about Jupyter news from covering the page."""
    folder = settings / "lab-settings" / "@jupyterlab" / "apputils-extension"
    folder.mkdir(parents=True, exist_ok=True)
    answer = {"fetchNews": "false", "checkForUpdates": False}
    (folder / "notification.jupyterlab-settings").write_text(json.dumps(answer))


def _await(server: Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + SERVER_SECONDS
    while not server.answers():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(
                f"the Jupyter server does not answer:\n{server.log.read_text()[-3000:]}"
            )
        time.sleep(0.2)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server, which ends its kernels; then whatever of its session is left."""
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
