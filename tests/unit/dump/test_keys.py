"""The names of msProbe: what is read is what is written."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from probe_nb.dump.keys import Key, parse, spell

word = st.text("abcXYZ019_-ß", min_size=1, max_size=6)
path = st.lists(word, min_size=1, max_size=4).map(".".join)
call = st.integers(0, 999_999_999)
way = st.sampled_from(["forward", "backward"])
index = st.none() | st.integers(0, 99)
module_prefix = st.sampled_from(["Module", "Cell"])


@st.composite
def keys(draw):
    kind = draw(st.sampled_from(["module", "parameters_grad", "api", "debug"]))
    if kind == "module":
        name = draw(st.just("") | path)
        return Key(kind, name, draw(module_prefix), draw(word), draw(way), draw(call), draw(index))
    if kind == "parameters_grad":
        number = draw(st.none() | call)
        return Key(
            kind, draw(path), draw(module_prefix), draw(word), "backward", number, draw(index)
        )
    if kind == "api":
        prefix = draw(word.filter(lambda text: text not in {"Module", "Cell"}))
        return Key(kind, draw(path), prefix, direction=draw(way), call=draw(call))
    name = draw(path)
    assume(not name.endswith("_grad"))
    return Key(kind, name, direction=draw(way), call=draw(call))


@given(keys())
def test_what_is_spelled_is_read_as_the_same(key):
    assert parse(spell(key), listed=key.model is not None) == key


@given(st.text("Modulefrwadbck.019_gp", max_size=40) | st.text(max_size=30), st.booleans())
def test_what_is_read_is_spelled_as_it_was(text, listed):
    key = parse(text, listed=listed)
    if key is not None:
        assert spell(key) == text


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (
            "Module.cnn.features.0.Conv2d.forward.0",
            Key("module", "cnn.features.0", "Module", "Conv2d"),
        ),
        ("Module.Linear.backward.12", Key("module", "", "Module", "Linear", "backward", 12)),
        ("Cell.net.Dense.backward.1", Key("module", "net", "Cell", "Dense", "backward", 1)),
        (
            "Module.conv2.Conv2d.parameters_grad",
            Key("parameters_grad", "conv2", "Module", "Conv2d", "backward", None),
        ),
        (
            "Module.conv2.Conv2d.parameters_grad.1",
            Key("parameters_grad", "conv2", "Module", "Conv2d", "backward", 1),
        ),
        (
            "Functional.linear.3.backward",
            Key("api", "linear", "Functional", direction="backward", call=3),
        ),
        ("Torch.linalg.norm.0.forward", Key("api", "linalg.norm", "Torch")),
        ("Tensor.__add__.2.forward", Key("api", "__add__", "Tensor", call=2)),
        ("h.1.mid.0.debug", Key("debug", "h.1.mid")),
        ("loss_grad.4.debug", Key("debug", "loss", direction="backward", call=4)),
        ("_grad.0.debug", Key("debug", "_grad")),
    ],
)
def test_each_kind_of_name_is_read(text, key):
    assert parse(text) == key


def test_with_a_list_of_models_the_index_is_taken_off():
    assert parse("Module.0.1.Linear.forward.0", listed=True) == Key(
        "module", "1", "Module", "Linear", model=0
    )
    assert parse("Module.0.Linear.forward.0", listed=True) == Key(
        "module", "", "Module", "Linear", model=0
    )
    assert parse("Module.fc.Linear.forward.0", listed=True) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "Module", "Module.", "Module.forward.0", "Module.a.Linear.forward", "fc.Linear"),
        *("Module.a.Linear.forward.01", "Module.a.Linear.forward.-1", "Module.a.Linear.forward.0 "),
        *("Module.a.Linear.forward.99999999999999999999", "Module.a.Linear.forward.٣", ".0.debug"),
        *(
            "Functional.linear.forward.0",
            "Functional.0.forward",
            "Module.relu.0.forward",
            "x.debug",
        ),
    ],
)
def test_what_is_no_name_of_msprobe_is_none(text):
    assert parse(text) is None
