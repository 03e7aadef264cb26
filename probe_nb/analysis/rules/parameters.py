"""Parameters that do not learn: unused, cut off, frozen, stuck."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import numpy as np

from probe_nb.analysis.finding import Finding
from probe_nb.analysis.rules.owned import Owned
from probe_nb.analysis.rules.rates import rates_of
from probe_nb.analysis.rules.scene import CODE, Scene, Sites
from probe_nb.analysis.words import plural

_COARSE: Final = ("bfloat16", "float16")


# -- unused ---------------------------------------------------------------------------------------


def unused(scene: Scene) -> list[Finding]:
    """Say which parameters got no gradient although a backward ran, again and again."""
    owned = Owned.of(scene)
    if not len(owned) or not _has_gradients(scene):
        return []
    backwards = ((owned.backward | owned.stepped) & scene.seen[owned.site]).sum(axis=1)
    none = owned.trained & (backwards >= scene.limits.unused_steps) & ~owned.gradient.any(axis=1)
    sites = owned.site[none]
    called = scene.ran[sites]
    cut = sites[called]
    meant = np.array([_without_grad(scene, int(site)) for site in cut], np.bool_)
    if any(_fed_by_trained(scene, int(site)) for site in cut[meant]):
        meant[:] = False  # the gradient of what runs before it ends here
    meant &= ~owned.stepped[none][called].any(axis=1)  # who gives it to an optimizer trains it
    never = sites[~called]
    spare = np.array([_is_spare(scene, int(site)) for site in never], np.bool_)
    groups = (
        ("warning", _CUT, cut[~meant]),
        ("warning", _NEVER, never[~spare]),
        ("note", _MEANT, cut[meant]),
        ("note", _NEVER, never[spare]),
    )
    return [
        _unused(scene, owned, group, severity, why) for severity, why, group in groups if len(group)
    ]


def _has_gradients(scene: Scene) -> bool:
    """Tell whether gradients of parameters would have been recorded, had there been any."""
    if len(scene.of_role("param_grad")):
        return True
    return scene.records_all("param_grad")


_CUT: Final = "the module ran, and no gradient came back to it"
_MEANT: Final = "the module ran without gradients (`no_grad`), or on what needs none"
_NEVER: Final = "the forward of the module was never seen"


def _without_grad(scene: Scene, site: int) -> bool:
    """Tell whether no output of a parameter's module was part of a graph."""
    tally = scene.tally
    outputs = (tally.module == tally.module[site]) & (tally.role == CODE["output"])
    return bool(outputs.any() and not (tally.latest["requires_grad"][outputs] == 1).any())


def _fed_by_trained(scene: Scene, site: int) -> bool:
    """Tell whether an input of a parameter's module came with a graph."""
    tally = scene.tally
    inputs = (tally.module == tally.module[site]) & (tally.role == CODE["input"])
    return bool((tally.latest["requires_grad"][inputs] == 1).any())


def _is_spare(scene: Scene, site: int) -> bool:
    """Tell whether modules beside a parameter's, of the same class in a list, did run.

    Experts that no token chose, and layers that were dropped, are unused now and then.
    """
    about = scene.about(site)
    chosen = scene.once_here("spare", lambda: _numbered(scene))
    return any(key in chosen for key in _keys(about.model, about.module))


def _numbered(scene: Scene) -> set[tuple[str, str, str]]:
    """Return the places in lists at which a module ran: its path without one of its numbers."""
    ran = scene.position < np.iinfo(np.int64).max
    paths = (key[:2] for key, number in scene.tally.modules.items() if ran[number])
    return {key for model, path in paths for key in _keys(model, path)}


def _keys(model: str, path: str) -> Iterable[tuple[str, str, str]]:
    """Yield a path without one of its numbers, for each of them."""
    parts = path.split(".")
    for place, part in enumerate(parts):
        if part.isdigit():
            yield model, ".".join(parts[:place]), ".".join(parts[place + 1 :])


def _unused(scene: Scene, owned: Owned, sites: Sites, severity: str, why: str) -> Finding:
    site, whole = _named(scene, owned, sites)
    detail = [f"{plural(len(sites), 'parameter')} had no gradient in any backward", why]
    if why == _CUT and (after := _next_with_gradient(scene, sites)) is not None:
        detail.append(f"the first module after it that has one is {scene.name(after)}")
    others = [other for other in sites.tolist() if other != site]
    more = _modules_besides(scene, sites)
    verb = "gets no gradient" if why != _NEVER else "is never used"
    held = owned.stepped[np.isin(owned.site, sites)].sum(axis=1).max()
    if not owned.backward[np.isin(owned.site, sites)].any():
        detail[:] = [f"{plural(len(sites), 'parameter')}, and no backward ran in this model"]
    if held:
        them = "it" if len(sites) == 1 else "them"
        detail.append(f"an optimizer that holds {them} took {plural(int(held), 'step')}")
    return scene.finding(
        "warning" if severity == "warning" else "note",
        "unused",
        site,
        f"{whole} {verb}{more}",
        detail=detail,
        step=int(scene.tally.window.steps[0]),
        value=len(sites),
        threshold=0,
        others=others,
    )


def _named(scene: Scene, owned: Owned, sites: Sites, *, own_first: bool = False) -> tuple[int, str]:
    """Return the site to name: of the largest module whose trained parameters are all among these.

    Of several the last that runs: it is the one next to what cuts them off. The site is that of
    its output, or with `own_first` of a parameter that is its own.
    """
    last = int(scene.by_execution(sites)[-1])
    about = scene.about(last)
    mine = Counter(_paths(scene, sites))
    all_of_them = Counter(_paths(scene, owned.site[owned.trained]))
    path = about.module
    while path:
        above = path.rpartition(".")[0]
        if not above or mine[about.model, above] != all_of_them[about.model, above]:
            break
        path = above
    own = sites[scene.tally.module[sites] == scene.tally.modules.get((about.model, path, ""), -1)]
    outputs = scene.of_module(about.model, path, "output")
    for found in (own, outputs) if own_first else (outputs, own):
        if len(found):
            return int(found[0]), scene.name(int(found[0]))
    return last, scene.name(last)


def _modules_besides(scene: Scene, sites: Sites) -> str:
    """Write of how many modules in all the same holds; empty if of one."""
    number = len(np.unique(scene.tally.module[sites]))
    return f" ({plural(number, 'module')} in all)" if number > 1 else ""


def _first_modules(scene: Scene, sites: Sites) -> str:
    """Write in which modules parameters are: the first ones that run; empty if in one alone."""
    names = list(dict.fromkeys(scene.name(site) for site in scene.by_execution(sites).tolist()))
    if len(names) == 1:
        return ""
    more = f" and {len(names) - _FEW:,} more" if len(names) > _FEW else ""
    return f" of {', '.join(names[:_FEW])}{more}"


_FEW: Final = 4


def _paths(scene: Scene, sites: Iterable[int]) -> Iterable[tuple[str, str]]:
    """Yield the module of each parameter, and every module around it."""
    for site in sites:
        about = scene.about(int(site))
        parts = about.module.split(".")
        yield from ((about.model, ".".join(parts[:end])) for end in range(1, len(parts) + 1))


def _next_with_gradient(scene: Scene, sites: Sites) -> int | None:
    """Return the first parameter that runs after these and has a gradient."""
    tally = scene.tally
    last = scene.position[tally.module[sites]].max()
    fed = scene.of_role("param_grad")
    later = fed[scene.position[tally.module[fed]] > last]
    return int(scene.by_execution(later)[0]) if len(later) else None


# -- frozen ---------------------------------------------------------------------------------------


def frozen(scene: Scene) -> list[Finding]:
    """Note which parameters are frozen; warn of a few in the midst of their like."""
    owned = Owned.of(scene)
    if not owned.gradient.any():
        return []
    sites = owned.site[~owned.trained & scene.floats[owned.site]]
    if not len(sites):
        return []
    odd = _odd(scene, owned)
    site = int(odd[0]) if len(odd) else int(scene.by_execution(sites)[0])
    shown = np.unique(scene.tally.module[sites])
    verb = "is" if len(sites) == 1 else "are"
    count = f"{plural(len(sites), 'parameter')} of {plural(len(shown), 'module')} {verb} frozen"
    if len(odd):
        sentence = f"{scene.name(site)} is frozen, modules of its class before and after it are not"
    else:
        sentence = f"{count}, the first in {scene.name(site)}"
    return [
        scene.finding(
            "warning" if len(odd) else "note",
            "frozen",
            site,
            sentence,
            detail=[count if len(odd) else "", "`requires_grad` is False"],
            step=int(scene.tally.begin["step"][site]),
            value=len(sites),
            others=[other for other in sites.tolist() if other != site],
        )
    ]


def _odd(scene: Scene, owned: Owned) -> Sites:
    """Return matrices of frozen modules that run between trained modules of their class."""
    tally = scene.tally
    matrix, ran = owned.matrix, scene.ran[owned.site]
    learns = np.zeros(len(tally.modules), np.bool_)
    np.logical_or.at(learns, tally.module[owned.site], owned.trained)
    whole = ~learns[tally.module[owned.site]]
    frozen_ones, judged = owned.site[matrix & ran & whole], owned.site[matrix & ran]
    if len(frozen_ones) > max(1, scene.limits.frozen_share * len(judged)):
        return frozen_ones[:0]
    trained = owned.site[matrix & ran & owned.trained & owned.gradient.any(axis=1)]
    found = []
    for site in scene.by_execution(frozen_ones).tolist():
        like = trained[tally.type[trained] == tally.type[site]]
        places, here = scene.position[tally.module[like]], scene.position[tally.module[site]]
        if (places < here).any() and (places > here).any():
            found.append(site)
    return np.array(found, np.intp)


# -- stuck ----------------------------------------------------------------------------------------


def stuck(scene: Scene) -> list[Finding]:
    """Say which parameters have a gradient and do not move, while others do.

    In bfloat16 and float16 an update may be lost by rounding; else the optimizer does not hold
    them, or their learning rate is 0.
    """
    owned, wanted = Owned.of(scene), scene.limits.lasting
    if not len(owned) or not owned.changed.any():
        return []
    moved = owned.changed.any(axis=0)  # the optimizer stepped
    judged = moved & owned.moving_gradient
    still = owned.trained & ((judged & owned.unchanged).sum(axis=1) >= wanted)
    still &= ~(judged & owned.changed).any(axis=1)
    asked, moves = owned.asked, owned.changed.any(axis=1)
    still &= asked >= scene.limits.stuck_beside * np.median(asked[moves])
    sites = owned.site[still]
    coarse = np.array([scene.dtype(int(site)) in _COARSE for site in sites], np.bool_)
    steps = int(judged.sum(axis=1).max()) if len(sites) else 0
    found = []
    for kind, group in (("stuck", sites[~coarse]), ("update_lost", sites[coarse])):
        if len(group):
            found.append(_stuck(scene, owned, kind, group, steps))
    return found


def _stuck(scene: Scene, owned: Owned, kind: str, sites: Sites, steps: int) -> Finding:
    site, name = _named(scene, owned, sites, own_first=True)
    more = _modules_besides(scene, sites)
    dtype = f" in {scene.dtype(int(sites[0]))}" if kind == "update_lost" else ""
    return scene.finding(
        "warning",
        kind,
        site,
        f"{name} has gradients and does not move{dtype}{more}",
        detail=[
            (
                f"{plural(len(sites), 'parameter')}{_first_modules(scene, sites)}, the same in "
                f"every statistic over {steps} steps in which others moved"
            )
        ],
        step=int(scene.tally.window.steps[0]),
        value=0,
        threshold=0,
        rows=[scene.tally.latest["row"][each] for each in sites.tolist()[:8]],
        others=[other for other in sites.tolist() if other != site],
        advice=_held_by(scene, owned, sites) if kind == "stuck" else "",
    )


def _held_by(scene: Scene, owned: Owned, sites: Sites) -> str:
    """Say what is known of the optimizers: which were named, and which of them holds these."""
    if scene.info is None or not scene.info.moved:
        return ""
    mine = np.isin(owned.site, sites)
    if not any(name for row in np.flatnonzero(mine) for name in owned.group[row]):
        it = "it" if len(sites) == 1 else "them"
        return (
            f"No optimizer that was named holds {it}: give {it} to one, or name the one that does. "
            "Parameters that were replaced after an optimizer was made are not in it."
        )
    rates = rates_of(scene, owned, scene.sizes)
    known = {rate.rate for row in np.flatnonzero(mine) if (rate := rates[row]) is not None}
    return "Its group has a learning rate of 0: raise it." if known == {0.0} else ""
