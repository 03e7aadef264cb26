"""What a model is made of: its modules, and how many numbers they learn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from probe_nb.observe.aside import aside
from probe_nb.observe.select import Watched, own_parameters
from probe_nb.terms import Made


def tree(watched: Iterable[Watched], known: Iterable[list[Any]] = ()) -> list[list[Any]]:
    """Return one entry per module, as `Made` has it, in the order of the model.

    What of a module that is gone was `known` stays as it was.
    """
    before = {(model, path): entry for entry in known for model, path in [entry[:2]]}
    found = []
    for each in watched:
        module, place = each.module(), (each.model, each.path)
        if module is None:
            found.append(before.get(place) or [*Made(*place, each.type)])
        else:
            found.append([*Made(*place, each.type, *_counted(module))])
    return found


def _counted(module: nn.Module) -> tuple[int | None, int | None, int | None, int | None]:
    """Count the numbers of a module's own parameters, and of all inside; each is counted once.

    None where a lazy module was not built yet.
    """
    inside, todo, known = dict[int, nn.Parameter](), [module], {id(module)}
    for part in todo:  # it grows meanwhile
        inside |= {id(p): p for p in own_parameters(part).values()}
        children = {id(c): c for c in part._modules.values() if c is not None}
        new = {key: c for key, c in children.items() if key not in known}
        todo += new.values()
        known |= new.keys()
    own = {id(p): p for p in own_parameters(module).values()}
    return *_numbers(own), *_numbers(inside)


def _numbers(parameters: dict[int, nn.Parameter]) -> tuple[int | None, int | None]:
    if any(map(is_lazy, parameters.values())):
        return None, None
    try:
        with aside():
            counts = [(int(p.numel()), p.requires_grad) for p in parameters.values()]
    except Exception:  # of a class that does not say: nobody knows
        return None, None
    return sum(n for n, _ in counts), sum(n for n, learns in counts if learns)
