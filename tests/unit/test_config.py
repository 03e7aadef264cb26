"""Options are checked once, and every refusal says what would do."""

from __future__ import annotations

import dataclasses
import json
import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe_nb.config import checked
from probe_nb.errors import ConfigError, ProbeError
from probe_nb.keep import Keep

STEPS = [
    (None, range(40)),
    (3, [3]),
    ("3", [3]),
    ("0,10-12", [0, 10, 11, 12]),
    ("::10", [0, 10, 20, 30]),
    ("5:8", [5, 6, 7]),
    (":3", [0, 1, 2]),
    ("37:", [37, 38, 39]),
    ("1:20:6", [1, 7, 13, 19]),
    (" 1 , 2-3 ,", [1, 2, 3]),
    ([4, 8], [4, 8]),
    (range(0, 40, 20), [0, 20]),
    ({7}, [7]),
]


@pytest.mark.parametrize(("written", "chosen"), STEPS)
def test_steps_choose_what_they_say(written, chosen):
    wants = checked(steps=written).wants
    assert [n for n in range(40) if wants(n)] == list(chosen)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=5))
def test_numbers_of_steps_choose_themselves_however_large(numbers):
    wants = checked(steps=numbers).wants
    assert all(wants(n) for n in numbers)
    assert not wants(max(numbers) + 1)


@pytest.mark.parametrize(
    "steps",
    [
        "",
        ",",
        "one",
        "3-",
        "-3",
        "1.5",
        "a:b",
        "::0",
        "9-5",
        [],
        ["x"],
        [None],
        1.5,
        True,
        -1,
        [-1],
    ],
)
def test_steps_that_make_no_sense_are_refused_with_an_example(steps):
    with pytest.raises(ConfigError, match="steps"):
        checked(steps=steps)


@pytest.mark.parametrize("name", [5, b"x", ["a"], True])
def test_the_name_is_a_text(name):
    with pytest.raises(ConfigError, match="name"):
        checked(name=name)


@pytest.mark.parametrize("first_step", [-1, 1.0, "0", None, True, 2**30, 2**31])
def test_the_first_step_is_a_whole_number(first_step):
    with pytest.raises(ConfigError, match="first_step"):
        checked(first_step=first_step)


@pytest.mark.parametrize("micro_batches", [0, -2, 1.5, "4", True])
def test_micro_batches_are_a_whole_number_from_one(micro_batches):
    with pytest.raises(ConfigError, match="micro_batches"):
        checked(micro_batches=micro_batches)


ALL = (
    *("input", "output", "param", "buffer"),
    *("grad_output", "grad_input", "param_grad"),
    *("update", "state"),
)


@pytest.mark.parametrize(
    ("written", "roles"),
    [
        (None, ALL),
        ("output", ("output",)),
        ("grad_input, input", ("input", "grad_input")),
        (["param_grad", "param"], ("param", "param_grad")),
    ],
)
def test_roles_are_kept_in_their_own_order(written, roles):
    assert checked(roles=written).roles == roles


def test_an_unknown_role_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"`outputs`.*`output`"):
        checked(roles="outputs")


@pytest.mark.parametrize("option", ["select", "roles"])
def test_patterns_are_text(option):
    with pytest.raises(ConfigError, match=option):
        checked(**{option: [1]})


@pytest.mark.parametrize("option", ["select", "roles"])
@pytest.mark.parametrize("value", [7, object()])
def test_what_is_neither_text_nor_a_list_is_refused_too(option, value):
    with pytest.raises(ConfigError, match=option):
        checked(**{option: value})


@pytest.mark.parametrize("option", ["select", "roles", "keep"])
@pytest.mark.parametrize("value", ["", " , ", []])
def test_what_chooses_nothing_is_no_way_to_say_all(option, value):
    with pytest.raises(ConfigError, match=rf"`{option}` is .*chooses nothing"):
        checked(**{option: value})


@pytest.mark.parametrize("value", ["nan", True, 1])
def test_what_a_watch_can_stop_on_is_one_word(value):
    with pytest.raises(ConfigError, match=r"`stop_on`.*`nonfinite`"):
        checked(stop_on=value)


@pytest.mark.parametrize("value", ["absmax > 1", {"a": 1}, {1: "a"}, {"a": " "}, {"": "a"}])
def test_alerts_are_queries_by_name(value):
    with pytest.raises(ConfigError, match="`alerts`"):
        checked(alerts=value)


def test_what_hears_of_findings_can_be_called():
    with pytest.raises(ConfigError, match="`on_finding`"):
        checked(on_finding="print")


def test_patterns_are_split_at_commas_and_trimmed():
    assert checked(select="layers.*, !head ,").select == ("layers.*", "!head")
    assert checked(select=["a,b"]).select == ("a,b",)


class Trainer:
    """Holds what cannot be copied, as trainers do."""

    def __init__(self):
        self.lock = threading.Lock()

    def hear(self, finding):
        """Do nothing."""


def test_what_hears_of_findings_is_not_copied_and_so_can_belong_to_anything():
    trainer = Trainer()
    config = checked(on_finding=trainer.hear, alerts={"large": "absmax > 1"})
    written = config.as_dict()
    assert "on_finding" not in written
    assert config.on_finding.__self__ is trainer
    assert written["alerts"] == config.alerts
    assert written["alerts"] is not config.alerts


def test_a_config_is_frozen_and_can_be_written_as_json():
    config = checked(select="a,b", steps="::100", micro_batches=2, name="mine")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.name = "other"
    written = json.loads(json.dumps(config.as_dict(), allow_nan=False))
    assert written == {
        "level": "module",
        "apis": [],
        "select": ["a", "b"],
        "roles": list(ALL),
        "steps": "::100",
        "first_step": 0,
        "micro_batches": 2,
        "reduce_once": True,
        "token_range": None,
        "compiled": "stay",
        "recompute": False,
        "memory": 2**30,
        "name": "mine",
        "stop_on": None,
        "alerts": {},
        "keep": None,
        "stacks": False,
        "structure": False,
        "values": False,
        "checksum": None,
        "scope": None,
        "names": [],
        "one_way": None,
        "when": None,
        "ranks": None,
        "slices": [],
        "extras": {},
    }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"checksum": "md5"}, "`checksum` is 'md5'; give crc32 or xor, or None."),
        ({"when": "training"}, "`when` is 'training'; give train or eval, or None."),
        ({"scope": "fc1"}, "`scope` is 'fc1'"),
        ({"scope": ("fc1", "")}, "`scope` is ('fc1', '')"),
        ({"ranks": "first"}, "`ranks` is 'first'"),
        ({"slices": [{"dim": 0, "stop": 1}]}, "`slices` is [{'dim': 0, 'stop': 1}]"),
        ({"slices": [{"dim": 0, "begin": "1"}]}, "`slices` is [{'dim': 0, 'begin': '1'}]"),
        ({"slices": "1:0"}, "`slices` is '1:0'"),
        ({"names": ()}, "`names` is ()"),
        ({"slices": [{"dim": -1, "begin": 1, "end": 2}]}, "`slices` is"),
        ({"slices": []}, "`slices` is []"),
        ({"slices": [{"dim": 0}]}, "cuts nothing"),
        ({"slices": "1::"}, "cuts nothing"),
        ({"slices": "0:3:1"}, "leaves nothing"),
        ({"slices": "0:3:3"}, "leaves nothing"),
        ({"slices": "0:-1:-3"}, "leaves nothing"),
        ({"slices": "0:-3:0"}, "leaves nothing"),
        ({"slices": "0:0:0"}, "leaves nothing"),
        ({"slices": [{"dim": 0, "begin": 8, "size": 8}]}, "leaves nothing"),
        ({"slices": [{"dim": 0, "begin": -2, "end": 6, "size": 8}]}, "leaves nothing"),
        ({"level": "api", "roles": "param"}, "functions have grad_input, grad_output, input"),
        ({"level": "L1", "roles": "param_grad", "backward_only": True}, "functions have"),
        ({"forward_only": True, "backward_only": True}, "leave nothing"),
        ({"forward_only": True, "roles": "grad_input"}, "`forward_only` leaves nothing"),
    ],
)
def test_what_chooses_is_checked(options, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        checked(**options)


@pytest.mark.parametrize(
    "cut", ["0:0:1", "0:-3:-1", "0:-3:", "0:2:-1", "0:-4:2", "0::2", "0::-1", "1:5:"]
)
def test_a_cut_that_leaves_something_of_some_size_is_taken(cut):
    ((_, begin, end, _),) = checked(slices=cut).slices
    assert any(range(n)[begin:end] for n in range(10))


OF_TRUTH = ["reduce_once", "recompute", "stacks", "structure", "values"]


@pytest.mark.parametrize("option", [*OF_TRUTH, "forward_only", "backward_only"])
@pytest.mark.parametrize("value", ["yes", "", 1, 0, None, [True]])
def test_what_is_asked_as_yes_or_no_is_no_text_and_no_number(option, value):
    with pytest.raises(ConfigError, match=rf"`{option}` is .*; give True or False"):
        checked(**{option: value})


@pytest.mark.parametrize(
    ("to", "options"),
    [
        (
            {"structure": True},
            {
                "alerts": {"a": "l2 > 1"},
                "on_finding": print,
                "keep": "fc1",
                "checksum": "xor",
                "stop_on": "nonfinite",
                "extras": "hist",
                "slices": [{"dim": 0, "begin": 0, "end": 1}],
            },
        ),
        (
            {"level": "debug"},
            {
                "select": "fc1",
                "scope": ("a", "b"),
                "names": "fc1",
                "when": "train",
                "roles": "input",
                "values": True,
            },
        ),
    ],
)
def test_options_that_would_do_nothing_are_refused_by_name(to, options):
    assert checked(**to, memory="1MiB")
    for name, value in options.items():
        with pytest.raises(ConfigError, match=f"give it without `{name}`"):
            checked(**to, **{name: value})


def test_at_level_debug_saved_values_alone_can_be_kept():
    with pytest.raises(ConfigError, match=r"of which `keep` asks for nothing: .*roles=.value"):
        checked(level="debug", keep="*")
    keep = Keep("*", roles="value")
    assert checked(level="debug", keep=keep).keep is keep


def test_one_way_leaves_its_roles():
    assert checked(forward_only=True).roles == ("input", "output", "param", "buffer")
    assert checked(backward_only=True).roles == ("grad_output", "grad_input", "param_grad")
    assert checked(scope="fc1, fc2").scope == ("fc1", "fc2")
    assert [rank for rank in range(8) if checked(ranks="0,4-6").wants_rank(rank)] == [0, 4, 5, 6]


def test_a_config_error_is_a_value_error_and_one_of_ours():
    assert issubclass(ConfigError, ValueError)
    assert issubclass(ConfigError, ProbeError)


@pytest.mark.parametrize(
    ("given", "amount"),
    [
        ("1GiB", 2**30),
        ("1.5 gib", 3 * 2**29),
        ("200MB", 200_000_000),
        ("4 kB", 4000),
        ("4096", 4096),
        ("7 B", 7),
        (4096, 4096),
        (None, None),
        ("none", None),
    ],
)
def test_memory_is_a_number_of_bytes_or_a_text_with_a_unit(given, amount):
    assert checked(memory=given).memory == amount


@pytest.mark.parametrize(
    "given",
    [
        "",
        "much",
        "GiB",
        "-1GiB",
        "1 GiBit",
        "0",
        "0.1 B",
        "1e9",
        "nan",
        "1,5GiB",
        0,
        -5,
        1.5,
        True,
        [],
    ],
)
def test_memory_that_is_no_amount_is_refused_in_words(given):
    with pytest.raises(ConfigError, match=r"`memory` is .*512MiB"):
        checked(memory=given)
