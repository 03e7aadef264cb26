"""config.json: every key of msProbe's is understood, or refused with the reason."""

from __future__ import annotations

import json
import re

import pytest

from probe_nb.debugger import collecting, config
from probe_nb.errors import ConfigError

PACKAGED = {  # what msProbe itself ships, and what the seed's documentation calls the default
    "task": "statistics",
    "dump_path": "./dump_path",
    "rank": [],
    "step": [],
    "level": "L1",
    "extra_info": True,
    "async_dump": False,
    "statistics": {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"},
    "tensor": {"scope": [], "list": [], "data_mode": ["all"]},
    "acc_check": {"white_list": [], "black_list": [], "error_data_path": "./"},
}


@pytest.fixture
def written(tmp_path):
    """Write a config.json of these values, and return its path."""

    def write(**values):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"dump_path": str(tmp_path / "out")} | values))
        return str(path)

    return write


def of_task(written, task="statistics", **section):
    return config.read(written(task=task, **{task: section}))


def test_without_a_file_it_is_statistics_of_functions_into_dump_path():
    settings = config.read()
    assert (settings.task, settings.level, settings.dump_path) == (
        "statistics",
        "L1",
        "./dump_path",
    )
    assert settings.steps is None
    assert settings.ranks is None
    assert settings.risk_level == "FOCUS"
    assert settings.extra_info
    assert settings.notices == ()


def test_the_file_that_msprobe_ships_says_the_same(written):
    assert config.read(written(**PACKAGED)) == config.read()


def test_arguments_count_for_more_than_the_file(written):
    path = written(task="statistics", level="L0", step=[1])
    settings = config.read(path, task="tensor", dump_path="elsewhere", level="mix", step=[7])
    assert (settings.task, settings.level, settings.dump_path) == ("tensor", "mix", "elsewhere")
    assert [n for n in range(10) if settings.wants(n)] == [7]


def test_the_section_is_that_of_the_task_that_is_asked_for(written):
    path = written(statistics={"list": ["relu"]}, tensor={"list": ["conv"]})
    assert config.read(path).names == ("relu",)
    assert config.read(path, task="tensor").names == ("conv",)


@pytest.mark.parametrize("key", ["step", "rank"])
def test_steps_and_ranks_are_numbers_and_ranges(written, key):
    settings = config.read(written(**{key: [0, "3", "5-7"]}))
    wants = settings.wants if key == "step" else settings.wants_rank
    assert [n for n in range(10) if wants(n)] == [0, 3, 5, 6, 7]


@pytest.mark.parametrize(
    "value",
    [3, "3", [1.5], ["a"], ["5-3"], [-1], [10**7], [True], [None], [[1]], ["1" * 5000], ["²"]],
)
def test_other_steps_are_refused(written, value):
    with pytest.raises(ConfigError, match="step"):
        config.read(written(step=value))


FORWARD = {"input", "output", "param"}
BACKWARD = {"grad_output", "grad_input"}


@pytest.mark.parametrize(
    ("modes", "roles"),
    [
        (["all"], FORWARD | BACKWARD),
        ([], FORWARD | BACKWARD),
        (["forward"], FORWARD),
        (["backward"], BACKWARD),
        (["input"], {"input", "grad_output"}),
        (["output"], {"output", "param", "grad_input"}),
        (["forward", "input"], {"input"}),
        (["forward", "output"], {"output", "param"}),
        (["backward", "input"], {"grad_output"}),
        (["backward", "output"], {"grad_input"}),
        (["forward", "backward"], FORWARD | BACKWARD),
        (["forward", "backward", "output"], {"output", "param", "grad_input"}),
    ],
)
def test_data_mode_chooses_directions_and_sides(written, modes, roles):
    """A parameter's gradient is of neither: msProbe writes it in any case."""
    assert set(of_task(written, data_mode=modes).roles) == roles | {"param_grad"}


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"data_mode": ["all", "input"]}, "`all` stands alone"),
        ({"data_mode": "all"}, "`data_mode` is 'all'; give a list"),
        ({"data_mode": ["inputs"]}, "`data_mode` is 'inputs'; give all, input"),
        ({"summary_mode": "crc"}, "`summary_mode` is 'crc'; give statistics, md5 or xor"),
        ({"list": "relu"}, "`list` is 'relu'; give a list of texts"),
        ({"tensor_list": [1]}, "`tensor_list` is [1]; give a list of texts"),
        ({"scope": ["Functional.relu.0.forward"]}, "give two names"),
        ({"scope": ["relu", "gelu"]}, "such as `Functional.relu.0.forward`"),
        ({"scope": ["Module.a.Linear.forward.0"] * 2}, "at level L1 give the whole name"),
        ({"slice": {"dim": 0}}, "`slice` is {'dim': 0}"),
        ({"slice": [{"dim": -1}]}, "`dim` in `slice` is -1"),
        ({"slice": [{"dim": 0, "begin": "0"}]}, "`begin` in `slice` is '0'"),
        ({"slice": [{"dim": 0, "stop": 1}]}, "`stop` in `slice` is not known"),
        ({"request_id": "7"}, "Cut the tensors with `slice`"),
        ({"lists": ["relu"]}, "`lists` in `statistics` of config.json is not known. The closest is `list`."),
    ],
)  # fmt: skip
def test_a_section_that_makes_no_sense_is_refused_in_words(written, section, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        of_task(written, **section)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"task": "overall"}, "`task` is 'overall'; give statistics, tensor or structure"),
        ({"task": "acc_check"}, "probe.compare"),
        ({"task": "diff_check"}, "probe.compare"),
        ({"task": "nan_check"}, "first_nonfinite"),
        ({"task": "free_benchmark"}, "has it no more"),
        ({"level": "L2"}, "The level `L2` is not done here"),
        ({"level": "L3"}, "`level` is 'L3'; give L0, L1, mix or debug"),
        ({"dump_path": 5}, "`dump_path` is 5"),
        ({"dump_path": None}, "`dump_path` is missing"),
        ({"extra_info": 1}, "`extra_info` is 1; give true or false"),
        ({"async_dump": "yes"}, "`async_dump` is 'yes'; give true or false"),
        ({"dump_enable": "on"}, "`dump_enable` is 'on'; give true or false"),
        ({"precision": "medium"}, "`precision` is 'medium'; give high or low"),
        ({"risk_level": "LOW"}, "`risk_level` is 'LOW'; give CORE, FOCUS or ALL"),
        ({"custom_op_namespaces": "npu"}, "`custom_op_namespaces` is 'npu'"),
        ({"load": {"path": "x", "modules": ["Module.a.A.forward.0"]}}, "never changed here"),
        ({"levle": "L0"}, "`levle` in config.json is not known. The closest is `level`."),
        ({"statistics": []}, "`statistics` in config.json is []; give an object"),
        ({"async_dump": True, "task": "tensor"}, "needs names in `list`"),
        ({"async_dump": True, "statistics": {"summary_mode": "md5"}}, "cannot be used with"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(written, values, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        config.read(written(**values))


def test_what_msprobe_passes_over_is_noticed(written):
    settings = config.read(written(seed=1, is_deterministic=True))
    assert settings.notices == (
        "`seed` in config.json changes nothing: call `seed_all(seed)` instead.",
        "`is_deterministic` in config.json changes nothing: call `seed_all(mode=True)` instead.",
    )


def test_sections_of_other_tasks_are_not_read(written):
    others = {"acc_check": {"white_list": 5}, "nan_check": {}, "tensor": {"nonsense": 1}}
    assert config.read(written(**others)).notices == ()


def test_the_structure_is_of_modules(written):
    settings = config.read(written(task="structure", level="L1"))
    assert settings.level == "mix"
    assert settings.notices == ("The task `structure` has no level `L1`: it was taken as `mix`.",)
    assert config.read(written(task="structure", level="L0")).level == "L0"


def test_a_slice_of_a_structure_is_noticed(written):
    cut = {"slice": [{"dim": 0, "begin": 0, "end": 1}]}
    settings = config.read(written(task="structure", level="L0", structure=cut))
    assert settings.notices == ("The task `structure` reads no tensor: `slice` cuts none.",)
    assert collecting.options(settings).slices == ()


def test_a_scope_has_whole_names_of_calls(written):
    names = ["Module.a.Linear.forward.0", "Module.b.ReLU.backward.1"]
    path = written(level="L0", statistics={"scope": names})
    assert config.read(path).scope == tuple(names)
    names = ["Functional.relu.0.forward", "Module.b.ReLU.backward.1"]
    path = written(level="mix", statistics={"scope": names})
    assert config.read(path).scope == tuple(names)


def test_a_path_may_have_any_name(written):
    assert config.read(written(dump_path="精度 数据/Untitled Folder+1")).dump_path.startswith(
        "精度"
    )


@pytest.mark.parametrize("content", ["", "{", "[]", '"a"', "{'task': 1}", "\xff"])
def test_a_file_that_is_no_config_is_refused(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"config\.json"):
        config.read(str(path))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        config.read(str(tmp_path / "config.json"))
    with pytest.raises(ConfigError, match="`config_path` is 5"):
        config.read(5)


@pytest.mark.parametrize("summary", ["statistics", "md5", "xor"])
@pytest.mark.parametrize("level", ["L0", "L1", "mix", "debug"])
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_every_kind_of_dump_can_be_asked_for(written, task, level, summary):
    section = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": summary}
    settings = config.read(written(task=task, level=level, rank=[], step=[], **{task: section}))
    assert (settings.task, settings.level, settings.summary_mode) == (task, level, summary)
    assert settings.keeps_tensors is (task == "tensor")


def test_a_file_that_an_editor_began_with_a_mark_is_read(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"dump_path": "out", "level": "mix"}', encoding="utf-8-sig")
    assert config.read(str(path)).level == "mix"
