"""Numbers and places as a person reads them; a small number is never rounded to 0."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from probe_nb.terms import Site, shown

if TYPE_CHECKING:
    from probe_nb.analysis.tally import Tally

_ROLES: Final = {
    "input": "forward input",
    "output": "forward output",
    "param": "parameter",
    "buffer": "buffer",
    "grad_output": "gradient of the output",
    "grad_input": "gradient of the input",
    "param_grad": "gradient of the parameter",
    "update": "update of the parameter",
    "state": "optimizer state",
    "value": "saved value",
}


_AT_STEP: Final = {
    "param": "parameter {} after the step",
    "param_grad": "gradient of {} that the optimizer saw",
}
"""The same tensors are seen in the forward and the backward."""

_HELD: Final = ".grad"
"""How the leaf of a gradient ends that was read from the parameter, with all that it adds up."""


def number(value: float) -> str:
    """Write a number with four significant digits, exponents where they read better.

    >>> [number(v) for v in (0.0, -0.0, 1e-9, 31.96, 65504.0, 1e300, math.inf, math.nan)]
    ['0', '0', '1e-09', '31.96', '65504', '1e+300', '+Inf', 'NaN']
    """
    value = float(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value == 0:
        return "0"
    if value == int(value) and abs(value) < 1e5:  # noqa: PLR2004 - five digits read at a glance
        return str(int(value))
    return f"{value:.4g}"


def plural(count: int, noun: str) -> str:
    """Write a count and its noun.

    >>> plural(1, "site"), plural(1200, "site")
    ('1 site', '1,200 sites')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def steps_of(count: int) -> str:
    """Write a number of steps."""
    return plural(count, "step")


def tensor(site: Site) -> str:
    """Write which tensor of its module a site is: role, and leaf where it tells something."""
    role, leaf = _ROLES[site.role], site.leaf
    if is_extra(site):
        return _extra(leaf)
    if site.direction == "optimizer" and site.role in _AT_STEP:
        return _AT_STEP[site.role].format(leaf)
    if site.role == "param_grad" and leaf.endswith(_HELD):
        return f"{_HELD} of the parameter {leaf.removesuffix(_HELD)}"
    if site.role == "value" and site.direction == "backward":
        role = "gradient of the saved value"
    return role if leaf in {"", "0"} else f"{role} {leaf}"


def is_extra(site: Site) -> bool:
    """Tell whether a site is of a number that `extras=` asked for: no optimizer keeps it."""
    return site.role == "state" and site.direction != "optimizer"


def _extra(leaf: str) -> str:
    """Write what an extra is.

    >>> [_extra(each) for each in ("spectral_norm.weight", "softmax_max", "before.weight.exp_avg")]
    ['spectral norm of weight', 'softmax max', 'optimizer state weight.exp_avg before the step']
    >>> _extra("below:1e-08(output.0)")
    'share of output.0 below 1e-08'
    """
    name, _, of = leaf.partition(".")
    if name == "before":
        return f"{_ROLES['state']} {of} before the step"
    if name.startswith("below:"):
        limit, _, of = leaf.removeprefix("below:").partition("(")
        return f"share of {of.removesuffix(')')} below {limit}"
    words = name.replace("grad_", "gradient ").replace("_", " ")
    return f"{words} of {of}" if of else words


def module(site: Site, *, several: bool) -> str:
    """Write a module path, with the model's name where there are several and it is in one."""
    path = shown(site.module)
    if is_optimizer(site):
        path = f"{optimizer(site)} ({site.type})"
    elif site.api:
        path = f"{path}, {site.api}" if is_inside(site) else site.api
    return f"{site.model}: {path}" if several and site.model else path


def is_inside(site: Site) -> bool:
    """Tell whether a site is in a module, and not of a function that is called outside of any."""
    return bool(site.module or site.type)


def is_optimizer(site: Site) -> bool:
    """Tell whether a site is of an optimizer itself, and not of a parameter that it moves."""
    return site.direction == "optimizer" and bool(site.api)


def is_function(site: Site) -> bool:
    """Tell whether a site is of a call of a function, inside or outside of any module."""
    return bool(site.api) and site.direction != "optimizer"


def is_setting(site: Site) -> bool:
    """Tell whether a site is a setting of an optimizer, such as the `lr` of a group."""
    return is_optimizer(site) and site.leaf.startswith("group")


def optimizer(site: Site) -> str:
    """Write which optimizer a row of its own belongs to; the first needs no number."""
    return site.api.removesuffix(".0")


def place(tally: Tally, site: int) -> str:
    """Write where a site is: `layers.7 (forward output)`."""
    each = tally.columns.tables.sites.values[site]
    return f"{module(each, several=tally.several_models)} ({tensor(each)})"
