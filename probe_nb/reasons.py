"""Why a module has no rows, or a row no numbers, and what to do about it; free of torch.

A saved run keeps the reasons alone: what to do is looked up when somebody asks.
"""

from __future__ import annotations

from typing import Final

NOT_SELECTED: Final = "not selected"
CONTAINER: Final = "a container"
STEPS: Final = "called only in steps that were not asked for"
LEFT_OUT: Final = "called only where nothing was chosen"
ELSEWHERE: Final = "called only while `run.only` recorded something else"
GONE: Final = "taken out of the model"
LATE: Final = "put into the model too late"
COMPILED: Final = "compiled"
SCRIPTED: Final = "inside scripted code"
TRACED: Final = "inside a traced graph"
FUSED: Final = "inside a fused kernel"
UNFUSED: Final = "not fused at API level"
REENTRANT: Final = "functions without gradients"
LENT: Final = "used only by its weights"
BYPASSED: Final = "called only in part"
NEVER: Final = "never called"
AGAIN: Final = "watched again before it was called"
NO_TENSORS: Final = "called without tensors"
NO_GRADIENTS: Final = "called without gradients"
FAULTY: Final = "lost to an error of probe_nb"
RANKS: Final = "in a process that `ranks=` leaves out"

EXPECTED: Final = frozenset({NOT_SELECTED, LEFT_OUT, RANKS, CONTAINER, GONE, UNFUSED, AGAIN})
"""Nothing is missing where these are the reason."""

NUMBERED: Final = frozenset({"ok", "empty", "no_finite"})
"""Statuses of rows in which nothing is missing: these three were measured."""

_HOOKS: Final = "hooks see only what is called as `module(x)`"

REMEDIES: Final[dict[str, str]] = {
    NOT_SELECTED: "Nothing is missing: `select=` leaves it out.",
    CONTAINER: "Nothing is missing: it has no forward, its children are watched.",
    STEPS: "Choose other steps with `steps=` or `token_range=`.",
    LEFT_OUT: "Nothing is missing: `scope=`, `names=` or `when=` leaves it out.",
    ELSEWHERE: "Call it outside of the range; one recorded by `run.only` is under the name there.",
    GONE: "Nothing is missing: what took its place is watched from the next step on.",
    LATE: "It came after the last recorded step had begun. What is put into a model is watched "
    "from the next one on.",
    COMPILED: "It stays compiled, and compiled code calls no hooks. Watch the model that was "
    'compiled, uncompiled, for a few steps, or pass `compiled="eager"`.',
    SCRIPTED: "The scripted module around it is seen as one; watch the module that it was made "
    "from to see inside.",
    TRACED: "The graph around it is seen as one; watch the module that it was traced or exported "
    "from to see inside.",
    FUSED: "Read the layer around it. To see inside, switch the kernel off before the watch: "
    "`torch.backends.mha.set_fastpath_enabled(False)`; the last bits of results change.",
    UNFUSED: "Nothing is missing. Seeing functions switches its fused kernel off: in evaluation "
    "it is slower, and its last bits are those of the plain computation. At module level it is "
    "fused.",
    REENTRANT: "A reentrant checkpoint runs its forward without grad, and repeats it inside the "
    "backward, where functions are not recorded. `use_reentrant=False` has all gradients.",
    LENT: "Its parameters and their gradients are recorded. Its input and output are only if it "
    "is called as `module(x)`, not by `.forward(x)` or by its weights.",
    BYPASSED: "Its children ran and it did not. If they are called one by one, nothing is "
    f"missing. If it is called as `module.forward(x)`: {_HOOKS}.",
    NEVER: f"It may be unused. If it ran all the same: {_HOOKS}, in this process, outside of "
    "torch.compile and CUDA graphs, and not what is called as `module.forward(x)`.",
    AGAIN: "Nothing is missing: the run of the later watch has what came then.",
    NO_TENSORS: "Neither arguments nor result hold a tensor that can be found: dicts, lists, "
    "tuples and dataclasses are looked into, other objects are not.",
    NO_GRADIENTS: "Only gradients were asked for, and no backward inside the watch reached it.",
    FAULTY: "A notice of the run says which. The model is unaffected. Please report it.",
    RANKS: "Nothing is missing: `ranks=` leaves this process out.",
    # statuses of rows
    "not_asked": "Nothing is missing: `structure=True` records shapes and dtypes alone.",
    "meta": "Tensors on the meta device and fake ones have no values.",
    "unsupported": "Its type or layout cannot be measured, a CUDA graph was being captured, or a "
    "hook of yours was put on too late for this one call. At a gradient: nobody can tell what of "
    "it came through this module.",
    "passthrough": "The output is the input itself, so its gradient is not this module's alone: "
    "read it at the modules around it.",
    "stale_view": "It is a view whose base was written in place since; asking for its gradient "
    "would change the order of the backward. Read the gradient at the module before or after.",
    "skipped_budget": "The budget was used up; record fewer modules, roles or steps.",
    "private_format": "Cast it to a plain format first: `torch_npu.npu_format_cast(t, 2)`.",
    "vmapped": "Inside `torch.vmap` a tensor stands for a whole batch; read it outside.",
    "has_nan": "The dump says that NaN is in it and not how many: no other number can be read of "
    "it. msProbe's task `tensor` dumps the tensor itself.",
    "has_inf": "The dump says that Inf is in it and not how many; its other numbers are there.",
    "failed": "A fault of probe_nb's own: the warning says which. Please report it.",
}
