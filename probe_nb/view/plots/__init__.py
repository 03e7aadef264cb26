"""What `run.plot` draws. matplotlib is imported when something is drawn, not before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from probe_nb.errors import closest
from probe_nb.terms import printable, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from probe_nb.run import Run

DTYPES: Final = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


class Plots:
    """The plots of one run; each returns the matplotlib axes it drew on.

    All take `ax=`, axes to draw on; without it they make a figure of their own. Colours go with the
    matplotlib style in force, light or dark. What is not finite is always marked in one colour
    that nothing else has, and by a shape or a hatch; what is absent is left out, never 0.

    >>> import torch, probe_nb as probe
    >>> model = torch.nn.Linear(4, 2)
    >>> with probe.watch(model, roles="output") as run:
    ...     _ = model(torch.ones(3, 4))
    >>> run.plot
    Plots(histogram, trend, heatmap, histograms, gradient_flow, update_ratios)
    """

    def __init__(self, run: Run) -> None:
        """Draw from this run; users get one as `run.plot`."""
        self._run = run

    def __repr__(self) -> str:
        """Name the plots."""
        known = [name for name in vars(type(self)) if not name.startswith("_")]
        return f"{type(self).__name__}({', '.join(known)})"

    def __getattr__(self, name: str) -> Any:
        """Name the plots that there are."""
        known = [each for each in vars(Plots) if not each.startswith("_")]
        near = closest(name, known, n=1) or f" There are {', '.join(known)}."
        raise AttributeError(f"There is no plot `{name}`.{near}", name=name, obj=self)

    def histogram(
        self,
        module: str,
        role: str = "output",
        step: int | None = None,
        *,
        leaf: str | None = None,
        model: str | None = None,
        rank: Any = None,
        signed: bool = True,
        dtypes: Sequence[str] = DTYPES,
        ax: Axes | None = None,
    ) -> Axes:
        """Draw the values of one site by powers of two, and what other dtypes can hold of them.

        Negative values are on the left, positive ones on the right, 0 between them; infinities
        and NaN stand outside with their number. Heights grow with the square root of the count,
        so that one element in ten thousand is still seen. The band of a dtype is thick where its
        numbers are normal and thin where they are subnormal; beside it stands which share of the
        finite non-zero elements it could not hold.

        Args:
            module: Module path, exact or a pattern that matches one module.
            role: One role, such as `"output"` or `"grad_output"`.
            step: A step; None for the last one of this site.
            leaf: One leaf path or a pattern; None adds all leaves up, as `Run.history` says.
            model: Name of the model, where several have a module of this path.
            rank: One process of several, or some of them; None adds all up.
            signed: False adds negative and positive values up by their magnitude.
            dtypes: The dtypes whose bands are drawn; `()` for none.
            ax: Axes to draw on.

        Returns:
            The axes. On x a unit is one power of two.

        Raises:
            SelectionError: No such module, role, step or dtype, or nothing was counted there.

        >>> import torch, probe_nb as probe
        >>> model = torch.nn.ReLU()
        >>> with probe.watch(model) as run:
        ...     _ = model(torch.tensor([1.0, 1.5, -3.0]))
        >>> ax = run.plot.histogram("", "input")
        >>> [int(bar.get_height()) for bar in ax.containers[0]]
        [1, 2]
        """
        from probe_nb.view.plots import data, histogram

        of: dict[str, Any] = {"leaf": leaf, "model": model, "rank": rank}
        at, absmax = data.one_step(self._run, module, role, step, **of)
        found = self._run.histogram(module, role, at, **of)
        title = f"{_site(module, role, leaf, rank)}, step {at:,}"
        return histogram.draw(ax, found, title, dtypes, signed=signed, absmax=absmax)

    def trend(
        self,
        module: str | Sequence[str],
        role: str = "output",
        stat: str = "absmax",
        *,
        leaf: str | None = None,
        model: str | None = None,
        rank: Any = None,
        log: bool | None = None,
        ax: Axes | None = None,
    ) -> Axes:
        """Draw one statistic over steps, a line per module.

        A step in which something was not finite has a cross: at the value of its finite elements,
        at the upper edge where there are none. A recorded step without a number is a gap.

        Args:
            module: Module path, pattern, or several of these.
            role: One role, such as `"output"` or `"grad_output"`.
            stat: A statistic or a count, such as `"std"` or `"nan_count"`.
            leaf: One leaf path or a pattern; None joins leaves, as `Run.history` says.
            model: Name of the model, where several have a module of this path.
            rank: One process of several; some of them, such as `[0, 3]` or `"0-3"`, or `"*"` for
                all, each with a line of its own; None joins all into one line.
            log: Whether the scale is logarithmic; None chooses it where values differ much.
            ax: Axes to draw on.

        Returns:
            The axes. The first lines are those of the modules, in execution order.

        Raises:
            SelectionError: No such module, role or statistic, or the run is empty.

        >>> import torch, probe_nb as probe
        >>> model = torch.nn.Identity()
        >>> with probe.watch(model) as run:
        ...     for size in (1.0, 2.0, 100.0):
        ...         _ = model(torch.full((3,), size))
        >>> ax = run.plot.trend("", "input")
        >>> ax.lines[0].get_ydata().tolist(), ax.get_yscale()
        ([1.0, 2.0, 100.0], 'log')
        """
        from probe_nb.view.plots import data, lines

        grid = data.grid(self._run, module, role, stat, leaf=leaf, model=model, rank=rank)
        alone = grid.names[0] if len(grid.keys) == 1 else ""
        title = _titled(alone, role, stat, leaf, rank)
        return lines.trend(ax, grid, title, stat, log=log)

    def heatmap(
        self,
        stat: str = "absmax",
        role: str = "output",
        module: str | Sequence[str] | None = None,
        *,
        leaf: str | None = None,
        model: str | None = None,
        rank: Any = None,
        ax: Axes | None = None,
    ) -> Axes:
        """Draw one statistic of all modules over steps as colours, modules in execution order.

        Colours are on a log scale where values differ tenfold or more; a statistic that can be
        negative goes from one colour over grey to another. Cells that hold something not finite
        are hatched, absent cells are empty. Where there are many modules some are named, and the
        one that was not finite first always is.

        Args:
            stat: A statistic or a count, such as `"std"` or `"nan_count"`.
            role: One role, such as `"output"` or `"grad_output"`.
            module: Module path, pattern, or several of these; None for all.
            leaf: One leaf path or a pattern; None joins leaves, as `Run.history` says.
            model: Name of the model, where there are several.
            rank: One process of several; some of them, or `"*"` for all, each with a row of its own
                below the others of its module; None joins all.
            ax: Axes to draw on.

        Returns:
            The axes. On y the modules are numbered from 0 at the top, on x the recorded steps
            from 0 at the left; the labels name them.

        Raises:
            SelectionError: No such module, role or statistic, or the run is empty.

        >>> import torch, probe_nb as probe
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> with probe.watch(model) as run:
        ...     for _ in range(5):
        ...         _ = model(torch.ones(1, 2))
        >>> run.plot.heatmap("std").images[0].get_array().shape
        (3, 5)
        """
        from probe_nb.view.plots import data, maps

        grid = data.grid(self._run, module, role, stat, leaf=leaf, model=model, rank=rank)
        return maps.heatmap(ax, grid, _titled("", role, stat, leaf, rank), stat)

    def histograms(
        self,
        module: str,
        role: str = "output",
        *,
        leaf: str | None = None,
        model: str | None = None,
        rank: Any = None,
        dtype: str | None = None,
        ax: Axes | None = None,
    ) -> Axes:
        """Draw the magnitudes of one site over steps: what drifts towards a limit is seen coming.

        The colour is the share of the elements of a step. Zeros have a row of their own at the
        foot, steps with anything not finite a mark above. The limits of a dtype are drawn as far
        as they are in view.

        Args:
            module: Module path, exact or a pattern that matches one module.
            role: One role, such as `"output"` or `"grad_output"`.
            leaf: One leaf path or a pattern; None adds all leaves up, as `Run.history` says.
            model: Name of the model, where several have a module of this path.
            rank: One process of several, or some of them; None adds all up.
            dtype: The dtype whose limits are drawn, such as `"float16"`; None for the one that
                the tensor has.
            ax: Axes to draw on.

        Returns:
            The axes. On y a unit is one power of two: the row of [2**e, 2**(e+1)) is at e.

        Raises:
            SelectionError: No such module, role or dtype, or nothing was counted there.

        >>> import torch, probe_nb as probe
        >>> model = torch.nn.Identity()
        >>> with probe.watch(model) as run:
        ...     for size in (1.0, 4.0):
        ...         _ = model(torch.full((3,), size))
        >>> ax = run.plot.histograms("", "input")
        >>> [label.get_text() for label in ax.get_yticklabels()]
        ['$2^{0}$', '$2^{1}$', '$2^{2}$']
        """
        from probe_nb.view.plots import data, maps, powers

        of: dict[str, Any] = {"leaf": leaf, "model": model, "rank": rank}
        steps, found, own = data.counted(self._run, module, role, **of)
        limits = powers.limits_of(own if dtype is None else dtype, given=dtype is not None)
        title = f"{_site(module, role, leaf, rank)}, magnitudes"
        return maps.histograms(ax, steps, maps.exponents_of(found), title, limits)

    def gradient_flow(
        self,
        step: int | None = None,
        module: str | Sequence[str] | None = None,
        *,
        stat: str = "rms",
        model: str | None = None,
        ax: Axes | None = None,
    ) -> Axes:
        """Draw the gradients of the parameters in one step, from the first module to the last.

        A row is a module, a dot a parameter: weights are joined from row to row, the rest of a
        module hangs on a line between its smallest and its largest. A parameter without a
        gradient says `none`, a frozen one `frozen`, a gradient of zeros `0`.

        Args:
            step: A step; None for the last one that has gradients, and of a run that ended in NaN
                for the last one in which some were finite.
            module: Module path, pattern, or several of these; None for all.
            stat: `"rms"`, the root mean square, which does not grow with the number of elements;
                or a statistic of the rows, such as `"l2"` or `"absmax"`.
            model: Name of the model, where there are several.
            ax: Axes to draw on.

        Returns:
            The axes. On y the modules are numbered from 0 at the top.

        Raises:
            SelectionError: No such module, step or statistic, or no gradients were recorded.

        >>> import torch, probe_nb as probe
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> with probe.watch(model) as run:
        ...     model(torch.full((1, 2), 3.0)).sum().backward()
        >>> run.plot.gradient_flow().lines[0].get_xdata().round(4).tolist()
        [3.0]
        """
        from probe_nb.view.plots import dots, parameters

        flow = parameters.flow(self._run, module, stat, step, model)
        title = f"gradients of the parameters, step {flow.step:,}"
        label = "root mean square" if stat == "rms" else stat
        return dots.draw(ax, flow, title, label, missing="none: no gradient")

    def update_ratios(
        self,
        step: int | None = None,
        module: str | Sequence[str] | None = None,
        *,
        leaf: str | None = None,
        model: str | None = None,
        ax: Axes | None = None,
    ) -> Axes:
        """Draw how large each update is, as a share of the parameter: over steps, or in one.

        That is l2(update) / l2(parameter before the step); where the parameter was seen after the
        step alone, that is taken. The band from 3e-4 to 3e-3 is a rule of thumb: far below it a
        parameter hardly learns, far above it learning is unstable. A parameter of zeros has no
        ratio.

        Args:
            step: A step, drawn by module; None for a line per parameter over all steps.
            module: Module path, pattern, or several of these; None for all.
            leaf: One parameter name or a pattern, such as `"weight"`; None for all.
            model: Name of the model, where there are several.
            ax: Axes to draw on.

        Returns:
            The axes.

        Raises:
            SelectionError: No such module, step or parameter, or no updates were recorded: these
                need `probe.watch(model, optimizer=optimizer)`.

        Source: A. Karpathy, "Building makemore, part 3", 2022: updates about 1e-3 of the values.

        >>> import torch, probe_nb as probe
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with probe.watch(model, optimizer=optimizer) as run:
        ...     model(torch.ones(5, 2)).sum().backward()
        ...     optimizer.step()
        >>> run.plot.update_ratios().get_yscale()
        'log'
        """
        from probe_nb.view.plots import parameters, updates

        grid = parameters.ratios(self._run, module, leaf, model)
        if step is None:
            return updates.over_steps(ax, grid)
        return updates.in_step(ax, parameters.of_step(grid, step))


def _site(module: str, role: str, leaf: str | None, rank: Any = None) -> str:
    """Write a site as a title does."""
    from probe_nb.view.plots import style

    words = f"{style.name(shown(module), 48)} {role}"
    words = words if leaf is None else f"{words} {style.name(leaf)}"
    return words if rank is None else f"{words}, rank {rank}"


def _titled(module: str, role: str, stat: str, leaf: str | None, rank: Any = None) -> str:
    words = _site(module, role, leaf) if module else role
    alone = isinstance(rank, int)  # of several each is named where it stands
    return f"{stat} of {printable(words)}" + (f", rank {rank}" if alone else "")
