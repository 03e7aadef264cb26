"""Whether a view may be asked for its node.

A view whose base was written in place since it was made has no node of its own until somebody
asks for it. Asking creates the node early, which changes the order in which the backward sums
gradients, and with it their last bits.

Torch keeps that to itself, but it refuses to create a node for a view that a custom function
made, and it refuses before it changes anything. So the view is marked as such a one for the time
of the question: an answer means that the node was there, a refusal that it was not.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

_autograd: Final[Any] = torch._C._autograd
_REFUSED: Final = _autograd.CreationMeta.IN_CUSTOM_FUNCTION


def stale(t: Tensor) -> bool:
    """Tell whether asking `t` for its node would create one."""
    if not t._is_view() or t._version == 0:
        return False
    origin = _autograd._get_creation_meta(t)
    try:  # Python looks for an interrupt only after the marking and after the mark is gone again
        _autograd._set_creation_meta(t, _REFUSED)
        _ = t.grad_fn
    except RuntimeError:
        return True
    finally:
        _autograd._set_creation_meta(t, origin)
    return False
