"""Which views may be asked for their node.

A view whose base was written in place since has no node until somebody asks for it. Asking then
creates the node early, which changes the order in which the backward sums gradients, and with it
their last bits. Autograd does not say whether a view is in that state; what can be seen is that
the tensor is a view and was written at some time. That is taken as stale, unless it is known
that nothing was written since the view was made.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef


class FreshViews:
    """Remembers views that look stale and are known not to be."""

    def __init__(self) -> None:
        """Know of none."""
        self._known: dict[tuple[int, int], tuple[StorageWeakRef, int]] = {}

    def looks_stale(self, t: Tensor) -> bool:
        """Tell whether asking `t` for its node could create one."""
        if not t._is_view() or t._version == 0:
            return False
        if not self._known:
            return True
        storage = StorageWeakRef(t.untyped_storage())
        known = self._known.get((id(t), storage.cdata))
        return known is None or known[1] != t._version

    def remember(self, t: Tensor) -> None:
        """Take `t` as fresh for as long as its storage is not written again.

        Should `t` die and another view of the storage get its address, that one was made later,
        so what is remembered is true of it too.
        """
        storage = StorageWeakRef(t.untyped_storage())
        self._known[(id(t), storage.cdata)] = (storage, t._version)

    def forget(self) -> None:
        """Begin a new step."""
        self._known.clear()


def makes_fresh(module: nn.Module | None) -> bool:
    """Tell whether what a module returns was made after its last write.

    True of torch's own single layers: they make their result last, or write it through the
    tensor they were given, which updates that tensor's node at once. Anybody else could hand
    out an older view, or write through its base.
    """
    if module is None or module._modules:
        return False
    return type(module).__module__.startswith("torch.nn.modules.")
