"""A run that still grows against a saved one: compared again and again, as far as that is cheap.

Each comparison reads everything so far, so that its verdicts are those of `compare` afterwards. It
runs where the training runs: it may take a share of the time, and no more than `LONGEST` at once.
From then on the view shows how far it came, and the end shows the whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from probe_nb.view import compare, report
from probe_nb.view.comparing import Comparing

if TYPE_CHECKING:
    from probe_nb.comparison import Comparison
    from probe_nb.run import Run

SHARE: Final = 0.05
LONGEST: Final = 1.0


class Against:
    """What a live view shows of a comparison.

    Args:
        run: The candidate.
        compared: Compares it as it is now.
        clock: Seconds.
    """

    def __init__(
        self,
        run: Run,
        compared: Callable[[], Comparison],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._run = run
        self._compared = compared
        self._clock = clock
        self._next = -np.inf
        self._too_long = False
        self.frames = self._compare()

    @property
    def comparison(self) -> Comparison:
        """The newest comparison."""
        return self.frames.comparison

    def update(self) -> tuple[str | None, str, bytes]:
        """Return sites, status and frame, of a new comparison if one is due."""
        if self._clock() >= self._next and not self._too_long:
            self.frames = self._compare()
        return self.frames.update()

    def sites(self) -> str:
        """Return what each row is."""
        return self.frames.sites()

    def widget(self) -> Any:
        """Return the inspector."""
        from probe_nb.view.inspector import ComparisonInspector

        return ComparisonInspector(self)

    def finish(self) -> None:
        """Compare everything."""
        self.frames = Comparing(self._compared())

    def line(self) -> dict[str, str]:
        """Return the headline alone."""
        return report.sentence(compare.sentence(self.comparison))

    def now(self) -> dict[str, str]:
        """Return what readers without widgets see meanwhile."""
        return self.line()

    def bundle(self) -> dict[str, str]:
        """Return the report."""
        return report.compared(self.frames)

    def _compare(self) -> Comparing:
        begin = self._clock()
        comparison = self._compared()
        found = comparison._of  # noqa: SLF001 - the steps to come are not missing
        only, step = found.pairs.only_baseline, found.one.data["step"]
        done = len(np.unique(found.other.data["step"])) - (self._run.info.ended == "open")
        steps = np.unique(step)[: max(done, 0)]
        found.pairs = found.pairs._replace(only_baseline=only[np.isin(step[only], steps)])
        frames = Comparing(comparison)
        took = self._clock() - begin
        self._next = self._clock() + took / SHARE
        if took > LONGEST:
            self._too_long = True
            last = int(found.other.data["step"].max(initial=-1))
            comparison.notices.append(
                f"Compared live as far as step {last}: by now it takes longer than the view may "
                "take. The end shows all steps."
            )
        return frames
