"""Rows written by hand, whose verdicts follow from what they say."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.errors import ConfigError, SelectionError
from probe_nb.exponents import Histogram
from tests import records

NUMBERS = {"min": -1.0, "max": 2.0, "mean": 0.5, "std": 1.0, "l2": 3.0, "absmax": 2.0}


def row(module="a", role="output", **facts):
    return {"module": module, "role": role, "numel": 100, "shape": (10, 10), **NUMBERS, **facts}


def verdict(one, other):
    found = probe.compare(records.run([row(**one)]), records.run([row(**other)])).df
    assert len(found) == 1
    return found["verdict"].item(), found["reason"].item()


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({}, {}, ("same", "")),
        ({}, {"max": 2.0 * (1 + 2**-24)}, ("close", "")),
        ({}, {"max": 2.1}, ("diverged", "")),
        ({}, {"l2": 3.0 * (1 + 1e-7), "dtype": "bfloat16"}, ("close", "")),
        ({}, {"mean": 0.501, "dtype": "bfloat16"}, ("close", "")),
        ({"nan_count": 3}, {"nan_count": 3}, ("same", "")),
        ({"nan_count": 3}, {"nan_count": 2}, ("diverged", "3 NaN against 2")),
        ({}, {"nan_count": 1}, ("diverged", "NaN in the candidate alone")),
        ({"posinf_count": 1}, {"neginf_count": 1}, ("diverged", "+Inf against -Inf")),
        ({"posinf_count": 1}, {"posinf_count": 1}, ("same", "")),
        (
            {"posinf_count": 1},
            {"at_max_count": 1},
            ("diverged", "Inf against the largest number of the format: one side saturates"),
        ),
        (
            {"shape": (10, 10)},
            {"shape": (100, 1)},
            ("diverged", "shape 10\N{MULTIPLICATION SIGN}10 against 100\N{MULTIPLICATION SIGN}1"),
        ),
        ({"shape": (10, 1, 10)}, {"shape": (10, 10)}, ("same", "")),
        ({"status": "empty"}, {"status": "empty"}, ("same", "")),
        ({"status": "empty"}, {}, ("diverged", "empty on one side")),
        ({"status": "failed"}, {}, ("not_comparable", "no numbers in the baseline: failed")),
        (
            {"status": "meta"},
            {"status": "meta"},
            ("not_comparable", "no numbers on either side: meta"),
        ),
        (
            {"status": "has_nan"},
            {"nan_count": 4},
            ("not_comparable", "NaN on both sides; a dump does not say how many"),
        ),
        ({"status": "has_nan"}, {}, ("diverged", "NaN in the baseline alone")),
        ({"dtype": "int64"}, {"dtype": "int64"}, ("same", "")),
        (
            {"dtype": "int64"},
            {"dtype": "int64", "max": 3.0},
            ("diverged", "whole numbers differ"),
        ),
    ],
)
def test_each_pair_has_its_verdict(one, other, expected):
    if "status" in one and one["status"] != "ok":
        one = {**one, **dict.fromkeys(NUMBERS, float("nan"))}
    if "status" in other and other["status"] != "ok":
        other = {**other, **dict.fromkeys(NUMBERS, float("nan"))}
    assert verdict(one, other) == expected


def test_both_zero_are_the_same_and_zero_against_something_is_not():
    zero = dict.fromkeys(NUMBERS, 0.0)
    assert verdict(zero, zero)[0] == "same"
    assert verdict(zero, {})[0] == "diverged"


def test_an_all_nan_pair_is_the_same():
    nothing = {**dict.fromkeys(NUMBERS, float("nan")), "status": "no_finite"}
    both = {**nothing, "nan_count": 100, "zero_count": 0}
    assert verdict(both, both)[0] == "same"
    inf = {**nothing, "posinf_count": 100, "nan_count": 0}
    assert verdict(both, inf)[0] == "diverged"


def test_an_infinity_that_a_dump_tells_of_has_a_sign():
    def told(value):
        return {
            "status": "has_inf",
            "max": value,
            "min": -1.0,
            "mean": value,
            "l2": np.inf,
            **dict.fromkeys(("std", "absmax"), float("nan")),
        }

    assert verdict(told(np.inf), told(np.inf))[0] in ("same", "close")
    swapped = told(2.0) | {"min": -np.inf, "mean": -np.inf}
    assert verdict(told(np.inf), swapped) == ("diverged", "+Inf against -Inf")
    assert verdict(told(np.inf), {})[0] == "diverged"


def test_histograms_tell_what_statistics_do_not():
    a = Histogram.of(np.array([1.0] * 60 + [1e-3] * 40))
    b = Histogram.of(np.array([1.0] * 60 + [1e-6] * 40))
    found = probe.compare(records.run([row(histogram=a)]), records.run([row(histogram=b)]))
    assert found.df["histogram_distance"].item() == pytest.approx(0.4)
    assert found.df["verdict"].item() == "diverged"
    assert found.df["measure"].item() == "histogram"


def test_differences_are_those_of_the_candidate_from_the_baseline():
    found = probe.compare(records.run([row()]), records.run([row(max=2.5, l2=2.0)])).df
    assert (found["max_diff"].item(), found["l2_diff"].item()) == (0.5, -1.0)
    assert (found["max_baseline"].item(), found["max_candidate"].item()) == (2.0, 2.5)


# -- alignment -----------------------------------------------------------------------------------


def modules(found):
    return dict(zip(found.df["module"].astype(str), found.df["verdict"].astype(str), strict=True))


def test_what_only_one_run_has_is_listed_and_never_the_same():
    one = records.run([row("a"), row("b")])
    other = records.run([row("a"), row("c", shape=(3,))])
    found = probe.compare(one, other)
    assert modules(found) == {"a": "same", "b": "only_in_baseline", "c": "only_in_candidate"}
    assert found.one_sided()[["side", "module"]].values.tolist() == [
        ["baseline", "b"],
        ["candidate", "c"],
    ]
    assert "rows only in the baseline: b" in repr(found)
    assert repr(found).startswith("! no divergence in what both have; 2 rows only one run has")


def test_wrappers_are_taken_off():
    one = records.run([row("layers.0.fc"), row("")])
    other = records.run(
        [row("module._orig_mod.layers.0._fsdp_wrapped_module.fc"), row("_orig_mod")]
    )
    assert set(modules(probe.compare(one, other)).values()) == {"same"}


def test_a_child_that_is_called_module_is_kept_where_it_must_be():
    both = records.run([row("a.module.fc"), row("a.fc", max=3.0, absmax=3.0)])
    assert modules(probe.compare(both, both)) == {"a.module.fc": "same", "a.fc": "same"}


@pytest.mark.parametrize(
    "mapping",
    [
        {"layers": "blocks"},
        {"layers.0": "blocks.0", "layers.1": "blocks.1"},
        lambda path: path.replace("blocks", "layers"),
    ],
)
def test_renamed_modules_are_mapped(mapping):
    one = records.run([row("layers.0"), row("layers.1")])
    other = records.run([row("blocks.0"), row("blocks.1", max=2.5)])
    found = probe.compare(one, other, mapping=mapping)
    assert modules(found) == {"layers.0": "same", "layers.1": "diverged"}


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"layer": "blocks"}, "`mapping` has `layer`, and neither .* The closest are `layers`"),
        ({"layers": "block"}, "`mapping` has `block`, and neither .* The closest are `blocks`"),
    ],
)
def test_a_mapping_of_what_neither_run_has_is_refused_with_the_nearest(mapping, message):
    one, other = records.run([row("layers.0")]), records.run([row("module.blocks.0")])
    with pytest.raises(ConfigError, match=message):
        probe.compare(one, other, mapping=mapping)


def test_a_mapping_may_name_modules_without_rows():
    made = [["model", "stem", "Linear"]]
    one = records.run([row("layers.0")], tree=made)
    other = records.run([row("blocks.0")], tree=made)
    found = probe.compare(one, other, mapping={"layers": "blocks", "stem": "stem"})
    assert modules(found) == {"layers.0": "same"}
    assert len(probe.compare(one, records.run([]), mapping={"layers": "any"})) == 1


def test_mappings_of_msprobe_are_read(tmp_path):
    one = records.run([row("mlp.0"), row("x")])
    other = records.run([row("ff.3"), row("y")])
    cells = tmp_path / "cm.yaml"
    cells.write_text("# cells\nff.3.Linear: mlp.0.Linear\n'y.Linear': x.Linear\n")
    assert set(modules(probe.compare(one, other, mapping=cells)).values()) == {"same"}
    data = tmp_path / "dm.yaml"
    data.write_text(
        "Module.ff.3.Linear.forward.0.output.0: Module.mlp.0.Linear.forward.0.output.0\n"
    )
    assert modules(probe.compare(one, other, mapping=str(data))) == {
        "mlp.0": "same",
        "x": "only_in_baseline",
        "y": "only_in_candidate",
    }


def test_a_mapping_is_suggested_for_what_looks_alike():
    def run(*names):
        shapes = [(3, 4), (5, 6)]
        return records.run(
            [
                row(n, role, shape=s)
                for n, s in zip(names, shapes, strict=True)
                for role in ("input", "output")
            ]
        )

    found = probe.compare(run("fc1", "fc2"), run("lin_a", "lin_b"))
    assert found.suggested_mapping() == {"fc1": "lin_a", "fc2": "lin_b"}
    assert repr(found).startswith("! nothing could be compared: no name is in both;")
    for said in (repr(found), found._repr_html_()):
        assert "look alike under other names: comparison.suggested_mapping()" in said
    again = probe.compare(
        run("fc1", "fc2"), run("lin_a", "lin_b"), mapping=found.suggested_mapping()
    )
    assert set(modules(again).values()) == {"same"}


def test_calls_are_matched_by_number_or_in_their_order():
    one = records.run([row(call=0), row(call=1, max=3.0, absmax=3.0)])
    other = records.run([row(call=1), row(call=2, max=3.0, absmax=3.0)])
    assert sorted(probe.compare(one, other).df["verdict"].astype(str)) == [
        "diverged",
        "only_in_baseline",
        "only_in_candidate",
    ]
    assert set(probe.compare(one, other, fuzzy=True).df["verdict"].astype(str)) == {"same"}


def test_runs_without_a_common_step_are_matched_in_order_and_it_is_said():
    one = records.run([row(step=0), row(step=1)])
    other = records.run([row(step=5), row(step=6)])
    found = probe.compare(one, other)
    assert found.counts == {"same": 2}
    assert "no step in common" in found.notices[0]


def test_two_ranks_of_one_run_are_compared():
    run = records.run([row(rank=0), row(rank=1, max=2.5), row(rank=2)])
    assert probe.compare(run, ranks=(0, 1)).counts == {"diverged": 1}
    assert probe.compare(run, ranks=(0, 2)).counts == {"same": 1}
    with pytest.raises(SelectionError, match="rank 7"):
        probe.compare(run, ranks=(0, 7))


def test_checksums_decide_where_both_have_them():
    def run(text, **values):
        made = records.run([row(**values)])
        made.columns.arrays()["checksum"][:] = made.columns.tables.checksums.code(text)
        return made

    assert probe.compare(run("0a0b0c0d"), run("0a0b0c0d")).df["checksum_same"].item()
    other = probe.compare(run("0a0b0c0d"), run("ffffffff")).df
    assert not other["checksum_same"].item()
    assert other["verdict"].item() == "close"
    assert other["reason"].item().startswith("checksums alone differ: another order, last bits")
    rounded = probe.compare(run("0a0b0c0d"), run("ffffffff", mean=0.5 * (1 + 2.0**-26))).df
    assert rounded["verdict"].item() == "close"
    whole = [run(text, zero_count=1, dtype="int64") for text in ("0a0b0c0d", "ffffffff")]
    assert probe.compare(*whole).df["verdict"].item() == "diverged"
    signed = [run(text, zero_count=1) for text in ("0a0b0c0d", "ffffffff")]
    assert probe.compare(*signed).df["verdict"].item() == "close"  # a zero has two signs


def test_it_is_said_why_rows_are_alone(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with probe.watch(model, optimizer=optimizer, live=False) as run:
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    found = probe.compare(run, run.write_dump(tmp_path / "dump"))
    reasons = found.one_sided().set_index("module")["reason"]
    assert reasons["0"] == reasons["2"] == "rows of the optimizer, which the other run has not"
    assert reasons[""].iloc[0] == "not in the other run"
    assert "gradient of weight that the optimizer saw" in found._repr_html_().replace("&nbsp;", " ")


def test_only_what_is_called_more_often_is_said_to_be():
    def run(calls, leaf="0"):
        return records.run([row(call=call, leaf=leaf) for call in calls])

    def reasons(one, other):
        return probe.compare(one, other).one_sided().groupby("side")["reason"].first().to_dict()

    assert reasons(run([0]), run([0, 1])) == {"candidate": "called more often"}
    numbered = "the same tensors, under other numbers of calls or steps"
    both = {"baseline": numbered, "candidate": numbered}
    assert reasons(run([0, 1]), run([1, 2])) == both
    other = records.run([row(), row(leaf="1")])
    assert reasons(run([0]), other) == {"candidate": "tensors that the other run has not"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tolerance": 0}, "above 0"),
        ({"tolerance": "float31"}, "Known: float64"),
        ({"mapping": 3}, "`mapping` is 3"),
        ({"mapping": {"a": "c", "b": "c"}}, "two modules"),
        ({"ranks": (1,)}, "two numbers"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    run = records.run([row()])
    with pytest.raises(ConfigError, match=message):
        probe.compare(run, run, **options)


def test_one_run_alone_is_no_comparison():
    with pytest.raises(ConfigError, match="was given one run"):
        probe.compare(records.run([row()]))


def test_empty_runs_can_be_compared():
    found = probe.compare(records.run([]), records.run([]))
    assert (len(found), found.first_divergence(), found.fed_same.same) == (0, None, None)
    assert "nothing could be compared" in repr(found)
    assert repr(found).endswith(": no rows")
    assert "nothing could be compared" in found._repr_html_()


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        ([], [], "neither run has any rows"),
        ([row()], [], "the candidate has no rows"),
        ([], [row()], "the baseline has no rows"),
        ([row("a")], [row("b")], "no name is in both; `mapping=` says what is what"),
        ([row("a")], [row("a", role="input")], "both have the same modules, but no call or tensor"),
        ([row(status="meta")], [row()], "no numbers in the baseline: meta"),
    ],
)
def test_what_cannot_be_compared_is_said_with_the_cause(one, other, why):
    found = probe.compare(records.run(one), records.run(other))
    assert repr(found).startswith(f"! nothing could be compared: {why}")
    assert f"nothing could be compared: {why}" in found._repr_html_()


def test_functions_against_modules_are_said_to_be_of_two_levels():
    model, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
    sides = []
    for level in ("L1", "L0"):
        with probe.watch(model, level=level) as run:
            model(x)
        sides.append(run)
    assert "look alike" not in repr(probe.compare(*sides))
    said = " ".join(repr(probe.compare(*sides)).split())
    assert said.startswith(
        "! nothing could be compared: the baseline has functions, the candidate modules; "
        "record both at the same level"
    )


def test_html_is_escaped():
    one, other = records.run([row("<b>&")]), records.run([row("<b>&", max=9.0)])
    html = probe.compare(one, other)._repr_html_()
    assert "&lt;b&gt;&amp;" in html
    assert "<b>&" not in html


@pytest.mark.parametrize(("factor", "expected"), [(1.0, "close"), (1.01, "diverged")])
def test_what_a_dump_rounds_to_sixteen_bits_is_no_divergence(tmp_path, factor, expected):
    """msProbe writes Norm and Mean of float16 in float16."""
    here = records.run([row(dtype="float16", numel=10_000, shape=(100, 100), l2=128.06)])
    folder = here.write_dump(tmp_path / "dump", extras=False)
    (path,) = folder.rglob("dump.json")
    said = json.loads(path.read_text())
    (entry,) = said["data"].values()
    entry["output"][0]["Norm"] = float(np.float16(128.06 * factor))
    path.write_text(json.dumps(said))
    assert probe.compare(here, probe.read_dump(folder)).df["verdict"].tolist() == [expected]
