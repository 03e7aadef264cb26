"""What is written as a dump and read again is the same: numbers, counts, histograms, places."""

import pandas as pd
import pytest
import torch

import probe_nb as probe

KEY = ["step", "module", "api", "direction", "role", "leaf", "call"]
NUMBERS = [
    *("min", "max", "mean", "std", "l2", "absmax", "nan_count", "posinf_count", "neginf_count"),
    *("zero_count", "subnormal_count", "at_max_count", "numel", "loss_scale"),
    *("dtype", "status", "checksum", "requires_grad", "type"),
]


class Net(torch.nn.Module):
    """Nested outputs, integers, a mask, and where asked for NaN."""

    def __init__(self, spoilt):
        super().__init__()
        self.emb = torch.nn.Embedding(5, 4)
        self.lstm = torch.nn.LSTM(4, 4, batch_first=True)
        self.norm = torch.nn.LayerNorm(4)
        self.head = torch.nn.Linear(4, 2).to(torch.float64)
        self.spoilt = spoilt

    def forward(self, ids, scale=None):
        states, (last, _) = self.lstm(self.emb(ids))
        x = self.norm(last[0])
        if self.spoilt:
            x = x.masked_fill(x > 0.5, self.spoilt)
        return {"logits": self.head(x.double()), "states": [states, last]}


def keyed(frame):
    """The rows of calls, by where they were taken."""
    plain = frame.astype(dict.fromkeys(KEY, object)).set_index(KEY)
    assert plain.index.is_unique
    return plain[NUMBERS].astype(object)


@pytest.mark.parametrize("level", ["module", "mix", "api"])
@pytest.mark.parametrize("spoilt", [0.0, float("nan"), float("inf"), float("-inf")])
def test_a_run_that_was_written_as_a_dump_is_read_as_it_was(tmp_path, level, spoilt):
    torch.manual_seed(1)
    model = Net(spoilt)
    with probe.watch(
        model, level=level, stacks=True, values=True, checksum="crc32", live=False
    ) as run:
        model(torch.randint(0, 5, (3, 6)), scale=2)["logits"].square().mean().backward()
    back = probe.read_dump(run.write_dump(tmp_path / "dump"))
    there = run.df[(run.df["direction"] != "optimizer") & (run.df["role"] != "buffer")]
    there = keyed(there[(there["module"] != "") | (there["api"] != "")])
    found = keyed(back.df)
    if level != "module":  # what a parameter's gradient is at this level stands at its function
        there = there[there.index.isin(found.index)]
    assert len(there) == len(found) > 30
    pd.testing.assert_frame_equal(found.loc[there.index], there)
    assert {"has_nan", "has_inf"}.isdisjoint(back.df["status"])  # they were counted
    for name, value in (("nan", "nan"), ("posinf", "inf"), ("neginf", "-inf")):
        assert back.df[f"{name}_count"].max() > 0 or str(spoilt) != value

    def histograms(of):
        frame = of.df
        return {
            tuple(map(str, frame.loc[row, KEY])): (each.bins.tolist(), each.counts.tolist())
            for row, each in zip(frame.index, of.columns.histograms(range(len(frame))), strict=True)
            if each is not None
        }

    ours, read = histograms(run), histograms(back)
    assert read
    assert {key: ours[key] for key in read} == read


def test_calls_and_values_come_back_too(tmp_path):
    model = Net(spoilt=0.0)
    with probe.watch(model, level="mix", stacks=True, values=True, live=False) as run:
        model(torch.randint(0, 5, (3, 6)), scale=2)
    back = probe.read_dump(run.write_dump(tmp_path / "dump"))
    named = [(m, a) for m, a in run.calls()[["module", "api"]].astype(str).values if m or a]
    assert back.calls()[["module", "api"]].astype(str).apply(tuple, axis=1).tolist() == named
    assert (
        back.calls()["stack"].astype(str).tolist()[-1]
        == run.calls()["stack"].astype(str).tolist()[-1]
    )
    ours = run.values()
    ours = ours[(ours["module"] != "") | (ours["api"] != "")]
    pairs = [
        (str(leaf), kind, value)
        for leaf, kind, value in zip(
            back.values()["leaf"], back.values()["kind"], back.values()["value"], strict=True
        )
    ]
    assert pairs == [
        (str(leaf), kind, value)
        for leaf, kind, value in zip(ours["leaf"], ours["kind"], ours["value"], strict=True)
    ]


def test_gradients_of_parameters_come_back_with_how_often_there_was_one(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer=optimizer, live=False) as run:
        for _ in range(2):
            for _ in range(2):  # two micro steps, the second with two backwards
                loss = model(torch.randn(4, 3)).square().sum()
                loss.backward(retain_graph=True)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    back = probe.read_dump(run.write_dump(tmp_path / "dump"))
    counted = ["step", "micro_step", "call", "backward", "module", "leaf"]

    def accumulated(of):
        """What `.grad` was after each backward: as it was added, where nothing was there."""
        frame = of.frame(role="param_grad", direction="backward").sort_values("order")
        assert {0, 1} == set(frame["micro_step"]) == set(frame["backward"])
        frame = frame.astype({"module": str, "leaf": str})
        keys = frame[counted].assign(leaf=frame["leaf"].str.removesuffix(".grad"))
        rows = [*zip(keys.apply(tuple, axis=1), frame["leaf"], frame["l2"], strict=True)]
        named = {key: (leaf, number) for key, leaf, number in rows if leaf == key[-1]}
        return named | {key: (leaf, number) for key, leaf, number in rows if leaf != key[-1]}

    assert len(accumulated(run)) == 2 * 3 * 4  # steps, backwards, parameters
    assert accumulated(back) == accumulated(run)


def test_kept_tensors_of_a_dump_belong_to_their_rows(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    keep = probe.Keep("*", roles="input,output,grad_output,param_grad")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer=optimizer, keep=keep, live=False) as run:
        for _ in range(2):
            model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
    back = probe.read_dump(run.write_dump(tmp_path / "dump"))
    keys = ["step", "micro_step", "call", "backward", "module", "api", "role", "leaf"]
    rows = back.df[keys].astype(str).apply(tuple, axis=1).tolist()
    kept = back.kept()
    assert len(kept) > 8
    assert set(kept["micro_step"]) == {0, 1}
    for key in kept[keys].astype(str).apply(tuple, axis=1):
        assert rows.count(key) == 1
