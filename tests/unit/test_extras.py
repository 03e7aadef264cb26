"""What is computed on request: spectral norms, attention, shares below a limit; on paper and by
numpy in float64."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import probe_nb as probe
from probe_nb.analysis.words import tensor
from probe_nb.errors import ConfigError, SelectionError
from tests.models import no_faults


def value(run: Any, leaf: str, module: str | None = None, step: int = 0) -> float:
    df = run.df
    rows = df[(df["role"] == "state") & (df["leaf"] == leaf) & (df["step"] == step)]
    if module is not None:
        rows = rows[rows["module"] == module]
    assert len(rows) == 1, rows
    assert rows["status"].item() == "ok"
    return float(rows["mean"].item())


def status(run: Any, leaf: str) -> str:
    return str(run.df.loc[run.df["leaf"] == leaf, "status"].item())


def watched(model: nn.Module, *args: Any, extras: dict[str, Any], **kwargs: Any) -> Any:
    with no_faults(), probe.watch(model, extras=extras) as run:
        model(*args, **kwargs)
    return run


def entropies(p: np.ndarray) -> np.ndarray:
    """Entropy of each row in nats, by its definition."""
    out = np.zeros(p.shape[:-1])
    for place in np.ndindex(*out.shape):
        out[place] = -sum(x * np.log(x) for x in p[place] if x > 0)
    return out


def softmax(s: np.ndarray) -> np.ndarray:
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Plain(nn.Module):
    """Hands on what it computes with a function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


# -- weights ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (1, 4), (6, 2, 3, 3)])
def test_spectral_norm_and_stable_rank_are_those_of_numpys_svd(shape, scale):
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    model.weight = nn.Parameter(torch.randn(shape) * scale, requires_grad=False)
    model.forward = lambda x: x
    run = watched(model, torch.ones(1), extras={"spectral_norm": "*", "stable_rank": "*"})
    w = model.weight.numpy().astype(np.float64).reshape(shape[0], -1)
    sigma = np.linalg.svd(w, compute_uv=False)
    assert value(run, "spectral_norm.weight") == pytest.approx(sigma[0], rel=1e-9)
    rank = (sigma**2).sum() / sigma[0] ** 2
    assert value(run, "stable_rank.weight") == pytest.approx(rank, rel=1e-9)


def test_of_two_equal_singular_values_the_norm_is_still_exact():
    model = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0, 2.0, 0.0], [-2.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
    run = watched(model, torch.ones(1, 3), extras={"spectral_norm": "*", "stable_rank": "*"})
    assert value(run, "spectral_norm.weight") == pytest.approx(2.0, rel=1e-12)
    assert value(run, "stable_rank.weight") == pytest.approx(9 / 4, rel=1e-12)


def test_a_weight_that_is_not_finite_has_no_spectral_norm_and_the_row_says_why():
    model = nn.Linear(3, 3)
    with torch.no_grad():
        model.weight[0, 0] = torch.nan
    run = watched(model, torch.ones(1, 3), extras={"spectral_norm": "*"})
    assert status(run, "spectral_norm.weight") == "no_finite"


def test_a_weight_of_zeros_has_the_norm_zero_and_no_stable_rank():
    model = nn.Linear(3, 3)
    nn.init.zeros_(model.weight)
    run = watched(model, torch.ones(1, 3), extras={"spectral_norm": "*", "stable_rank": "*"})
    assert value(run, "spectral_norm.weight") == 0.0
    assert status(run, "stable_rank.weight") == "no_finite"


def test_a_bias_has_no_row_and_a_module_that_is_not_named_has_none():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    run = watched(model, torch.ones(1, 3), extras={"spectral_norm": "1"})
    rows = run.df[run.df["leaf"].str.startswith("spectral")]
    assert list(zip(rows["module"], rows["leaf"], strict=True)) == [("1", "spectral_norm.weight")]


def test_the_similarity_of_experts_is_the_mean_cosine_over_pairs():
    model = nn.Linear(2, 3, bias=False)
    rows = [[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]]
    with torch.no_grad():
        model.weight.copy_(torch.tensor(rows))
    run = watched(model, torch.ones(1, 2), extras={"router_similarity": "*"})
    by_hand = (0 + 2 * np.sqrt(0.5)) / 3
    assert value(run, "router_similarity.weight") == pytest.approx(by_hand, rel=1e-6)


# -- attention --------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masked", ["not", "causal", "keys", "added"])
def test_the_entropy_of_multihead_attention_is_that_of_the_weights_it_would_give(
    batch_first, masked
):
    torch.manual_seed(1)
    model = nn.MultiheadAttention(8, 2, batch_first=batch_first)
    q, kv = torch.randn(3, 5, 8), torch.randn(3, 6, 8)
    masks: dict[str, Any] = {}
    if masked == "causal":
        masks["attn_mask"] = torch.ones(5, 6).triu(1).bool()
    if masked == "keys":
        masks["key_padding_mask"] = torch.zeros(3, 6, dtype=torch.bool)
        masks["key_padding_mask"][:, 4:] = True
    if masked == "added":
        masks["attn_mask"] = torch.randn(6, 5, 6)
    given = [each if batch_first else each.transpose(0, 1) for each in (q, kv, kv)]
    with torch.no_grad():
        _, weights = model(*given, need_weights=True, average_attn_weights=False, **masks)
    p = weights.numpy().astype(np.float64)
    extras = {"attention_entropy": "*", "softmax_max": "*"}
    run = watched(model, *given, need_weights=False, extras=extras, **masks)
    assert value(run, "attention_entropy") == pytest.approx(entropies(p).mean(), rel=1e-5)
    assert value(run, "softmax_max") == pytest.approx(p.max(-1).mean(), rel=1e-5)


@pytest.mark.parametrize("order", ["bhsd", "sbhd", "bshd"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_entropy_of_a_core_attention_follows_from_queries_and_keys(order, causal):
    rng = np.random.default_rng(2)
    b, h, s, d = 2, 3, 4, 5
    q, k = rng.standard_normal((2, b, h, s, d))
    e, m = [], []
    for i, j, row in np.ndindex(b, h, s):
        scores = [float(q[i, j, row] @ k[i, j, c]) / np.sqrt(d) for c in range(s)]
        seen = scores[: row + 1] if causal else scores
        p = softmax(np.array(seen))
        e.append(entropies(p))
        m.append(p.max())
    axes = {"bhsd": (0, 1, 2, 3), "sbhd": (2, 0, 1, 3), "bshd": (0, 2, 1, 3)}[order]
    args = [torch.tensor(each.transpose(axes)) for each in (q, k, k)]
    model = Plain(lambda q, k, v: v)
    how = f":{order}" + ("+causal" if causal else "")
    names = {f"attention_entropy{how}": "*", f"softmax_max{how}": "*"}
    run = watched(model, *args, extras=names)
    assert value(run, "attention_entropy") == pytest.approx(np.mean(e), rel=1e-9)
    assert value(run, "softmax_max") == pytest.approx(np.mean(m), rel=1e-9)


def test_heads_that_share_keys_are_compared_with_the_keys_they_share():
    rng = np.random.default_rng(3)
    q, k = rng.standard_normal((1, 4, 3, 5)), rng.standard_normal((1, 2, 3, 5))
    p = softmax(np.stack([q[0, i] @ k[0, i // 2].T / np.sqrt(5) for i in range(4)]))
    model = Plain(lambda q, k, v: v)
    args = [torch.tensor(each) for each in (q, k, k)]
    run = watched(model, *args, extras={"attention_entropy": "*"})
    assert value(run, "attention_entropy") == pytest.approx(entropies(p).mean(), rel=1e-9)


def test_the_entropy_of_a_softmax_is_that_of_its_result():
    x = torch.tensor([[0.0, 0.0], [0.0, np.log(3.0)]])
    run = watched(nn.Softmax(-1), x, extras={"attention_entropy": "*", "softmax_max": "*"})
    by_hand = (np.log(2) - (0.25 * np.log(0.25) + 0.75 * np.log(0.75))) / 2
    assert value(run, "attention_entropy") == pytest.approx(by_hand, rel=1e-6)
    assert value(run, "softmax_max") == pytest.approx((0.5 + 0.75) / 2, rel=1e-6)


def test_a_second_result_of_four_dimensions_is_taken_for_the_weights():
    p = torch.tensor([0.25, 0.75]).expand(1, 2, 3, 2)
    run = watched(Plain(lambda: (torch.ones(1), p)), extras={"attention_entropy": "*"})
    by_hand = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    assert value(run, "attention_entropy") == pytest.approx(by_hand, rel=1e-6)


def test_what_does_not_sum_up_to_one_is_no_probability_and_has_no_entropy():
    cache = torch.full((1, 2, 3, 2), 0.7)
    run = watched(Plain(lambda: (torch.ones(1), cache)), extras={"attention_entropy": "*"})
    assert status(run, "attention_entropy") == "no_finite"


def test_a_module_that_is_no_attention_says_so():
    run = watched(nn.Linear(2, 2), torch.ones(1, 2), extras={"attention_entropy": "*"})
    assert status(run, "attention_entropy") == "unsupported"


def test_rows_that_are_masked_altogether_are_left_out():
    q = torch.zeros(1, 2, 4)
    mask = torch.tensor([[True, True, True], [False, False, True]])
    model = nn.MultiheadAttention(4, 1, batch_first=True, bias=False)
    kv = torch.zeros(1, 3, 4)
    run = watched(model, q, kv, kv, attn_mask=mask, extras={"attention_entropy": "*"})
    assert value(run, "attention_entropy") == pytest.approx(np.log(2), rel=1e-6)


def test_the_entropy_over_experts_is_the_mean_over_tokens():
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [50.0, 0.0, 0.0, 0.0]])
    run = watched(Plain(lambda: logits), extras={"expert_entropy": "*"})
    assert value(run, "expert_entropy") == pytest.approx(np.log(4) / 2, rel=1e-5)


# -- shares and steps -------------------------------------------------------------------------------


def test_the_share_below_a_limit_is_counted_for_inputs_outputs_and_gradients():
    x = torch.tensor([[0.0, 1e-9, -3e-8, 2.0], [5e-9, -1.0, 1e-8, torch.nan]], requires_grad=True)
    model = nn.Identity()

    class Half(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.tensor([0.0, 1e-9, 1.0, 1.0])

    model = Half()
    with no_faults(), probe.watch(model, extras={"below:1e-8": "*"}) as run:
        model(x).sum().backward()
    # 1e-8 itself is not below 1e-8, nor is NaN
    assert value(run, "below:1e-08(input.0)") == 3 / 8
    assert value(run, "below:1e-08(output.0)") == 4 / 8
    assert value(run, "below:1e-08(grad_output.0)") == 0.0
    assert value(run, "below:1e-08(grad_input.0)") == 4 / 8


def test_the_share_below_is_exact_where_half_precision_cannot_spell_the_limit():
    x = torch.tensor([0.0, 6e-8, 1.0, 0.0], dtype=torch.float16)  # 6e-8: its smallest number
    run = watched(nn.Identity(), x, extras={"below:1e-8": "*"})
    assert value(run, "below:1e-08(input.0)") == 0.5


def test_what_an_optimizer_keeps_is_read_before_it_steps_and_its_signs_are_compared():
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, betas=(0.5, 0.9), weight_decay=0)
    extras = {"state_before": "*", "grad_direction": "*"}
    with no_faults(), probe.watch(model, optimizer=optimizer, extras=extras) as run:
        for row in ([1.0, 2.0], [3.0, -4.0]):
            optimizer.zero_grad()
            model(torch.tensor([row])).sum().backward()
            optimizer.step()
    # after the first step exp_avg is half the gradient (1, 2)
    assert value(run, "before.weight.exp_avg", step=1) == pytest.approx(0.75)
    assert value(run, "before.weight.exp_avg_sq", step=1) == pytest.approx((0.1 + 0.4) / 2)
    assert value(run, "grad_direction.weight", step=1) == 0.5
    assert not (run.df[run.df["step"] == 0]["leaf"].str.startswith("before")).any()


# -- the laws ---------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.fc = nn.Linear(8, 4)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.attn(x, x, x, need_weights=False)
        return self.act(self.fc(x + y))


EVERYTHING = {
    "spectral_norm": "*",
    "stable_rank": "*",
    "attention_entropy": "attn",
    "softmax_max": "attn",
    "below:1e-8": "*",
    "state_before": "*",
    "grad_direction": "*",
}


@pytest.mark.parametrize("cast", [False, True])
def test_training_is_bit_identical_with_every_extra(cast):
    def train(model: nn.Module, extras: dict[str, str] | None) -> tuple[Any, ...]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        torch.manual_seed(5)
        options: dict[str, Any] = {} if extras is None else {"extras": extras}
        losses = []
        with no_faults(), probe.watch(model, optimizer=optimizer, **options) as run:
            for _ in range(3):
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16, enabled=cast):
                    loss = model(torch.randn(2, 3, 8)).float().pow(2).sum()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return losses, list(model.parameters()), torch.random.get_rng_state(), run

    model = Net()
    plain, extra = train(copy.deepcopy(model), None), train(copy.deepcopy(model), EVERYTHING)
    assert plain[0] == extra[0]
    assert all(torch.equal(a, b) for a, b in zip(plain[1], extra[1], strict=True))
    assert torch.equal(plain[2], extra[2])
    assert len(extra[3]) > len(plain[3])


def test_a_nan_is_born_at_the_same_place_with_every_extra():
    def born(extras: dict[str, str] | None) -> Any:
        torch.manual_seed(0)
        model = Net()
        with torch.no_grad():
            model.fc.weight[0, 0] = torch.nan
        optimizer = torch.optim.AdamW(model.parameters())
        with probe.watch(model, optimizer=optimizer, extras=extras) as run:
            model(torch.randn(2, 3, 8)).sum().backward()
            optimizer.step()
        return run

    plain, extra = born(None), born(EVERYTHING)
    assert extra.first_nonfinite().sentence == plain.first_nonfinite().sentence
    assert list(extra.findings()["kind"]) == list(plain.findings()["kind"])


def test_checksums_and_extras_are_had_together():
    model = nn.Linear(2, 2)
    with no_faults(), probe.watch(model, checksum="crc32", extras={"spectral_norm": "*"}) as run:
        model(torch.ones(1, 2))
    assert run.df.loc[run.df["role"] == "input", "checksum"].notna().all()
    sigma = np.linalg.svd(model.weight.detach().double().numpy(), compute_uv=False)[0]
    assert value(run, "spectral_norm.weight") == pytest.approx(sigma, rel=1e-6)


@pytest.mark.parametrize(
    ("extras", "text"),
    [
        ({"spectral": "*"}, "spectral_norm"),
        ({"below": "*"}, "below:1e-8"),
        ({"below:-1": "*"}, "below:1e-8"),
        ({"attention_entropy:xyz": "*"}, "bhsd"),
        ({"spectral_norm:bhsd": "*"}, "behind the colon"),
        ({}, "give a dict"),
        ("spectral_norm", "give a dict"),
    ],
)
def test_what_is_no_extra_is_refused_with_what_would_do(extras, text):
    with pytest.raises(ConfigError, match=text):
        probe.watch(nn.Linear(1, 1), extras=extras)


def test_an_extra_whose_rows_are_not_recorded_is_refused():
    with pytest.raises(ConfigError, match="add it to `roles`"):
        probe.watch(nn.Linear(1, 1), roles="output", extras={"spectral_norm": "*"})


def test_a_pattern_that_matches_no_module_is_refused():
    with pytest.raises(SelectionError, match="attn"):
        probe.start(nn.Linear(1, 1), extras={"spectral_norm": "attn"})


def test_an_extra_is_called_what_it_is_and_is_no_value_of_the_run():
    layer = nn.Linear(9, 9, bias=False)
    nn.init.ones_(layer.weight)  # its spectral norm is 9
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-4)
    names = ["spectral_norm", "stable_rank", "state_before", "grad_direction", "below:1e-8"]
    with probe.watch(layer, optimizer=optimizer, extras=dict.fromkeys(names, "*")) as run:
        for _ in range(2):
            optimizer.zero_grad()
            layer(torch.full((1, 9), 0.01)).sum().backward()
            optimizer.step()
    sites = run.columns.tables.sites.values
    said = {tensor(site) for site in sites if site.role == "state" and not site.api}
    assert {
        "spectral norm of weight",
        "stable rank of weight",
        "gradient direction of weight",
        "optimizer state weight.exp_avg before the step",
        "share of output.0 below 1e-08",
        "optimizer state weight.exp_avg",
    } <= said
    assert (
        repr(run)
        .splitlines()[0]
        .startswith("✓ 2 steps, 1 module, no NaN or Inf; largest |value| 1")
    )
