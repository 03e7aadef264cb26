"""Where the user's code raised."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.modules import module as torch_module

from probe_nb.observe.regions import local


def raising(error: BaseException) -> Iterator[nn.Module]:
    """Yield the modules that an exception came through, outermost first.

    Frames of torch know them.
    """
    traceback = error.__traceback__
    while traceback is not None:
        frame, traceback = traceback.tb_frame, traceback.tb_next
        if frame.f_code.co_filename == torch_module.__file__:
            module = local(frame, "self")
            if isinstance(module, nn.Module):
                yield module
