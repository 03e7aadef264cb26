"""API level: which calls of functions have rows, under which names, with which numbers."""

# ruff: noqa: PLW0108 - how a call is written is what is tested

from __future__ import annotations

import functools
import math
import operator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn, relu
from torch.nn.functional import gelu

import probe_nb as probe
from probe_nb.errors import ConfigError, SelectionError
from tests.models import no_faults


def watched(model=None, **options):
    return probe.watch(model, **{"level": "api", "apis": "all", "live": False} | options)


def called(run, **filters):
    """Return the calls in their order: (api, call)."""
    rows = run.frame(**filters)
    return list(dict.fromkeys(zip(rows["api"].astype(str), rows["call"], strict=True)))


def names(run):
    return [name for name, _ in called(run)]


def x():
    return torch.tensor([[1.0, -2.0], [3.0, 0.5]])


HALF = 0.5
SPELT = [  # how a call is written, and its name: those of msProbe 26.2 unless marked
    (lambda x: F.relu(x), "Functional.relu"),
    (lambda x: torch.relu(x), "Torch.relu"),
    (lambda x: relu(x), "Torch.relu"),
    (lambda x: gelu(x), "Functional.gelu"),
    (lambda x: x.relu(), "Tensor.relu"),
    (lambda x: F.sigmoid(x), "Functional.sigmoid"),
    (lambda x: torch.sigmoid(x), "Torch.sigmoid"),
    (lambda x: x.sigmoid(), "Tensor.sigmoid"),
    (lambda x: F.tanh(x), "Functional.tanh"),
    (lambda x: x + 1, "Tensor.__add__"),
    (lambda x: 1 + x, "Tensor.__radd__"),
    (lambda x: x + x, "Tensor.__add__"),
    (lambda x: x.add(1), "Tensor.add"),
    (lambda x: x.__add__(1), "Tensor.__add__"),
    (lambda x: torch.add(x, 1), "Torch.add"),
    (lambda x: 1 - x, "Tensor.__rsub__"),
    (lambda x: x - 1, "Tensor.__sub__"),
    (lambda x: 2 * x, "Tensor.__rmul__"),
    (lambda x: x * 2, "Tensor.__mul__"),
    (lambda x: HALF * x, "Tensor.__rmul__"),
    (lambda x: x * HALF, "Tensor.__mul__"),
    (lambda x: math.sqrt(2) * (x), "Tensor.__rmul__"),
    (lambda x: (x) * math.sqrt(2), "Tensor.__mul__"),
    (lambda x: x / 2, "Tensor.__truediv__"),
    (lambda x: 2 / x, "Tensor.__rtruediv__"),  # msProbe: what it is made of
    (lambda x: x // 2, "Tensor.__floordiv__"),
    (lambda x: x % 2, "Tensor.__mod__"),
    (lambda x: x**2, "Tensor.__pow__"),
    (lambda x: 2**x, "Tensor.__rpow__"),
    (lambda x: x @ x, "Tensor.__matmul__"),
    (lambda x: x.matmul(x), "Tensor.matmul"),
    (lambda x: torch.matmul(x, x), "Torch.matmul"),
    (lambda x: x > 0, "Tensor.__gt__"),
    (lambda x: 0 < x, "Tensor.__gt__"),  # noqa: SIM300 - what is tested
    (lambda x: x.gt(0), "Tensor.gt"),
    (lambda x: x <= 0, "Tensor.__le__"),
    (lambda x: x == 0, "Tensor.__eq__"),
    (lambda x: x != 0, "Tensor.__ne__"),
    (lambda x: x.eq(0), "Tensor.eq"),
    (lambda x: -x, "Tensor.__neg__"),  # not in msProbe
    (lambda x: x[0], "Tensor.__getitem__"),  # not in msProbe
    (lambda x: x.__setitem__(0, 1.0), "Tensor.__setitem__"),
    (lambda x: operator.iadd(x, 1), "Tensor.__iadd__"),
    (lambda x: x.add_(1), "Tensor.add_"),
    (lambda x: functools.reduce(lambda a, b: a * b, [x, x]), "Tensor.__mul__"),
    (lambda x: torch.cat([x, x]), "Torch.cat"),
    (lambda x: F.linear(x, x), "Functional.linear"),
    (lambda x: F.conv1d(x[None], x[:, :, None]), "Functional.conv1d"),
    (lambda x: F.max_pool1d(x[None], 2), "Functional.max_pool1d"),
    (lambda x: F.upsample_nearest(x[None], scale_factor=2), "Functional.upsample_nearest"),
    (lambda x: torch.linalg.norm(x), "Torch.norm"),
    (lambda x: torch.einsum("ij->ji", x), "Torch.einsum"),
    (lambda x: torch.ops.aten.relu(x), "Aten.relu"),
    (lambda x: torch.ops.aten.relu.default(x), "Aten.relu.default"),
    (lambda x: x.softmax(0), "Tensor.softmax"),
    (lambda x: F.softmax(x, 0), "Functional.softmax"),
]


@pytest.mark.filterwarnings("ignore:`nn.functional.upsample")
@pytest.mark.parametrize(
    ("call", "name"), SPELT, ids=[f"{n}:{s}" for n, (_, s) in enumerate(SPELT)]
)
def test_a_call_has_the_name_of_how_it_is_written(call, name):
    given = x()
    with no_faults(), watched() as run:
        call(given)
    assert names(run)[-1] == name


def test_several_operators_on_one_line_are_told_apart():
    given, half, layer = x(), 0.5, nn.Module()
    layer.scale = 2.0
    with watched() as run:
        0.5 * given * (1 + torch.tanh(math.sqrt(2 / math.pi) * (given + 0.25 * given)))
        half * given + layer.scale * given - given * half
    assert called(run) == [
        ("Tensor.__rmul__", 0),
        ("Tensor.__rmul__", 1),
        ("Tensor.__add__", 0),
        ("Tensor.__rmul__", 2),
        ("Torch.tanh", 0),
        ("Tensor.__radd__", 0),
        ("Tensor.__mul__", 0),
        ("Tensor.__rmul__", 3),
        ("Tensor.__rmul__", 4),
        ("Tensor.__add__", 1),
        ("Tensor.__mul__", 1),
        ("Tensor.__sub__", 0),
    ]


def test_augmented_assignments_are_in_place_and_their_inputs_are_measured_before():
    given = x()
    with watched() as run:
        given += 1
        given -= 1
        given *= 2
        given[0] = 100.0
        torch.add(given, 1, out=given)
    assert names(run) == [
        "Tensor.__iadd__",
        "Tensor.__isub__",
        "Tensor.__imul__",
        "Tensor.__setitem__",
        "Torch.add",
    ]
    rows = run.frame(leaf="0")
    largest = list(zip(rows["role"].astype(str), rows["max"], strict=True))
    assert largest == [
        ("input", 3.0), ("output", 4.0), ("input", 4.0), ("output", 3.0), ("input", 3.0),
        ("output", 6.0), ("input", 6.0), ("output", 100.0), ("input", 100.0), ("output", 101.0),
    ]  # fmt: skip
    assert run.frame(leaf="kwargs.out")["max"].tolist() == [100.0]


def test_what_only_asks_is_no_call():
    given = x().requires_grad_()
    with watched() as run:
        _ = given.shape, given.grad, given.T, given.device, given.data, given.dtype, len(given)
        _ = given.dim(), given.size(), repr(given), given.is_contiguous(), given.requires_grad_()
        with torch.no_grad():
            pass
    assert names(run) == []


def test_what_a_function_calls_is_part_of_it():
    attention = nn.MultiheadAttention(4, 2)
    q = torch.randn(3, 1, 4)
    with watched(apis="focus") as run:
        attention(q, q, q)
    assert names(run) == ["Functional.multi_head_attention_forward"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.act = nn.ReLU()

    def forward(self, given):
        return torch.exp(self.act(self.fc(given)))


def test_a_call_is_in_the_innermost_module_and_counted_over_all():
    model, given = Net(), x()
    with watched(model) as run:
        for _ in range(2):
            F.relu(model(given))
            run.step()
    places = run.frame(role="output")[["step", "model", "module", "type", "api", "call"]]
    found = list(places.itertuples(index=False, name=None))
    once = [
        ("model", "fc", "Linear", "Functional.linear", 0),
        ("model", "act", "ReLU", "Functional.relu", 0),
        ("model", "", "Net", "Torch.exp", 0),
        ("", "", "", "Functional.relu", 1),
    ]
    assert found == [(step, *each) for step in (0, 1) for each in once]


def test_select_roles_and_steps_hold_for_functions():
    model = Net()
    with watched(model, select="fc", roles="output", steps="1") as run:
        for _ in range(3):
            F.relu(model(x()))
            run.step()
    rows = run.df
    assert list(zip(rows["step"], rows["module"], rows["api"], rows["role"], strict=True)) == [
        (1, "fc", "Functional.linear", "output")
    ]


def test_mixed_level_has_both_in_the_order_in_which_they_ran():
    model, given = Net(), x()
    with watched(model, level="mix", roles="input,output") as run:
        model(given)
    rows = run.df
    assert list(zip(rows["module"], rows["api"], rows["role"], rows["leaf"], strict=True))[:8] == [
        ("", "", "input", "0"),
        ("fc", "", "input", "0"),
        ("fc", "Functional.linear", "input", "0"),
        ("fc", "Functional.linear", "input", "1"),
        ("fc", "Functional.linear", "input", "2"),
        ("fc", "Functional.linear", "output", "0"),
        ("fc", "", "output", "0"),
        ("act", "", "input", "0"),
    ]
    assert (run.df["status"] == "ok").all()


def test_histories_and_inputs_of_a_module_are_its_own_unless_a_function_is_named():
    model = Net()
    with watched(model, level="mix") as run:
        model(x())
    assert run.inputs("fc")["api"].tolist() == [""]
    assert len(run.inputs("fc")) == 1
    weight = run.history("fc", "input", "max", api="Functional.linear", leaf="1")
    assert weight.tolist() == [pytest.approx(model.fc.weight.max().item())]
    assert run.histogram("fc", "input").total == 4
    assert run.histogram("fc", "input", api="Functional.linear").total == 4 + 4 + 2
    with watched(model) as run:
        model(x())
        F.relu(x()).exp()
    with pytest.raises(SelectionError, match="Give one as `api=`"):
        run.history("", "output")
    assert run.history("", "output", "max", api="Tensor.exp").tolist() == [
        pytest.approx(math.exp(3), rel=1e-6)
    ]


# -- gradients --------------------------------------------------------------------------------------


def composites():
    """Yield functions that make several nodes, and what they are given."""
    g = torch.Generator().manual_seed(0)

    def t(*shape):
        return torch.randn(*shape, generator=g, requires_grad=True)

    yield F.cross_entropy, (t(3, 4), torch.tensor([0, 1, 2]))
    yield F.linear, (t(2, 3, 4), t(5, 4), t(5))
    yield F.scaled_dot_product_attention, (t(2, 3, 4), t(2, 3, 4), t(2, 3, 4))
    yield F.normalize, (t(3, 4),)
    yield F.layer_norm, (t(3, 4), (4,), t(4), t(4))
    yield torch.einsum, ("ij,jk->ik", t(3, 4), t(4, 2))
    yield torch.matmul, (t(2, 3, 4), t(4, 2))
    yield torch.cat, ([t(2, 2), t(2, 2)],)
    yield torch.linalg.norm, (t(3, 4),)
    yield torch.Tensor.__rtruediv__, (t(3), 2.0)
    yield F.huber_loss, (t(3, 4), t(3, 4))
    yield F.gaussian_nll_loss, (t(3), t(3), torch.ones(3))


@pytest.mark.parametrize(
    ("function", "args"), list(composites()), ids=lambda v: getattr(v, "__name__", "")
)
def test_gradients_are_the_true_ones_of_the_functions_own_inputs(function, args):
    asked = [
        t for a in args for t in (a if isinstance(a, list) else [a]) if isinstance(t, torch.Tensor)
    ]
    asked = [t for t in asked if t.requires_grad]
    with no_faults(), watched(roles="grad_input,grad_output") as run:
        out = function(*args)
        out.square().sum().backward()
    truth = torch.autograd.grad(function(*args).square().sum(), asked)
    rows = run.frame(call=0, role="grad_input", api=names(run)[-1])
    assert len(rows) == len(truth)
    wanted = sorted(float(g.double().square().sum().sqrt()) for g in truth)
    assert sorted(rows["l2"]) == pytest.approx(wanted, rel=2e-5, abs=1e-12)
    arriving = run.frame(role="grad_output", api=names(run)[-1])
    assert arriving["l2"].tolist() == pytest.approx(
        [float(2 * out.detach().double().norm())], rel=1e-5
    )


def test_the_gradients_of_multi_head_attention_are_those_of_its_own_inputs():
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(4, 2)
    q, k, v = (torch.randn(3, 2, 4, requires_grad=True) for _ in range(3))
    with no_faults(), watched(attention, apis="core") as run:
        attention(q, k, v)[0].square().sum().backward()
    weights = [attention.in_proj_weight, attention.in_proj_bias, *attention.out_proj.parameters()]
    inputs = [q, k, v, *weights]
    truth = torch.autograd.grad(attention(q, k, v)[0].square().sum(), inputs)
    rows = run.frame(role="grad_input", api="Functional.multi_head_attention_forward")
    wanted = sorted(float(g.double().norm()) for g in truth)
    assert sorted(rows["l2"]) == pytest.approx(wanted, rel=2e-5, abs=1e-9)


def test_an_in_place_function_has_the_gradients_of_what_it_was_given():
    given = torch.tensor([1.0, -1.0, 2.0], requires_grad=True)
    with watched() as run:
        hidden = given * 3
        hidden.relu_()
        (hidden * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    rows = run.frame(api="Tensor.relu_", direction="backward")
    assert dict(zip(rows["role"].astype(str), rows["l2"], strict=True)) == {
        "grad_output": pytest.approx(math.sqrt(14)),
        "grad_input": pytest.approx(math.sqrt(10)),
    }
    assert given.grad.tolist() == [3.0, 0.0, 9.0]


# -- the choice -------------------------------------------------------------------------------------


def everything(given):
    F.linear(given, given)
    given + 1
    given.view(-1)


@pytest.mark.parametrize(
    ("apis", "found"),
    [
        ("core", ["Functional.linear"]),
        ("focus", ["Functional.linear", "Tensor.__add__"]),
        (None, ["Functional.linear", "Tensor.__add__"]),
        ("all", ["Functional.linear", "Tensor.__add__", "Tensor.view"]),
        ("core, Tensor.view", ["Functional.linear", "Tensor.view"]),
        (["focus", "!Functional.*"], ["Tensor.__add__"]),
        ("!Functional.linear", ["Tensor.__add__"]),
        ("Tensor.*", ["Tensor.__add__", "Tensor.view"]),
        ("mine.double, Distributed.all_reduce, Tensor.view", ["Tensor.view"]),
    ],
)
def test_which_functions_are_recorded_can_be_chosen(apis, found):
    given = x()
    with watched(apis=apis) as run:
        everything(given)
    assert names(run) == found


def test_a_file_of_names_in_sections_chooses_functions(tmp_path):
    file = tmp_path / "ops.yaml"
    file.write_text(OPS)
    given = x()

    def use():
        everything(given)
        torch.linalg.norm(given)
        torch.conv1d(given[None], given[None])
        given.sub_(1)
        given.dim()

    whole = ["Functional.linear", "Tensor.view", "Torch.norm", "Functional.conv1d", "Tensor.sub_"]
    with watched(apis=str(file)) as run:
        use()
    assert names(run) == whole
    with watched(apis=[str(file), "!Functional.linear", "Tensor.__add__"]) as run:
        use()
    assert names(run) == ["Tensor.__add__", *whole[1:]]


OPS = """\
# as msProbe's list begins, cut by hand
functional: # the name of the section
  - linear
tensor:
  - view
  - sub_
  - dim            # only asks: no row
  - gone_in_this_torch
torch:
  - linalg.norm
  - conv1d         # the same function as in nn.functional, where its name is taken from
_VF:
aten:
  - signbit
torch_npu:
  - npu_rms_norm
distributed:
  - all_reduce
npu_distributed:
  - isend
mindspeed:
  - gmm.npu_gmm
"""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"apis": "cores"}, ["`cores`", "core, focus, all", "Functional.relu", "`core`"]),
        ({"apis": "Functional.rleu"}, ["`Functional.rleu`", "no function", "`Functional.relu`"]),
        ({"apis": "core, Tensor.__ad__"}, ["`Tensor.__ad__`", "`Tensor.__add__`"]),
        ({"apis": "!Torch.matmull"}, ["`!Torch.matmull`", "`Torch.matmul`"]),
        ({"apis": "Funtional.relu"}, ["`Funtional.relu`", "`Functional.relu`"]),
        ({"apis": "functional.relu"}, ["`functional.relu`", "`Functional.relu`"]),
        ({"apis": "Functional.reluu*"}, ["`Functional.reluu*`", "no function"]),
        ({"apis": "Tensor.dim"}, ["`Tensor.dim`", "only asks", "never recorded"]),
        ({"apis": "missing.yaml"}, ["missing.yaml", "cannot be read"]),
        ({"apis": "core", "level": "module"}, ["`apis`", 'level="api"']),
        ({"level": "L3"}, ["`level`", "L3", "mix"]),
    ],
)
def test_a_choice_that_makes_no_sense_is_told(options, words):
    with pytest.raises(ConfigError) as caught, watched(nn.Linear(1, 1), **options):
        pass
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(("alias", "level"), [("L0", "module"), ("L1", "api"), ("mix", "mix")])
def test_levels_have_the_names_of_msprobe_too(alias, level):
    with probe.watch(nn.Linear(1, 1), level=alias, live=False) as run:
        pass
    assert run.info.config["level"] == level


def test_statistics_are_exact():
    given = torch.from_numpy(np.random.default_rng(0).normal(size=(50, 40)).astype(np.float32))
    with watched() as run:
        given.exp()
    row = run.frame(role="output").iloc[0]
    truth = np.exp(given.numpy()).astype(np.float64)
    assert row["mean"] == pytest.approx(truth.mean(), rel=1e-5)
    assert row["l2"] == pytest.approx(np.sqrt((truth**2).sum()), rel=1e-5)
