"""Module tree + patterns -> the modules to watch, and why the others are not."""

from __future__ import annotations

import fnmatch
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from torch import nn

from probe_nb.errors import ModelError, SelectionError, closest
from probe_nb.observe.calls import Call
from probe_nb.terms import inside, printable, shown

if TYPE_CHECKING:
    from probe_nb.observe.tasks import When

_WRAPPERS: Final = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "OptimizedModule": "_orig_mod",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}
"""Classes that only wrap one module; they are skipped and leave no trace in its path."""

_MAKERS: Final = ("torch", "fairscale", "apex", "megatron")
"""Packages whose classes of these names are meant: one of the user's own may be anything."""

_SHELL: Final = "module"
"""What DDP and DataParallel call what is inside of them."""

_DISTRIBUTED: Final = ("DistributedDataParallel", "FullyShardedDataParallel")

_PATHS: Final = 8
"""Paths of one module that are known. With modules shared at every level there may be millions."""

_FORWARDS: Final = 16
"""Forwards whose backwards are told apart at once, for the parameters of one module."""


@dataclass(eq=False)
class Watched:
    """One module under watch. The module itself is not kept alive."""

    module: weakref.ref[nn.Module]
    model: str
    path: str
    cls: type
    is_root: bool
    selected: bool
    compiled: bool = False
    aliases: list[str] = field(default_factory=list)
    unrepeated: list[Call] = field(default_factory=list)
    """Calls of this step inside a custom Function, which its backward may still repeat."""
    calls: int = 0
    called: bool = False
    seen: bool = False
    late: bool = False
    """It was put into the model when no step began any more that could have recorded it."""
    within: str = ""
    """The name of its model inside of DDP, which msProbe's names begin with."""
    silenced: bool = False
    """It ran while `run.only` recorded something else, or it under another name."""
    checkpointed: bool = False
    """Functions in it have no gradients: a reentrant checkpoint repeated them."""
    left_out: bool = False
    """It ran where `scope=`, `names=` or `when=` choose nothing."""
    faulty: bool = False
    """An error of our own kept something of a call from being recorded."""
    home: Watched | None = None
    """Of one that `run.only` names: the module under its own path, or itself if it has none."""
    api: str = ""
    """Of what is no module: the name that its rows have beside its class."""
    sites: dict[tuple[str, ...], tuple[bytes, bool, bool]] = field(default_factory=dict)
    """Of each site what its rows have in common: see `recorder.Spot`."""
    callee: int = -1
    """Its code in the table of calls, -1 before its first call there."""
    shell: weakref.ref[nn.Module] | None = None
    """The wrapper around it; of several the one that spreads it over processes."""
    _parameters: dict[tuple[int, int], Call] = field(default_factory=dict)

    @property
    def type(self) -> str:
        """Name of the module's class; a lazy module changes it with its first call.

        FSDP2 puts a class of its own before the module's. It is a wrapper like the others.
        """
        cls = self.cls
        if any(each.__name__ == "FSDPModule" for each in cls.__bases__):
            cls = cls.__bases__[-1]
        return cls.__name__

    def renamed(self) -> bool:
        """Tell whether a lazy module was given another class since, and take note of it."""
        module = self.module()
        if module is None or type(module) is self.cls:
            return False
        self.cls = type(module)
        self._forget_names()
        return True

    @property
    def inside(self) -> str:
        """Its path with the name that the model has inside of DDP before it."""
        return inside(self.within, self.path)

    def lies_at(self, model: str, paths: list[str]) -> None:
        """Take note of all the paths of the module in a model."""
        if model == self.model and self.path not in paths:
            self.path = paths[0]
            self._forget_names()
        known = (self.path, *self.aliases)
        self.aliases += [path for path in paths if path not in known]

    def _forget_names(self) -> None:
        """Have looked up anew what is written under a path and a class that changed."""
        self.sites.clear()
        self.callee = -1

    def begin_step(self) -> None:
        """Count calls from 0 again."""
        self.calls = 0

    def parameters_call(self, when: When) -> Call:
        """Return the call that parameters and their gradients are written down under."""
        key = (when.step, when.micro_step)
        call = self._parameters.get(key)
        if call is None:
            module = self.module()
            training = module is not None and bool(module.training)
            call = self._parameters[key] = Call(self, 0, *key, 0, training, False)
            while len(self._parameters) > _FORWARDS:
                self._parameters.pop(next(iter(self._parameters)), None)
        return call


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of a module itself, whatever its class makes of `parameters()`."""
    return {name: p for name, p in module._parameters.items() if p is not None}


def own_parameter(module: nn.Module, name: str) -> nn.Parameter | None:
    """Return one parameter of a module itself, None if there is none of this name."""
    parameters = module._parameters
    return parameters[name] if name in parameters else None  # noqa: SIM401  # scripted: no `get`


def as_models(model: Any, named: Mapping[str, Any]) -> dict[str, nn.Module]:
    """Give every model a name: the keyword, the key, the place in the list, or `model`.

    Raises:
        ModelError: Something is not a module; the message says what it is.
    """
    if isinstance(model, nn.Module):
        found: dict[str, Any] = {"model": model}
    elif isinstance(model, Mapping):
        found = {str(key): value for key, value in model.items()}
    elif isinstance(model, (list, tuple)):
        found = {str(place): value for place, value in enumerate(model)}
    elif model is None:
        found = {}
    else:
        raise ModelError(_not_a_module("The model to watch", model))
    found.update(named)
    found = {printable(name): value for name, value in found.items()}
    for name, value in found.items():
        if not isinstance(value, nn.Module):
            raise ModelError(_not_a_module(f"`{name}`", value))
    if not found:
        raise ModelError("There is no model to watch; give a `torch.nn.Module`, or several.")
    return found


def as_module(value: Any) -> nn.Module:
    """Return what `run.only` was given, if it is a module.

    Raises:
        ModelError: It is not; the message says what it is.
    """
    if not isinstance(value, nn.Module):
        raise ModelError(_not_a_module("What `run.only` records", value))
    return value


def _not_a_module(what: str, value: Any) -> str:
    kind = type(value).__name__
    hint = ""
    if isinstance(value, type) and issubclass(value, nn.Module):
        kind, hint = f"the class {value.__name__}", " Create it first: watch an instance."
    elif isinstance(getattr(value, "model", None), nn.Module):
        hint = " It has a `.model` that is one: watch that."
    elif isinstance(getattr(value, "module", None), nn.Module):
        hint = " It has a `.module` that is one: watch that."
    return f"{what} must be a `torch.nn.Module`, got {kind}.{hint}"


def watched_modules(models: Mapping[str, nn.Module], select: Sequence[str]) -> list[Watched]:
    """Return every module of the models in definition order, the chosen ones marked `selected`.

    Raises:
        SelectionError: A pattern matches no module; the message names the nearest paths.
    """
    by_id: dict[int, Watched] = {}
    for name, model in models.items():
        add_modules(by_id, name, model)
    found = list(by_id.values())
    mark_selected(found, select)
    return found


def add_modules(by_id: dict[int, Watched], name: str, model: nn.Module) -> list[Watched]:
    """Add the modules of a model that are not known yet, and return them.

    Known ones learn where they are now: an adapter is put around a layer, under the layer's name.
    """
    added = []
    places: dict[int, list[str]] = {}
    within = name_inside(model)
    for path, module, compiled, shell in _walk(model):
        known = by_id.get(id(module))
        if known is None or known.module() is not module:
            ref, cls, is_root = weakref.ref(module), type(module), path == ""
            known = Watched(ref, name, path, cls, is_root, selected=True, compiled=compiled)
            known.within = within
            by_id[id(module)] = known
            added.append(known)
        if shell is not None:
            known.shell = weakref.ref(shell)
        places.setdefault(id(module), []).append(path)
    for identity, paths in places.items():
        by_id[identity].lies_at(name, paths)
    return added


def unwrapped(module: nn.Module) -> tuple[nn.Module, bool]:
    """Return a module without what is wrapped around it, and whether it is compiled."""
    inner, compiled, _ = _unwrapped(module)
    return inner, compiled


def _unwrapped(
    module: nn.Module, *, compiled: bool = False
) -> tuple[nn.Module, bool, nn.Module | None]:
    """Return the module inside, whether it is compiled, and the wrapper that spreads it or any."""
    shell = None
    while True:
        kind = type(module).__name__
        inner = getattr(module, _WRAPPERS[kind], None) if _only_wraps(type(module)) else None
        compiled |= kind == "OptimizedModule" and inner is not None
        compiled |= getattr(module, "_compiled_call_impl", None) is not None
        if not isinstance(inner, nn.Module):
            return module, compiled, shell
        shell = module if kind in _DISTRIBUTED or shell is None else shell
        module = inner


def name_inside(model: nn.Module) -> str:
    """Return the name that a model has inside of DDP or DataParallel; empty outside of them."""
    names: list[str] = []
    inner: object = model
    while isinstance(inner, nn.Module) and _only_wraps(type(inner)):
        names.append(_WRAPPERS[type(inner).__name__])
        inner = getattr(inner, names[-1], None)
    return ".".join(names) if _SHELL in names else ""


def _only_wraps(cls: type) -> bool:
    return cls.__name__ in _WRAPPERS and cls.__module__.partition(".")[0] in _MAKERS


def _walk(model: nn.Module) -> Iterator[tuple[str, nn.Module, bool, nn.Module | None]]:
    """Yield (path, module, is compiled, wrapper) depth first, once per path, without wrappers."""
    times: Counter[int] = Counter()
    nobody: frozenset[int] = frozenset()
    todo = [("", model, False, nobody)]
    while todo:
        path, wrapped, compiled, inside = todo.pop()
        module, compiled, shell = _unwrapped(wrapped, compiled=compiled)
        times[id(module)] += 1
        if id(module) in inside or times[id(module)] > _PATHS:
            continue
        yield path, module, compiled, shell
        inside |= {id(module)}
        todo += [
            (printable(f"{path}.{name}" if path else name), child, compiled, inside)
            for name, child in reversed(list(module._modules.items()))
            if child is not None
        ]


class Tree:
    """What a model was made of when it was last looked at."""

    def __init__(self) -> None:
        """Know of nothing."""
        self._modules: list[weakref.ref[nn.Module]] = []
        self._names: list[str | int] = []

    def changed(self, model: nn.Module) -> bool:
        """Tell whether modules were put into a model, taken out or moved since."""
        modules, known = [model], {id(model)}
        names: list[str | int] = []
        for module in modules:  # it grows meanwhile
            for name, child in module._modules.items():
                names += [name, id(child)]
                if child is not None and id(child) not in known:
                    known.add(id(child))
                    modules.append(child)
        alive = all(ref() is not None for ref in self._modules)  # else an address may be used anew
        if alive and names == self._names and self._modules:
            return False
        self._modules, self._names = [weakref.ref(module) for module in modules], names
        return True


def mark_selected(found: list[Watched], select: Sequence[str], *, must_match: bool = True) -> None:
    """Mark those that the patterns choose; without patterns all stay as they are."""
    if select:
        chosen = matching(found, select, must_match=must_match)
        for watched in found:
            watched.selected = watched in chosen


def matching(
    found: Sequence[Watched], select: Sequence[str], *, must_match: bool = True
) -> set[Watched]:
    """Apply the patterns in order: `layers.*`, `type:Linear`, and `!pattern` to take out again.

    Raises:
        SelectionError: A pattern that must match something does not.
    """
    chosen = set(found) if select[0].startswith("!") else set()
    for pattern in select:
        plain = pattern.removeprefix("!")
        hits = [w for w in found if _matches(w, plain)]
        hits = hits or [w for w in found if _matches_named(w, plain)]
        if not hits and must_match:
            raise SelectionError(_no_match(pattern, found))
        chosen = chosen.union(hits) if plain == pattern else chosen.difference(hits)
    return chosen


def _matches(watched: Watched, pattern: str) -> bool:
    if pattern.startswith("type:"):
        wanted = pattern.removeprefix("type:").strip()
        return any(fnmatch.fnmatchcase(c.__name__, wanted) for c in watched.cls.__mro__[:-2])
    paths = [watched.path, *watched.aliases]
    return any(fnmatch.fnmatchcase(p, pattern) or shown(p) == pattern for p in paths)


def _matches_named(watched: Watched, pattern: str) -> bool:
    """Match `model.path`, for several models, where no path alone matched."""
    paths = [path for path in (watched.path, *watched.aliases) if path]
    return any(fnmatch.fnmatchcase(f"{watched.model}.{path}", pattern) for path in paths)


def _no_match(pattern: str, found: Sequence[Watched]) -> str:
    plain = pattern.removeprefix("!")
    if plain.startswith("type:"):
        known = sorted({w.type for w in found})
        near = closest(plain.removeprefix("type:"), known) or f" It has {', '.join(known[:8])}."
        return f"No module has a type that matches `{plain}`.{near}"
    near = closest(plain, [w.path for w in found])
    return (
        f"No module matches `{plain}` among {len(found)} module{'s' * (len(found) > 1)}.{near} "
        "A pattern is a "
        "module path with `*`, or `type:` and a class name."
    )
