"""What of msProbe's configuration is refused or has no effect here, with the reason and a way out.

`docs/from-msprobe.md` has the same as a table.
"""

from __future__ import annotations

from typing import Final

TASKS: Final = {
    "acc_check": "it runs every API again with made-up data. Keep the real inputs with task "
    '"tensor", or compare with a trusted run: `probe.compare(baseline, candidate)`.',
    "diff_check": "it compares checksums while the model runs. Dump both sides with `summary_mode` "
    '"md5", and `probe.compare(baseline, candidate)` names the first place that differs.',
    "nan_check": "it reads registers of an NPU. `debugger.run.first_nonfinite()` says where the "
    'first NaN or Inf was born, and `probe.watch(model, stop_on="nonfinite")` stops there.',
    "overflow_check": "msProbe itself has it no more. `debugger.run.first_nonfinite()` says where "
    "the first NaN or Inf was born.",
    "free_benchmark": "msProbe itself has it no more. Compare with a trusted run: "
    "`probe.compare(baseline, candidate)`.",
    "exception_dump": "it is of MindSpore. `debugger.run.first_nonfinite()` says where the first "
    "NaN or Inf was born.",
    "run_ut": "it runs every API again with made-up data. Compare with a trusted run: "
    "`probe.compare(baseline, candidate)`.",
}
"""Tasks, and sections of tasks."""

LEVELS: Final = {
    "L2": "it is the driver of the NPU that writes kernels down, not PyTorch. Use msProbe itself "
    "for it, or `L1` for the functions of torch that start them.",
}

KEYS: Final = {
    "load": "it feeds modules other inputs than the model gives them, and what is observed is "
    "never changed here. Keep the inputs (task `tensor`) and call the module on what "
    "`debugger.run.tensor(...)` gives.",
    "bench_path": "it is of the task `diff_check`: " + TASKS["diff_check"],
    "request_id": "it needs what `start(scheduled_tokens=...)` is told by vLLM on Ascend. Cut the "
    "tensors with `slice`, or choose forwards with `start(model, token_range=[a, b])`.",
}
"""Keys that ask for what this tool does not do."""

SILENT: Final = {
    "seed": "call `seed_all(seed)` instead",
    "is_deterministic": "call `seed_all(mode=True)` instead",
    "enable_dataloader": "end each step with `debugger.step()`",
    "acl_config": "it is of kernel dumps",
    "diff_nums": "it is of the task `diff_check`",
    "backward_input": "it is of kernel dumps",
    "file_format": "tensors are written as `.pt`",
}
"""Keys that msProbe reads past too, or did; they are noticed and change nothing."""
