"""Examine specimens by name: `python -m tests.zoo PATTERN...` from the root of the repository."""

from __future__ import annotations

import sys
import time

from tests.zoo.collection import matching, too_large
from tests.zoo.examine import Verdict, examined
from tests.zoo.specimen import Specimen
from tests.zoo.torch_modules import FAMILY as OF_TORCH


def judged(specimen: Specimen) -> Verdict:
    """Examine a specimen unless it is too large; an error of a recipe is a fault."""
    try:
        large = None if specimen.family == OF_TORCH else too_large(specimen)
        return examined(specimen) if large is None else Verdict([f"refused: {large}"])
    except Exception as error:
        return Verdict([f"cannot be examined: {error!r}"])


def main(patterns: list[str]) -> int:
    """Print a line for each specimen that matches, with its faults below it."""
    chosen = matching(patterns)
    if not chosen:
        print(f"no specimen matches {' '.join(patterns)}")  # noqa: T201
        return 2
    failed = 0
    for specimen in chosen:
        begun = time.monotonic()
        verdict = judged(specimen)
        failed += bool(verdict.faults)
        word = "FAILED" if verdict.faults else "passed"
        took = time.monotonic() - begun
        print(f"{word} {specimen.name} ({verdict.rows} rows compared, {took:.1f} s)")  # noqa: T201
        for line in (*verdict.faults, *(f"remark: {each}" for each in verdict.remarks)):
            print(f"    {line}", flush=True)  # noqa: T201
    print(f"{len(chosen) - failed} of {len(chosen)} passed")  # noqa: T201
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["*"]))
