"""What every rule looks at: the tally, the thresholds, and what follows from both."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.advice import advice_for
from probe_nb.analysis.changes import Changed
from probe_nb.analysis.finding import Finding, Severity
from probe_nb.analysis.tally import Tally
from probe_nb.analysis.thresholds import Thresholds
from probe_nb.analysis.words import is_function, module, place, plural
from probe_nb.terms import DIRECTIONS, ROLES, RunInfo, Site

T = TypeVar("T")
Sites = NDArray[np.intp]
Table = NDArray[np.bool_]

FORWARD: Final = DIRECTIONS.index("forward")
BACKWARD: Final = DIRECTIONS.index("backward")
OPTIMIZER: Final = DIRECTIONS.index("optimizer")
CODE: Final[dict[str, int]] = {role: code for code, role in enumerate(ROLES)}
_FLOATS: Final = ("float", "bfloat", "complex")
_FAR: Final = np.iinfo(np.int64).max


class Scene:
    """A tally, and the facts that several rules need, each worked out once.

    Attributes:
        tally: What was read.
        limits: The thresholds.
        info: What the run says about itself, where that is known.
        rows: What `tally.rows` was.
    """

    def __init__(
        self, tally: Tally, info: RunInfo | None = None, memory: dict[Any, Any] | None = None
    ) -> None:
        """Look at a tally as it is now; `memory` outlives the scene."""
        self.tally = tally
        self.limits: Thresholds = tally.limits
        self.info = info
        self.rows = tally.rows
        self._memory = {} if memory is None else memory
        self._here: dict[Any, Any] = {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what was made for a key: records may be on disk, and do not change."""
        if key not in self._memory:
            self._memory[key] = make()
        found: T = self._memory[key]
        return found

    def latest(self, name: Hashable, key: Hashable, make: Callable[[], T]) -> T:
        """Return what was made for a name, anew if its key is another one."""
        found: tuple[Hashable, T] | None = self._memory.get(name)
        if found is None or found[0] != key:
            found = self._memory[name] = (key, make())
        return found[1]

    def records_all(self, role: str) -> bool:
        """Tell whether all there is of a role is recorded, so that its absence says something."""
        config = {} if self.info is None else self.info.config
        return role in config.get("roles", ()) and not config.get("select")

    # -- sites ----------------------------------------------------------------------------------

    def about(self, site: int) -> Site:
        """Return what a site is."""
        return self.tally.columns.tables.sites.values[site]

    def of_role(self, *roles: str, direction: int | None = None) -> Sites:
        """Return the sites of some roles: the same as long as no site is added."""
        key = self.tally.sites
        return self.latest((roles, direction), key, lambda: self._of_role(roles, direction))

    def _of_role(self, roles: tuple[str, ...], direction: int | None) -> Sites:
        wanted = np.zeros(len(ROLES), np.bool_)
        wanted[[CODE[role] for role in roles]] = True
        found = wanted[self.tally.role]
        if direction is not None:
            found &= self.tally.direction == direction
        sites = np.flatnonzero(found)
        sites.flags.writeable = False  # others will be given them
        return sites

    def of_modules(self, *roles: str, direction: int | None = None) -> Sites:
        """Return the sites of some roles without those of functions, if there are any others.

        Functions lie inside of modules, or are the loss: what is recorded of them beside modules
        must not change what is said of those.
        """
        sites = self.of_role(*roles, direction=direction)
        kept: Sites = sites[~self.functions[sites]]
        return sites if self.functions_alone else kept

    @cached_property
    def functions(self) -> Table:
        """Tell which sites are of calls of functions, and not of modules."""
        number = self.tally.sites
        every = self.tally.columns.tables.sites.values[:number]
        return self.latest("functions", number, lambda: np.array([*map(is_function, every)], bool))

    @cached_property
    def functions_alone(self) -> bool:
        """Tell whether no module was recorded where its tensors flow, but functions were."""
        flows = self.of_role("input", "output", "grad_output", "grad_input")
        return bool(self.functions[flows].all())

    def of_type(self, sites: Sites, types: Iterable[str]) -> Sites:
        """Return those of some sites whose module is of one of these classes."""
        codes = [code for name in types if (code := self.tally.types.get(name)) is not None]
        if not codes:
            return sites[:0]
        return sites[np.isin(self.tally.type[sites], codes)]

    @cached_property
    def floats(self) -> Table:
        """Tell which sites hold floating-point numbers."""
        names = self.tally.columns.tables.dtypes.values
        floats = np.array([*(name.startswith(_FLOATS) for name in names), False])
        found: Table = floats[self.tally.latest["dtype"]]
        return found

    @cached_property
    def ndim(self) -> NDArray[np.int64]:
        """Return the number of dimensions of each site's latest record."""
        shapes = self.tally.columns.tables.shapes.values
        return np.array([*map(len, shapes), 0])[self.tally.latest["shape"]]

    @cached_property
    def sizes(self) -> NDArray[np.float64]:
        """Return the l2 of each site in each step of the window."""
        return self.tally.window.sizes

    @cached_property
    def model(self) -> NDArray[np.int64]:
        """Return the number of the model of each site."""
        models: dict[str, int] = {}
        of_modules = [models.setdefault(model, len(models)) for model, _, _ in self.tally.modules]
        return np.array(of_modules, np.int64)[self.tally.module]

    def is_type(self, passes: Callable[[str], bool]) -> Table:
        """Tell which sites are of modules whose class passes a test."""
        return np.array([passes(name) for name in self.tally.types], np.bool_)[self.tally.type]

    def once_here(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what was made for a key in this scene: several rules ask for it."""
        if key not in self._here:
            self._here[key] = make()
        found: T = self._here[key]
        return found

    def dtype(self, site: int) -> str:
        """Return the dtype of a site's latest record."""
        return self.tally.columns.tables.dtypes.values[int(self.tally.latest["dtype"][site])]

    def shape(self, site: int) -> tuple[int, ...]:
        """Return the shape of a site's latest record."""
        return self.tally.columns.tables.shapes.values[int(self.tally.latest["shape"][site])]

    @cached_property
    def position(self) -> NDArray[np.int64]:
        """Return the place of each module in the order of execution; very large if not called."""
        found = np.full(len(self.tally.modules), _FAR)
        sites = self.of_role("input", "output", direction=FORWARD)
        np.minimum.at(found, self.tally.module[sites], self.tally.latest["order"][sites])
        return found

    @cached_property
    def ran(self) -> Table:
        """Tell of each site whether the forward of its module was seen."""
        found: Table = self.position[self.tally.module] != _FAR
        return found

    def by_execution(self, sites: Sites) -> Sites:
        """Return sites in the order in which their modules run."""
        keys = (self.tally.latest["order"][sites], self.position[self.tally.module[sites]])
        return sites[np.lexsort(keys)]

    def as_finished(self, sites: Sites) -> Sites:
        """Return outputs in the order in which their calls ended: an inner module's comes first."""
        return sites[np.argsort(self.tally.latest["order"][sites], kind="stable")]

    @cached_property
    def from_the_loss(self) -> Sites:
        """Return where the gradients that the loss sends arrive first, at the output of a model."""
        asked = self.of_modules("grad_output")
        if not len(asked):
            return asked
        order = self.tally.latest["order"][asked]
        first: Sites = asked[order == order.min()]
        return first

    def root_of(self, site: int, step: int) -> int:
        """Return where a gradient arrived at its model, if it is the same there; else the site."""
        window, about = self.tally.window, self.about(site)
        place = np.flatnonzero(window.steps == step)
        if about.role != "grad_output" or self.is_root(site) or not len(place):
            return site
        for root in self.of_module(about.model, "", "grad_output").tolist():
            pair = ([root, site], place)
            if all(np.ptp(window[name][pair]) == 0 for name in ("peaks", "square", "total")):
                return int(root)
        return site

    def is_root(self, site: int) -> bool:
        """Tell whether a site is of a model as a whole."""
        about = self.about(site)
        return not about.module and not is_function(about)

    def of_module(self, model: str, path: str, role: str) -> Sites:
        """Return the sites of one module in one role."""
        number = self.tally.modules.get((model, path, ""))
        if number is None:
            return np.empty(0, np.intp)
        return np.flatnonzero((self.tally.module == number) & (self.tally.role == CODE[role]))

    # -- steps ----------------------------------------------------------------------------------

    @cached_property
    def seen(self) -> Table:
        """Tell in which steps of the window each site has numbers."""
        return self.tally.window.seen

    @cached_property
    def changed(self) -> Changed:
        """Tell where and when a site's size changed suddenly."""
        tally = self.tally
        return tally.changes.so_far(tally.window, tally.role, tally.direction)

    def lasts(self, sites: Sites, holds: Table, steps: int | None = None) -> Table:
        """Tell where something holds in each of the last steps in which a site was seen.

        Args:
            sites: The sites to judge.
            holds: One row for each of them.
            steps: How many steps; the threshold `lasting` by default.
        """
        wanted, seen = steps or self.limits.lasting, self.seen[sites]
        back = np.cumsum(seen[:, ::-1], axis=1)[:, ::-1]
        last = seen & (back <= wanted)
        enough: Table = last.sum(axis=1) == wanted
        return enough & (holds | ~last).all(axis=1)

    def since(self, site: int, holds: Table) -> int:
        """Return the step since which something holds of a site without a break."""
        breaks = np.flatnonzero(self.seen[site] & ~holds)
        begin = breaks[-1] + 1 if len(breaks) else 0
        steps = self.tally.window.steps[begin:][self.seen[site, begin:]]
        return int(steps[0]) if len(steps) else int(self.tally.latest["step"][site])

    # -- findings -------------------------------------------------------------------------------

    def place(self, site: int) -> str:
        """Write where a site is."""
        return place(self.tally, site)

    def name(self, site: int) -> str:
        """Write the module of a site."""
        return module(self.about(site), several=self.tally.several_models)

    def same_in(self, others: int, noun: str = "other site") -> str:
        """Write of how many others the same holds; empty if of none."""
        return f"the same in {plural(others, noun)}" if others else ""

    def finding(
        self,
        severity: Severity,
        kind: str,
        site: int,
        sentence: str,
        *,
        detail: Sequence[str] = (),
        step: int | None = None,
        value: float = np.nan,
        threshold: float = np.nan,
        rows: Iterable[int] = (),
        others: Iterable[int] = (),
        row: int | None = None,
        advice: str = "",
    ) -> Finding:
        """Return a finding that names a site; what is not said follows from its latest record."""
        about, latest = self.about(site), self.tally.latest
        row = int(latest["row"][site]) if row is None else row
        evidence = dict.fromkeys(int(each) for each in (row, *rows) if each >= 0)
        return Finding(
            severity=severity,
            kind=kind,
            sentence=sentence,
            detail="; ".join(part for part in detail if part),
            advice=advice or advice_for(kind, about.type),
            model=about.model,
            module=about.module,
            role=about.role,
            leaf=about.leaf,
            step=int(latest["step"][site]) if step is None else step,
            value=float(value),
            threshold=float(threshold),
            site=int(site),
            row=row,
            rows=tuple(sorted(evidence)),
            order=int(latest["order"][site]),
            others=tuple(int(other) for other in others),
        )
