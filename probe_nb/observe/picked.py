"""Which tensors `keep=` asks for: those of modules, of functions, of saved values."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Final

from probe_nb.errors import SelectionError
from probe_nb.observe.calls import Call
from probe_nb.observe.chosen import spelled
from probe_nb.observe.functions_choice import Choice
from probe_nb.observe.functions_names import PREFIXES
from probe_nb.observe.select import Watched, matching
from probe_nb.terms import Role

_ALL: Final = "*"


class Picked:
    """Knows of each call whether its tensors are kept."""

    def __init__(
        self,
        patterns: Sequence[str],
        watched: Sequence[Watched],
        *,
        parts: Sequence[str],
        level: str,
        values: bool,
    ) -> None:
        """Choose among these modules; later ones are asked for when they are seen.

        Args:
            patterns: On modules as `select=` takes them, on functions as `apis=` does.
            watched: The modules that are known.
            parts: What the name of a call must have a part of, as `names=` does.
            level: That of the watch. At API level a module's pattern is of the functions in it.
            values: Values that the user saves may be meant too; nobody knows their names yet.

        Raises:
            SelectionError: A pattern matches nothing, or nothing that is watched.
            ConfigError: It is of a function that there is not.
        """
        self._parts, self._level, self._patterns = parts, level, patterns
        functions = level in ("api", "mix")
        of_functions = [each for each in patterns if functions and _is_function(each, watched)]
        self._modules = [each for each in patterns if each not in of_functions]
        everything = functions and _ALL in self._modules
        of_functions += [_ALL] if everything else []
        self._functions = Choice(of_functions, option="keep", default=None)
        must = bool(self._modules) and not (values or (functions and not watched))
        chosen = matching(watched, self._modules, must_match=must) if self._modules else set()
        if must and not any(each.selected for each in chosen):
            raise SelectionError(
                f"`keep` names {', '.join(f'`{each}`' for each in self._modules)}, which `select=` "
                "leaves out: only what is watched can be kept."
            )
        self._chosen = {each: each in chosen for each in watched}

    def takes(self, call: Call, role: Role, way: str) -> bool:
        """Tell whether a tensor of a call is kept."""
        watched = call.watched
        picked = self._chosen.get(watched)
        if picked is None:
            picked = self._chosen[watched] = self._picks(watched, role)
        if picked and self._parts:
            names = spelled(watched, call.number, "forward" if way == "forward" else "backward")
            return any(part in name for part in self._parts for name in names)
        return picked

    def _picks(self, watched: Watched, role: Role) -> bool:
        """Decide about what was put into the model since, a function, a value."""
        if role == "value":
            return any(fnmatch.fnmatchcase(watched.api, each) for each in self._patterns)
        if watched.api and role != "state":
            if self._functions.wants(*_split(watched.api)):
                return True
            if self._level != "api":
                return False
        if watched.home is not None and self._chosen.get(watched.home, False):
            return True
        return bool(self._modules and matching([watched], self._modules, must_match=False))


def _is_function(pattern: str, watched: Sequence[Watched]) -> bool:
    """Tell whether a pattern is one on names of functions."""
    plain = pattern.removeprefix("!")
    prefix, dot, _ = plain.partition(".")
    if prefix in PREFIXES and dot:
        return True
    if not dot or plain.startswith("type:"):
        return False
    return not matching(watched, [plain], must_match=False)  # of a prefix that the user registers


def _split(name: str) -> tuple[str, str]:
    prefix, _, rest = name.partition(".")
    return prefix, rest
