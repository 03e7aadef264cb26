"""The training monitor under DDP: gradients before and after they are reduced."""

from __future__ import annotations

import pytest
import torch

from tests.distributed.launch import launch

pytestmark = pytest.mark.xdist_group("distributed")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return [each["monitored"] for each in launch(tmp_path_factory.mktemp("m"), 2, "monitored")]


def test_what_arrives_is_each_process_s_own_and_what_the_optimizer_sees_is_the_mean(ranks):
    for rank in ranks:
        for name, norm in rank["local"].items():
            assert rank["written"]["grad_unreduced_0-0.csv"][name] == pytest.approx(norm, rel=1e-5)
    for name in ranks[0]["local"]:
        mean = torch.stack([rank["gradients"][name] for rank in ranks]).mean(0).norm().item()
        for rank in ranks:
            assert rank["written"]["grad_reduced_0-0.csv"][name] == pytest.approx(mean, rel=1e-5)
    assert ranks[0]["local"] != ranks[1]["local"]


def test_each_rank_has_its_folder_and_one_that_is_not_named_has_none(ranks):
    assert [rank["mine"] for rank in ranks] == ["rank0", "rank1"]
    for number, rank in enumerate(ranks):
        assert rank["folders"] == [f"rank{number}"]
