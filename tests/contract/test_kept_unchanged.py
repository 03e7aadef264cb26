"""The observed is unchanged, bit for bit, also where every tensor is kept whole."""

from __future__ import annotations

import pytest

import probe_nb as probe
from probe_nb.terms import MODULE_ROLES
from tests.contract.test_unchanged import MODES, PIECES, graph_of, trained
from tests.models import no_faults

CASES = [
    pytest.param(piece, mode, id=f"{piece.name}-{mode}")
    for piece in PIECES.values()
    for mode in ("train", "inference", "bf16")
    if mode not in piece.not_in
]


def everything(**more):
    return probe.Keep("*", roles=MODULE_ROLES, **more)


def test_the_modes_are_those_of_the_other_contract():
    assert {"train", "inference", "bf16"} <= set(MODES)


@pytest.mark.parametrize(("piece", "mode"), CASES)
def test_three_training_steps_are_the_same_bit_for_bit(piece, mode):
    bare = trained(piece, mode, watched=False)
    with no_faults():
        seen = trained(piece, mode, watched=True, keep=everything())
    assert seen.keys() == bare.keys()
    assert [name for name in bare if bare[name] != seen[name]] == []


@pytest.mark.parametrize("name", ["resnet", "transformer", "gradient_penalty"])
def test_they_are_the_same_where_tensors_are_streamed_to_a_folder(name, tmp_path):
    piece = PIECES[name]
    bare = trained(piece, "train", watched=False)
    with no_faults():
        seen = trained(piece, "train", watched=True, keep=everything(folder=tmp_path / name))
    assert [key for key in bare if bare[key] != seen[key]] == []


@pytest.mark.parametrize("piece", [p for p in PIECES.values() if not p.raises], ids=repr)
def test_the_graph_has_the_same_nodes_made_in_the_same_order(piece):
    kept = graph_of(piece, watched=True, keep=everything())
    assert kept == graph_of(piece, watched=False)
