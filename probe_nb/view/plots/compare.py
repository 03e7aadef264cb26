"""What `comparison.plot` draws. matplotlib is imported when something is drawn, not before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probe_nb.terms import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from probe_nb.comparison import Comparison


class Plots:
    """The plots of one comparison; each returns the matplotlib axes it drew on.

    All take `ax=`, axes to draw on; without it they make a figure of their own.
    """

    def __init__(self, of: Comparison) -> None:
        """Draw from this comparison; users get one as `comparison.plot`."""
        self._of = of

    def __repr__(self) -> str:
        """Name the plots."""
        return "Plots(profile, histograms, trend)"

    def profile(
        self, direction: str = "forward", step: int | None = None, *, ax: Axes | None = None
    ) -> Axes:
        """Draw how far the outputs are apart, in execution order, over what rounding explains.

        A cross is where the runs part. What is the same is at the lower edge.

        Args:
            direction: `"forward"`, or `"backward"` for gradients.
            step: A step; None for the first one of both runs.
            ax: Axes to draw on.

        Raises:
            ConfigError: There is no such direction.
            SelectionError: The step has no pair.
        """
        from probe_nb.view.plots import pairs

        parted = {label for each in self._of.divergences for label in each.rows.index}
        return pairs.profile(ax, self._of.profile(direction, step), parted)

    def histograms(
        self,
        module: str,
        role: str = "output",
        step: int | None = None,
        *,
        leaf: str | None = None,
        ax: Axes | None = None,
    ) -> Axes:
        """Draw the histograms of one site of both runs over one another, by powers of two.

        Args:
            module: Module path in the baseline, exact or a pattern that matches one module.
            role: One role, such as `"output"` or `"grad_output"`.
            step: A step of the baseline; None for the first one of both runs.
            leaf: One leaf path; None adds all leaves up.
            ax: Axes to draw on.

        Raises:
            SelectionError: No such module, role or step, or nothing was counted there.
        """
        from probe_nb.view.plots import pairs

        frame = self._of.rows_of(module, role, step, leaf)
        found = [
            run.columns.histograms(frame[f"row_{side}"].sort_values().to_numpy("int64"))
            for side, run in (("baseline", self._of.baseline), ("candidate", self._of.candidate))
        ]
        title = f"{shown(str(frame['module'].iloc[0]))} {role}, step {frame['step'].iloc[0]}"
        return pairs.histograms(ax, found[0], found[1], title)

    def trend(
        self,
        module: str,
        role: str = "output",
        stat: str = "l2",
        *,
        leaf: str | None = None,
        ax: Axes | None = None,
    ) -> Axes:
        """Draw one statistic of one site of both runs over the steps of the baseline.

        Args:
            module: Module path in the baseline, exact or a pattern that matches one module.
            role: One role.
            stat: A statistic, such as `"std"`.
            leaf: One leaf path; None for the first one.
            ax: Axes to draw on.

        Raises:
            SelectionError: No such module, role, or statistic.
        """
        from probe_nb.view.plots import pairs

        return pairs.trend(ax, self._of.rows_of(module, role, None, leaf, every=True), stat)
