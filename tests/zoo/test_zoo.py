"""A sample of the zoo, the same each time: some of every family, and some that must be there.

`make zoo` examines all of it.
"""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from tests.zoo import collection, known
from tests.zoo.examine import examine
from tests.zoo.specimen import Specimen
from tests.zoo.torch_modules import FAMILY as OF_TORCH

ALWAYS = (
    *("bert", "gpt2", "llama", "t5", "mixtral", "mamba", "vit", "clip", "whisper", "wav2vec2"),
    "nn.TransformerEncoderLayer-0-float32-eval",
    "nn.MultiheadAttention-0-float32-train",
)
OF_EACH_MODULE = 3
OF_EACH_FAMILY = 0.2
AT_LEAST = 2


def sample() -> list[Specimen]:
    """Choose by a fixed seed, group by group, so that none is left out."""
    chance = random.Random(0)
    chosen: dict[str, Specimen] = {}
    for group in groups().values():
        many = OF_EACH_MODULE if group[0].family == OF_TORCH else round(OF_EACH_FAMILY * len(group))
        picked = chance.sample(group, min(max(many, AT_LEAST), len(group)))
        chosen |= {each.name: each for each in picked}
    chosen |= {each.name: each for each in collection.matching(list(ALWAYS))}
    return [chosen[name] for name in sorted(chosen) if name not in known.FAULTS]


def groups() -> dict[str, list[Specimen]]:
    """Return the uses of each module of torch, and the architectures of each family."""
    found: dict[str, list[Specimen]] = defaultdict(list)
    for each in collection.specimens():
        found[each.name.split("-")[0] if each.family == OF_TORCH else each.family].append(each)
    return found


SAMPLE = sample()


@pytest.mark.parametrize("specimen", SAMPLE, ids=repr)
def test_a_watched_specimen_is_unchanged_and_its_rows_are_right(specimen):
    assert examine(specimen) == []


def test_those_that_must_be_there_are_there():
    names = {each.name for each in SAMPLE}
    assert [name for name in ALWAYS if name not in names] == []
