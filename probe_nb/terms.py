"""The nouns of probe_nb, free of torch: roles, statuses, statistics, `Site` and `RunInfo`.

The meaning of each word is in `docs/glossary.md`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, NamedTuple, get_args

Direction = Literal["forward", "backward", "optimizer"]
Role = Literal[
    "input",
    "output",
    "param",
    "buffer",
    "grad_output",
    "grad_input",
    "param_grad",
    "update",
    "state",
    "value",
]
Status = Literal[
    "ok",
    "empty",
    "no_finite",
    "meta",
    "unsupported",
    "passthrough",
    "stale_view",
    "skipped_budget",
    "private_format",
    "vmapped",
    "failed",
    "not_asked",
    "has_nan",
    "has_inf",
]

DIRECTIONS: Final[tuple[Direction, ...]] = get_args(Direction)
ROLES: Final[tuple[Role, ...]] = get_args(Role)
MODULE_ROLES: Final[tuple[Role, ...]] = (
    "input",
    "output",
    "param",
    "buffer",
    "grad_output",
    "grad_input",
    "param_grad",
    "update",
    "state",
)
"""What a module-level session can record today."""

STATUSES: Final[tuple[Status, ...]] = get_args(Status)
STATUS_CODE: Final[dict[Status, int]] = {status: code for code, status in enumerate(STATUSES)}

STATISTICS: Final = ("min", "max", "mean", "std", "l2", "absmax")
COUNTS: Final = (
    "nan_count",
    "posinf_count",
    "neginf_count",
    "zero_count",
    "subnormal_count",
    "at_max_count",
)

ROOT_LABEL: Final = "(root)"

READ_FROM: Final = "Read from an msProbe dump"
"""So begins the notice that says where a run comes from; it warns of nothing."""

AGAIN: Final = "stopped: the same model was watched again"
ANOTHER: Final = "stopped: another watch began"
"""How a run ended that made room for another."""


def shown(path: str) -> str:
    """Return a module path as a person reads it: the root has no name of its own.

    >>> shown("")
    '(root)'
    """
    return path or ROOT_LABEL


def inside(within: str, path: str) -> str:
    """Return the path of a module as it is inside of something that has a name.

    >>> inside("module", "fc"), inside("module", ""), inside("", "fc")
    ('module.fc', 'module', 'fc')
    """
    return f"{within}.{path}" if within and path else within or path


def printable(text: str) -> str:
    r"""Return a text that can be written as UTF-8; Python's own strings need not be.

    >>> printable("a\ud800b")
    'a\\ud800b'
    """
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@dataclass(frozen=True)
class Site:
    """Where a record was taken: one tensor of one module (or API) in one direction."""

    model: str
    module: str
    type: str
    api: str
    direction: Direction
    role: Role
    leaf: str


class Callee(NamedTuple):
    """What was called: a module; or a function, `api`, inside a module or outside of any."""

    model: str
    module: str
    type: str
    api: str = ""


class Frame(NamedTuple):
    """One line of the user's that led to a call."""

    file: str
    line: int
    function: str
    source: str


Stack = tuple[Frame, ...]
"""The lines that led to a call, the innermost first."""


class Made(NamedTuple):
    """A module of a model, and how many numbers its parameters have; None where nobody knows."""

    model: str
    module: str
    type: str
    parameters: int | None = None
    trainable: int | None = None
    total: int | None = None
    """With all that is inside, each parameter counted once."""
    total_trainable: int | None = None


@dataclass
class RunInfo:
    """What a run says about itself; everything in it can be written as JSON."""

    name: str
    created: str
    models: dict[str, str]
    modules: int
    config: dict[str, Any]
    versions: dict[str, str]
    devices: list[str]
    rank: int | None = None
    ended: str = "open"
    steps: int = 0
    notices: list[str] = field(default_factory=list)
    unobserved: list[dict[str, str]] = field(default_factory=list)
    shared: dict[str, str] = field(default_factory=dict)
    """Parameters that are another one under a second name, and the name that has their rows."""
    wrapped: dict[str, str] = field(default_factory=dict)
    """Of each model inside of DDP or DataParallel what its own name is there: `module`."""
    moved: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of each model the parameters that a named optimizer moves, and the group that holds them:
    `{"model": {"fc1.weight": "optimizer.0.group0"}}`."""

    unnamed_scaler: bool = False
    """A `GradScaler` was seen to step the optimizer, and the watch was not told of it."""
    tree: list[list[Any]] = field(default_factory=list)
    """What the models are made of: of each module what `Made` has."""
    world: int | None = None
    """How many processes there were, where they had joined."""
    processes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of each rank whose run is part of this one how it was: `{"0": {"ended": "finished"}}`."""

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready copy."""
        return asdict(self)
