"""What is asked of `watch(keep=...)`: which tensors are kept whole, and within what budget."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from probe_nb import grammar
from probe_nb.errors import ConfigError
from probe_nb.terms import ROLES, Role

BUDGET: Final = "256MiB"
FILES: Final = ("safetensors", "pt")


@dataclass(frozen=True, init=False)
class Keep:
    """Which tensors a watch keeps whole, beside their statistics.

    Args:
        select: Patterns on module paths and types, as for `watch(select=...)`; where functions are
            recorded, on their names too, as for `watch(apis=...)`.
        names: Parts of names, as for `watch(names=...)`: what is kept has one of them in its name.
        roles: Roles to keep, of those that are recorded; inputs unless you say more.
        steps: Steps to keep, of those that are recorded, as for `watch(steps=...)`. None: every
            step, of which the oldest make room for the newest.
        memory: What the kept tensors may take: `"256MiB"`, a number of bytes, None for no limit.
            With `folder`, what those may take that are not written yet.
        folder: Write each tensor there as it comes, so that a process that is killed loses hardly
            any: `probe.load(folder)` reads them. Where another run's are in it, one beside it is
            made, `folder-2`.
        files: How they lie there. `"safetensors"`: many in a file, which says what is in it.
            `"pt"`: each in one of its own, named and placed as msProbe does;
            `run.write_dump(folder)` then adds the records.

    Raises:
        ConfigError: A value that makes no sense.

    >>> import probe_nb as probe
    >>> probe.Keep("fc1, type:Linear", roles="input,output", memory="1MB").memory
    1000000
    """

    select: tuple[str, ...]
    names: tuple[str, ...]
    roles: tuple[Role, ...]
    steps: str | None
    memory: int | None
    folder: str | None
    files: str
    wants: Callable[[int], bool] = field(compare=False, repr=False)

    def __init__(
        self,
        select: str | Sequence[str],
        *,
        names: str | Sequence[str] | None = None,
        roles: str | Sequence[str] = ("input",),
        steps: grammar.Steps = None,
        memory: grammar.Memory = BUDGET,
        folder: str | os.PathLike[str] | None = None,
        files: str = FILES[0],
    ) -> None:
        """Check every value."""
        if files not in FILES:
            raise ConfigError(f"`files` is {files!r}; give `safetensors` or `pt`.")
        written, wants = grammar.steps_in(steps)
        values: dict[str, Any] = {
            "select": grammar.words("keep", select),
            "names": grammar.words("names", names),
            "roles": grammar.roles_in(roles, ROLES),
            "steps": written,
            "memory": grammar.as_bytes(memory),
            "folder": None if folder is None else os.fspath(folder),
            "files": files,
            "wants": wants,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def as_dict(self) -> dict[str, Any]:
        """Return the values as JSON can hold them."""
        names = ("select", "names", "roles", "steps", "memory", "folder", "files")
        values = {name: getattr(self, name) for name in names}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def as_keep(value: Any, recorded: Sequence[Role] = ROLES) -> Keep | None:
    """Return what `keep=` asks for: patterns stand for a `Keep` of them.

    Raises:
        ConfigError: It is neither, or asks for a role that is not recorded.
    """
    if value is None:
        return None
    if isinstance(value, (str, list, tuple)):
        value = Keep(value)
    if isinstance(value, Keep):
        for role in value.roles:
            if role not in (*recorded, "value"):
                raise ConfigError(
                    f"`keep` asks for `{role}`, which `roles=` leaves out: only what is recorded "
                    "can be kept."
                )
        return value
    raise ConfigError(
        f"`keep` is {value!r}; give patterns on modules, such as `fc1, type:Linear`, or a "
        "`probe.Keep`."
    )
