"""Find the browser of the browser tests, or install it.

Run as a script it exits with 0 if a Chromium starts. On Debian, as root, it installs one first;
elsewhere it exits with one sentence that says what to install.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PACKAGES = ("chromium", "fonts-dejavu-core")


def find_chromium() -> str | None:
    """Return the browser named by CHROMIUM, or else the first one on PATH that starts."""
    named = os.environ.get("CHROMIUM")
    candidates = [named] if named else [shutil.which(name) for name in NAMES]
    return next((path for path in candidates if path and starts(path)), None)


def starts(browser: str) -> bool:
    """Tell whether a browser answers; on Ubuntu `chromium` may be a stub without its snap."""
    try:
        done = subprocess.run([browser, "--version"], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def install_chromium() -> None:
    """Install Debian's Chromium."""
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    apt = ["apt-get", "-qq", "-y", "--no-install-recommends"]
    for arguments in (["update"], ["install", *PACKAGES]):
        command = [*apt, *arguments]
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)


def may_install() -> bool:
    """Tell whether this is Debian itself, whose package is a real browser, and we are root."""
    release = Path("/etc/os-release")
    debian = release.is_file() and "ID=debian" in release.read_text().splitlines()
    return debian and os.geteuid() == 0 and shutil.which("apt-get") is not None


def main() -> None:
    """Make sure that there is a browser."""
    if not find_chromium() and may_install():
        install_chromium()
    if not find_chromium():
        raise SystemExit(
            "The browser tests need Chromium or Chrome. Install one (on Debian: "
            f"`apt-get install {' '.join(PACKAGES)}`), or say where it is: CHROMIUM=/path/to/chrome"
        )


if __name__ == "__main__":
    main()
