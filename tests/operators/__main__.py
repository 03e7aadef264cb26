"""Examine operators of PyTorch's table, all or those that are named, and say what is wrong."""

from __future__ import annotations

import sys
from collections import Counter

from tests.operators.examine import examine, table


def main(names: list[str]) -> int:
    """Write a line for each fault, and how many operators left how many rows."""
    totals: Counter[str] = Counter()
    for name in names or table():
        report = examine(name)
        calls = min(len(report.apis), 2)
        totals[("unseen", "one function", "several functions")[calls]] += 1
        totals["rows compared"] += report.checked
        totals["with faults"] += bool(report.faults)
        totals["rows without numbers"] += len(report.told)
        for fault in report.faults:
            say(f"{name}: {fault}")
        for told in report.told:
            say(f"{name}: ({told})")
        if not calls:
            say(f"{name}: no function of it was seen")
    say(str(dict(totals)))
    return bool(totals["with faults"])


def say(line: str) -> None:
    """Write a line at once: a sweep takes minutes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
