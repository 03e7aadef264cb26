"""What is chosen is what msProbe chooses with the same names: its own dumps of one program say so."""

from __future__ import annotations

import json

import pytest

from probe_nb.dump import keys
from tests.interop.dumps import _config
from tests.interop.ours import run_of

CHOICES = {
    "part of a module's name": ("L0", {"list": ["attn"]}),
    "a module at mixed level": ("mix", {"list": ["Module.block.Block"]}),
    "a function": ("L1", {"list": ["Functional.linear.1", "layer_norm"]}),
    "one direction of one call": ("L0", {"list": ["Module.twice.Linear.backward.1"]}),
    "modules of the forward": (
        "L0",
        {"scope": ["Module.emb.Embedding.forward.0", "Module.lstm.LSTM.forward.0"]},
    ),
    "modules of the backward": (
        "L0",
        {"scope": ["Module.lstm.LSTM.backward.0", "Module.norm.LayerNorm.backward.0"]},
    ),
    "functions of the forward": (
        "L1",
        {"scope": ["Functional.layer_norm.0.forward", "Functional.conv2d.0.forward"]},
    ),
    "both levels": (
        "mix",
        {"scope": ["Module.norm.LayerNorm.forward.0", "Module.block.Block.forward.0"]},
    ),
    "names in a range": (
        "mix",
        {
            "scope": ["Module.emb.Embedding.forward.0", "Module.block.Block.forward.0"],
            "list": ["Linear"],
        },
    ),
}


INSIDE_THE_LAST = {
    "both levels": {
        *("Module.block.fc.Linear.forward.0", "Functional.linear.2.forward"),
        *("Tensor.__mul__.1.forward", "Torch.tanh.0.forward", "Tensor.__add__.2.forward"),
        *("Tensor.mean.1.forward", "Tensor.__gt__.0.forward"),
    },
    "names in a range": {"Module.block.fc.Linear.forward.0", "Functional.linear.2.forward"},
}
"""At mixed level msProbe closes a range where the last module begins; we do where it ends."""


@pytest.fixture(scope="module")
def chosen(msprobe_jobs, tmp_path_factory):
    """Return the keys of msProbe's own dumps, of the first step."""
    root = tmp_path_factory.mktemp("choices")
    folders = {name: root / str(n) for n, name in enumerate(CHOICES)}  # it takes no spaces
    msprobe_jobs.run(
        [
            {"program": "net", "config": _config(level, **section), "folder": str(folders[name])}
            for name, (level, section) in CHOICES.items()
        ]
    )
    return {name: found(folder / "dump") for name, folder in folders.items()}


def found(dump):
    (file,) = (dump / "step0").glob("*/dump.json")
    return {key for key in json.loads(file.read_text())["data"] if "parameters_grad" not in key}


def ours(run):
    """Return the same keys of a run of ours."""
    rows = run.df[(run.df["step"] == 0) & run.df["direction"].isin(["forward", "backward"])]
    rows = rows[rows["role"].isin(["input", "output", "grad_output", "grad_input"])]
    made = set()
    for row in rows.itertuples():
        prefix, _, rest = row.api.partition(".")
        key = (
            keys.Key("api", rest, prefix, direction=row.direction, call=row.call)
            if row.api
            else keys.Key("module", row.module, "Module", row.type, row.direction, row.call)
        )
        made.add(keys.spell(key))
    return made


@pytest.mark.parametrize("name", CHOICES)
def test_the_same_names_choose_the_same_calls(name, chosen, theirs):
    level, section = CHOICES[name]
    run = run_of("net", level, names=section.get("list"), scope=section.get("scope"), live=False)
    everything = found(theirs[level])
    assert chosen[name]
    assert chosen[name] < everything
    more = INSIDE_THE_LAST.get(name, set())
    assert ours(run) & everything == chosen[name] | more
    assert not chosen[name] & more
