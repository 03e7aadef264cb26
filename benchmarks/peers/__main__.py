"""`python -m benchmarks.peers`: watch the same models with each package; write docs/peers.md."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.peers import environments, live, page, rounds
from benchmarks.peers.environments import MissingError
from benchmarks.peers.tools import NAMES
from benchmarks.timing import Ratio

_ANSWERS: Final = environments.ROOT / "build" / "peers" / "answers"
_PAGE: Final = environments.ROOT / "docs" / "peers.md"
_README: Final = environments.ROOT / "README.md"
_KINDS: Final = ("questions", "live", "cost")
_READINGS: Final = ("write", "read")
_START, _END = "<!-- peers:start -->", "<!-- peers:end -->"


def main() -> None:
    """Ask what is asked for; answers of earlier runs stay, and the pages show all of them."""
    given = _arguments()
    _ANSWERS.mkdir(parents=True, exist_ok=True)
    for tool in given.tools:
        _keep(tool, _merged(_kept(tool), _asked(tool, given.only, given.questions)))
    if "cost" in given.only:
        found = rounds.measure(given.rounds, given.tools, cpu=given.cpu)
        old = _kept("cost").get("found", {})
        new = {size: {k: v.__dict__ for k, v in row.items()} for size, row in found.items()}
        merged = {size: old.get(size, {}) | row for size, row in new.items()}
        _keep("cost", {"found": merged, "cpu": given.cpu})
    _write()


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return old | {
        key: old.get(key, {}) | value if key in _READINGS else value for key, value in new.items()
    }


def _kept(name: str) -> dict[str, Any]:
    path = _ANSWERS / f"{name}.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def _keep(name: str, answers: dict[str, Any]) -> None:
    (_ANSWERS / f"{name}.json").write_text(json.dumps(answers, indent=1), encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--tools", nargs="*", choices=NAMES, default=list(NAMES))
    parser.add_argument("--only", nargs="*", choices=_KINDS, default=_KINDS)
    parser.add_argument("--questions", nargs="*", default=[], help="only these; see questions.py")
    parser.add_argument("--cpu", action="store_true", help="processor time, on a busy machine")
    parser.add_argument("--rounds", type=int, default=7)
    return parser.parse_args()


def _asked(tool: str, only: list[str], questions: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    print(f"Asking {NAMES[tool]}", file=sys.stderr)
    try:
        python = environments.python(tool)
    except MissingError as error:
        return {"missing": str(error)}
    with tempfile.TemporaryDirectory(prefix="peers_", ignore_cleanup_errors=True) as folder:
        if "questions" in only:
            command = [str(python), "-m", "benchmarks.peers.questions", tool]
            found |= {each: _answers(command, [each, folder, *questions]) for each in _READINGS}
        if "live" in only:
            shown = Path(folder) / "live"
            shown.mkdir()
            found["live"] = live.messages(tool, shown)
    return found


def _answers(command: list[str], words: list[str]) -> Any:
    done = subprocess.run(
        [*command, *words],
        cwd=environments.ROOT,
        env=environments.variables(Path(command[0])),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
        text=True,
    )
    return json.loads(done.stdout)


def _write() -> None:
    seen, cost = {tool: _kept(tool) for tool in NAMES}, _kept("cost")
    if not cost or not all(seen.values()):
        print("Not everything was asked yet, so no page was written", file=sys.stderr)
        return
    costs = {
        size: {key: Ratio(**value) for key, value in row.items()}
        for size, row in cost["found"].items()
    }
    day = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
    taken = (
        f"{day}; {os.cpu_count()} cores, one thread used; torch {seen['ours']['write']['torch']}, "
        f"Python {platform.python_version()}; {_rounds(costs)} rounds of each time"
        f"{', processor time on a busy machine' if cost['cpu'] else ''}."
    )
    _PAGE.write_text(page.text(seen, costs, taken), encoding="utf-8")
    _refresh(page.short(seen, costs))


def _rounds(costs: dict[str, dict[str, Ratio]]) -> str:
    many = [each.rounds for row in costs.values() for each in row.values()]
    return f"{min(many)}" if min(many) == max(many) else f"{min(many)} to {max(many)}"


def _refresh(table: str) -> None:
    before, start, rest = _README.read_text(encoding="utf-8").partition(_START)
    _, end, after = rest.partition(_END)
    if start and end:
        _README.write_text(f"{before}{_START}\n{table}\n{_END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
