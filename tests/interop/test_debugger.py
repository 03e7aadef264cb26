"""The examples of msProbe's guide, run as they are with their import changed, give what it gives.

What is known to differ is listed by name in `KNOWN`, with the reason; all else has to be equal.
"""

from __future__ import annotations

import csv
import re

import filelock
import pytest

from tests.interop import both_sides

CALL = r"/data/(?!Module)[^/]+"
KNOWN = {
    "msProbe's backward of a function is that of its last node, ours has the gradients of its "
    "own arguments": rf"dump\.json: {CALL}\.backward/output",
    "msProbe does not know functions that draw random numbers": r"/Torch\.randn?\.0\.\w+ only ours",
    "construct.json of msProbe names calls that it does not dump": r"construct\.json: .* only theirs",
    "nor does it see the backward of a module whose inputs need no gradient": (
        r"construct\.json: /Functional\.conv2d\.0\.backward ours"
    ),
    "msProbe names the optimizer as what functions ran in": r"construct\.json: .* theirs 'optimizer'",
}
"""What differs in any dump."""

TRAINING = {
    "L0": {"level": "L0"},
    "L1": {"level": "L1"},
    "mix": {"level": "mix"},
    "tensor": {"level": "L0", "task": "tensor"},
    "tensors of functions": {"level": "mix", "task": "tensor"},
    "md5": {"level": "L0", "statistics": {"summary_mode": "md5"}},
    "xor": {"level": "L0", "statistics": {"summary_mode": "xor"}},
    "structure": {"level": "L0", "task": "structure"},
    "one step, no stacks": {"level": "L0", "step": [1], "extra_info": False},
    "inputs of the backward": {"level": "L0", "statistics": {"data_mode": ["backward", "input"]}},
    "outputs": {"level": "L0", "statistics": {"data_mode": ["output"]}},
    "tensor_list": {"level": "L0", "statistics": {"tensor_list": ["head"]}},
    "list": {"level": "L0", "statistics": {"list": ["block"]}},
    "list of functions": {"level": "L1", "statistics": {"list": ["relu", "linear.1"]}},
    "list in mix": {"level": "mix", "statistics": {"list": ["block"]}},
    "scope": {
        "level": "L0",
        "statistics": {"scope": ["Module.norm.BatchNorm2d.forward.0", "Module.head.Linear.forward.0"]},
    },
    "slice": {"level": "L0", "statistics": {"slice": [{"dim": 0, "size": 4, "begin": 0, "end": 2}]}},
    "async": {"level": "L0", "async_dump": True},
    "all functions": {"level": "L1", "risk_level": "ALL"},
}  # fmt: skip
"""The training loop of the guide, under many configurations."""

JOBS = {
    "quick start": ("quick_start", {}),
    "one module": ("one_module", {"level": "L1"}),
    "across files": ("across_files", {"level": "L1"}),
    "tokens": ("tokens", {"level": "L0"}),
    "saving": ("saving", {"level": "debug"}),
    "saving tensors": ("saving", {"level": "debug", "task": "tensor"}),
    "stopping": ("stopping", {"level": "L0"}),
    "list of models": ("list_of_models", {"level": "L0"}),
    "own function": ("own_function", {"level": "L1"}),
    "random calls": ("random_calls", {}),
    "seeds": ("seeds", {}),
    "seeds, enhanced": ("seeds_enhanced", {}),
    "one process of DDP": ("data_parallel", {"level": "L0"}),
    "one process of DDP, mix": ("data_parallel", {"level": "mix"}),
    "one process of DDP, tensors": ("data_parallel", {"level": "L0", "task": "tensor"}),
    "one process of DDP, scope": (
        "data_parallel",
        {
            "level": "L0",
            "statistics": {
                "scope": [
                    "Module.module.fc.Linear.forward.0",
                    "Module.module.block.Sequential.forward.0",
                ]
            },
        },
    ),
    "one process of DDP, one module": ("data_parallel_single", {"level": "L0"}),
} | {f"training, {name}": ("training", config) for name, config in TRAINING.items()}

OF_ONE = {
    "training, inputs of the backward": {
        "ours has stacks of what was dumped": r"stack\.json: .* only theirs"
    },
    "training, tensors of functions": {
        "the gradients of a function's own arguments, as in dump.json": (
            r"/(Functional|Torch)\.\w+\.\d\.backward\.output\.\d\.pt"
        ),
    },
    "training, outputs": {
        "msProbe writes an entry in which there is nothing": r"/Module\.conv\.Conv2d\.backward\.0 only theirs",
    },
    "training, structure": {
        "ours tells shapes and dtypes": r"dump\.json: /data/[^/]+ only ours",
    },
    "training, xor": {
        "msProbe reads a tensor of 8 bytes when it writes its file: after the optimizer's step": (
            r"parameters/bias/md5"
        ),
    },
    "training, md5": {
        "msProbe sums in threads, which may come to a parameter after the optimizer's step": (
            r"parameters/\w+/md5"
        ),
    },
    "stopping": {
        "gradients still come after `stop`, as the guide says; msProbe collects none": (
            r"\.(backward\.\d|parameters_grad\.0) only ours"
        ),
    },
    "saving": {"a gradient that never came has no entry": r"_grad\.\d\.debug only theirs"},
    "saving tensors": {"a gradient that never came has no entry": r"_grad\.\d\.debug only theirs"},
}  # fmt: skip
"""What differs in one of the jobs alone."""


@pytest.fixture(scope="module")
def done(msprobe_python, shared):
    """Run all scripts on both sides, once; return what gives the folder of each job."""
    folder = shared / "debugger"
    with filelock.FileLock(shared / "debugger.lock"):
        if not folder.exists():
            both_sides.run_both(msprobe_python, JOBS, folder)
    return lambda job: both_sides.at(folder, job)


@pytest.mark.parametrize("job", JOBS)
def test_a_script_of_msprobes_gives_what_it_gives(done, job):
    known = [*KNOWN.values(), *OF_ONE.get(job, {}).values()]
    found = both_sides.differences(done(job))
    assert [each for each in found if not any(re.search(k, each) for k in known)] == []


@pytest.mark.parametrize("job", JOBS)
def test_a_dump_is_there_where_msprobe_has_one(done, job):
    ours, theirs = (
        sorted(p.name for p in (done(job) / side).glob("dump_path/step*/*/*.json"))
        for side in ("ours", "theirs")
    )
    assert ours == theirs
    assert bool(ours) is (JOBS[job][0] not in ("random_calls", "seeds", "seeds_enhanced"))


@pytest.mark.parametrize("job", ["seeds", "seeds, enhanced"])
def test_a_seed_gives_the_numbers_of_the_guide(done, job):
    ours, theirs = ((done(job) / side / "printed").read_text() for side in ("ours", "theirs"))
    second = "0.2038" if job == "seeds" else "-0.0866"
    assert ours == f"tensor(-0.0866)\ntensor({second})\n"
    assert [line for line in theirs.splitlines() if line.startswith("tensor")] == ours.splitlines()


def test_random_calls_are_listed_as_msprobe_lists_them(done):
    names = []
    for side in ("ours", "theirs"):
        (path,) = (done("random calls") / side / "output").glob("random_proc*.csv")
        with path.open(encoding="utf-8-sig", newline="") as file:
            names.append([row["api_name"] for row in csv.DictReader(file)])
    assert names[0] == names[1] != []
