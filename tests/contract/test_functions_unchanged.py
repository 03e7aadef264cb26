"""The observed is unchanged at API level too: every model of the museum, with fused paths off.

Any function mode of torch's switches them off. So the bare run is one with a mode that does nothing.
"""

from __future__ import annotations

import pytest
from torch.overrides import TorchFunctionMode

from tests.contract.test_unchanged import CASES, PIECES, graph_of, trained
from tests.models import no_faults


class Idle(TorchFunctionMode):
    """Does nothing but be there."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("piece", "mode"), CASES)
def test_three_training_steps_at_mixed_level_are_the_same_bit_for_bit(piece, mode):
    with Idle():
        bare = trained(piece, mode, watched=False)
    with no_faults():
        seen = trained(piece, mode, watched=True, level="mix", apis="all", stacks=True)
    assert seen.keys() == bare.keys()
    assert [name for name in bare if bare[name] != seen[name]] == []


@pytest.mark.parametrize("piece", [p for p in PIECES.values() if not p.raises], ids=repr)
def test_the_graph_at_mixed_level_has_the_same_nodes_made_in_the_same_order(piece):
    with Idle():
        bare = graph_of(piece, watched=False)
    assert graph_of(piece, watched=True, level="mix", apis="all", stacks=True) == bare
