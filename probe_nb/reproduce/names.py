"""Other functions under the names of torch's, NumPy's and Python's, and the old ones again."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, Final

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
_MARK: Final = "_probe_nb_names"


class Names:
    """Functions that stand in for others, under every name that a module has for them.

    A name that was made with `from … import` is one of those names, also when the module that
    made it was imported meanwhile. What the user puts under a name meanwhile stays theirs.
    """

    def __init__(self) -> None:
        self.in_use = False
        self._functions: list[tuple[Any, Any]] = []
        self._members: list[tuple[type, str, Any, Any]] = []

    def replace(
        self,
        functions: Iterable[Callable[..., Any]],
        methods: Iterable[tuple[type, str]],
        wrap: Wrap,
    ) -> None:
        """Put `wrap(function)` in the place of each function and method."""
        self.in_use = True
        for each in functions:
            self._functions.append((each, self._marked(each, wrap)))
        for owner, name in methods:
            own = vars(owner).get(name)
            stand_in = self._marked(getattr(owner, name), wrap)
            self._members.append((owner, name, own, stand_in))
            _set_member(owner, name, stand_in)
        _swap({id(old): new for old, new in self._functions})

    def restore(self) -> None:
        """Put the functions back; those who kept a stand-in find that it only calls them."""
        self.in_use = False
        _swap({id(new): _without_ours(old) for old, new in self._functions})
        for owner, name, own, stand_in in reversed(self._members):
            if vars(owner).get(name) is stand_in:
                _set_member(owner, name, _without_ours(own))
        self._functions, self._members = [], []

    def _marked(self, function: Callable[..., Any], wrap: Wrap) -> Callable[..., Any]:
        stand_in = wrap(function)
        stand_in.__dict__.update({_MARK: self, "__wrapped__": function})
        return stand_in


def _without_ours(function: Any) -> Any:
    """Return what a stand-in that is no longer in use stood for."""
    while (names := getattr(function, _MARK, None)) is not None and not names.in_use:
        function = function.__wrapped__
    return function


def _swap(new: Mapping[int, Any]) -> None:
    """Replace objects, found by their identity, in the namespaces of all modules."""
    modules: list[Any] = list(sys.modules.values())  # not all of them are modules
    for module in modules:
        if not isinstance(module, ModuleType):
            continue
        namespace = module.__dict__
        for name, value in list(namespace.items()):
            if id(value) in new:
                namespace[name] = new[id(value)]


def _set_member(owner: type, name: str, value: Any) -> None:
    """Set a method, or take it away if it is None; of a class that is written in C, too."""
    try:
        if value is None:
            delattr(owner, name)
        else:
            setattr(owner, name, value)
    except TypeError:  # such a class refuses, and what its view of its names refers to does not
        (members,) = gc.get_referents(vars(owner))
        members[name] = value
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))
