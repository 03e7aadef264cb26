"""At API level nothing of torch is replaced, nothing is left, and modes of others see what they saw."""

from __future__ import annotations

import copy
import inspect
import io
import threading
import traceback
import types
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _device
from torch.utils.checkpoint import checkpoint

import probe_nb as probe
from probe_nb.errors import ConfigError, SessionStateError
from tests.models import no_faults


def watched(model=None, **options):
    return probe.watch(model, **{"level": "api", "apis": "all", "live": False} | options)


def names(run):
    rows = run.df
    return [
        name for name, _ in dict.fromkeys(zip(rows["api"].astype(str), rows["call"], strict=True))
    ]


def modes():
    return list(torch.overrides._get_current_function_mode_stack())


def functions():
    """Return every function of the packages whose functions msProbe replaces, and what it runs."""
    owners = (
        *(torch, F, torch.Tensor, torch._C._nn, torch._C._VariableFunctions, torch._VF),
        *(torch.linalg, torch.fft, torch.special, torch.ops.aten, torch.distributed),
        *(nn.Module, nn.Linear, torch.optim.Optimizer, torch.optim.SGD, torch.autograd.Function),
        *(torch.autograd, torch.utils.checkpoint, torch.jit, torch.nn.utils),
    )
    found = {}
    for owner in owners:
        for name in dir(owner):
            value = inspect.getattr_static(owner, name)
            kind = type(value)  # an object may answer `isinstance` with a warning
            inner = value.__func__ if kind in {staticmethod, classmethod} else value
            if callable(inner):
                key = getattr(owner, "__name__", str(owner)), name
                code = inner.__code__ if type(inner) is types.FunctionType else None
                found[key] = value, code
    return found


class Looks(nn.Module):
    """Takes stock while it runs, and while its gradient does."""

    def __init__(self):
        super().__init__()
        self.lin, self.seen = nn.Linear(2, 2), []

    def look(self, *_):
        self.seen.append(functions())

    def forward(self, x):
        y = F.relu(self.lin(x))
        y.register_hook(self.look)
        self.look()
        return y


@pytest.mark.parametrize("level", ["module", "api", "mix", "debug"])
def test_no_function_of_torch_is_replaced_before_during_and_after(level):
    torch.ops.aten.relu(torch.ones(1))  # torch puts an operator into its package when it is used
    model = Looks()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = functions()
    assert len(before) > 2500
    options = {} if level in ("api", "mix") else {"apis": None}
    keep = probe.Keep("*", roles="value") if level == "debug" else "*"
    with watched(model, level=level, optimizer=optimizer, keep=keep, **options):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        model.look()
    model.look()
    assert len(model.seen) == 4
    for each in model.seen:
        assert each.keys() == before.keys()
        assert [name for name in before if each[name][0] is not before[name][0]] == []
        assert [name for name in before if each[name][1] is not before[name][1]] == []


def test_of_what_is_registered_that_one_name_is_replaced_and_restored():
    mine = module()
    before = functions(), dict(vars(mine))
    with watched() as run:
        run.register_custom_api(mine, "double")
        assert {name for name in before[1] if vars(mine)[name] is not before[1][name]} == {"double"}
        during = functions()
    after = functions(), dict(vars(mine))
    assert before == after
    assert during == before[0]


class Listener(TorchFunctionMode):
    """Takes note of what it sees."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


def used(given):
    F.gelu(given)
    return given + 1


def test_a_mode_of_the_users_sees_what_it_saw_and_is_left_where_it_was():
    given = torch.ones(3)
    with Listener() as alone:
        used(given)
    with watched() as run, Listener() as inside:
        used(given)
    with Listener() as around, watched() as other:
        used(given)
    assert inside.seen == around.seen == alone.seen
    assert names(run) == names(other) == ["Functional.gelu", "Tensor.__add__"]


def test_a_watch_may_begin_in_a_block_of_the_users_and_end_after_it():
    given = torch.ones(3)
    with Listener() as theirs:
        run = probe.start(level="api", apis="all", live=False)
        used(given)
    assert len(modes()) == 1  # ours; leaving a block takes what lies on top
    given * 2
    probe.stop()
    assert theirs.seen == ["gelu", "add"]
    assert modes() == []
    assert names(run) == ["Functional.gelu", "Tensor.__add__", "Tensor.__mul__"]


def test_a_watch_may_begin_before_a_block_of_the_users_and_end_inside():
    given = torch.ones(3)
    probe.start(level="api", apis="all", live=False)
    with Listener() as theirs:
        probe.stop()
        assert modes() == [theirs]
        used(given)
    assert modes() == []


def test_default_devices_come_and_go_as_they_did():
    with watched() as run:
        with torch.device("meta"):
            assert torch.ones(2).relu().is_meta
        torch.set_default_device("meta")
        try:
            assert torch.ones(2).is_meta
            assert isinstance(modes()[0], _device.DeviceContext)
        finally:
            torch.set_default_device(None)
        assert not torch.ones(2).is_meta
    assert set(run.df["status"]) == {"meta", "ok"}


class Tagged(torch.Tensor):
    """A class of the user's with a handler of its own."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_class_of_tensors_keeps_its_handler():
    given = torch.ones(3).as_subclass(Tagged)
    Tagged.seen.clear()
    with watched() as run:
        out = used(given)
    assert type(out) is Tagged
    assert Tagged.seen == ["gelu", "add"]
    assert names(run) == ["Functional.gelu", "Tensor.__add__"]


def test_an_exception_is_the_same_object_with_the_same_frames_of_the_users():
    given = torch.ones(2)

    def wrong():
        return given @ torch.ones(3)

    with watched() as run:
        with pytest.raises(RuntimeError) as caught:
            wrong()
        given.exp()
    frames = [each.name for each in traceback.extract_tb(caught.value.__traceback__)]
    assert [name for name in frames if name != "__torch_function__"] == [frames[0], "wrong"]
    assert frames.count("__torch_function__") == 1
    assert names(run) == ["Torch.ones", "Tensor.__matmul__", "Tensor.exp"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, SystemExit])
def test_calls_go_on_being_seen_after_anything_was_raised_in_one(error):
    def raises(*_):
        raise error

    leaf = torch.ones(2, requires_grad=True)
    with watched() as run:
        hooked = leaf * 1
        with pytest.raises(error), torch.autograd.graph.saved_tensors_hooks(raises, lambda t: t):
            hooked.exp()
        hooked.sin()
    assert names(run) == ["Tensor.__mul__", "Tensor.exp", "Tensor.sin"]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_leave_one_row_per_call_and_stop_nothing(reentrant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    given = torch.ones(2, 3, requires_grad=True)
    with no_faults(), watched(model) as run:
        out = checkpoint(model, given, use_reentrant=reentrant)
        out.sum().backward()
        out.detach().exp()
    assert names(run) == [
        "Functional.linear",
        "Functional.relu",
        "Functional.linear",
        "Tensor.sum",
        "Tensor.detach",
        "Tensor.exp",
    ]
    inner = run.frame(api="Functional.*", direction="backward")
    assert (len(inner) > 0) is not reentrant
    missing = run.coverage().set_index("module")["reason"].to_dict()
    lacking = dict.fromkeys(("", "0", "1", "2"), "functions without gradients")
    assert missing == (lacking if reentrant else {})


def test_a_watch_is_silent_where_another_thread_has_closed_it():
    go, done = threading.Event(), threading.Event()
    runs = []

    def work():
        runs.append(probe.start(level="api", apis="all", live=False))
        torch.ones(2).exp()
        done.set()
        go.wait()
        torch.ones(2).sin()

    thread = threading.Thread(target=work)
    thread.start()
    done.wait()
    probe.stop()
    go.set()
    thread.join()
    assert names(runs[0]) == ["Torch.ones", "Tensor.exp"]


def test_copies_and_files_of_a_model_carry_nothing():
    model = nn.Linear(2, 2)
    with watched(model, level="mix"):
        twin = copy.deepcopy(model)
        torch.save(model, io.BytesIO())
        assert torch.equal(twin.weight, model.weight)
    assert not twin._forward_hooks


def test_starting_again_without_a_model_restarts():
    first = probe.start(level="api", live=False)
    with pytest.warns(probe.errors.ProbeWarning, match="earlier session was stopped"):
        second = probe.start(level="api", live=False)
    torch.ones(2).exp()
    probe.stop()
    assert first.info.ended == "stopped: another watch began"
    assert len(modes()) == 0
    assert len(first) == 0
    assert len(second) > 0


def compiled(backends, model):
    def backend(graph, _):
        backends.append(graph)
        return graph

    return torch.compile(model, backend=backend)


def test_a_compiled_model_is_compiled_once_however_often_it_is_watched():
    torch._dynamo.reset()
    model, given, backends = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.ones(2, 3), []
    fast = compiled(backends, model)
    fast(given)
    for _ in range(4):
        with watched(model) as run:
            fast(given)
            given.exp()
        assert names(run) == ["Tensor.exp"]
    fast(given)
    assert len(backends) == 1
    torch._dynamo.reset()


def test_a_compiled_function_is_compiled_once_more_for_the_mode():
    torch._dynamo.reset()
    backends: list[object] = []
    fast = compiled(backends, lambda t: (t * 2).relu())
    given = torch.ones(3)
    fast(given)
    for _ in range(4):
        with watched():
            fast(given)
            fast(given)
        fast(given)
    assert len(backends) == 2
    torch._dynamo.reset()


# -- functions of the user's ------------------------------------------------------------------------


def module():
    mine = types.ModuleType("mine")
    mine.double = lambda given: given + given
    return mine


def test_a_registered_function_is_recorded_and_restored():
    mine, given = module(), torch.tensor([1.0, 2.0], requires_grad=True)
    before = mine.double
    with no_faults(), watched() as run:
        run.register_custom_api(mine, "double")
        mine.double(given).sum().backward()
        assert run.restore_custom_api(mine, "double") == 1
        assert mine.double is before
        mine.double(given)
    assert names(run) == ["mine.double", "Tensor.sum", "Tensor.__add__"]
    rows = run.frame(api="mine.double")
    assert dict(zip(rows["role"].astype(str), rows["max"], strict=True)) == {
        "input": 2.0,
        "output": 4.0,
        "grad_output": 1.0,
        "grad_input": 2.0,
    }


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_registered_names_are_restored_however_the_watch_ends(error):
    mine = module()
    before = mine.double
    with pytest.raises(error) if error else no_faults(), watched() as run:
        run.register_custom_api(mine, "double", "Own")
        mine.double(torch.ones(1))
        if error:
            raise error
    assert mine.double is before
    assert "Own.double" in names(run)


def test_two_sessions_restore_a_name_in_any_order():
    mine = module()
    before = mine.double
    first = watched(nn.Linear(1, 1))
    second = watched(nn.Linear(1, 1))
    for each in (first, second):
        each.__enter__().register_custom_api(mine, "double")
    first.__exit__(None, None, None)
    mine.double(torch.ones(1))
    second.__exit__(None, None, None)
    assert mine.double is before


def test_methods_of_all_kinds_can_be_registered():
    class Mine:
        def plain(self, given):
            return given * 2

        @staticmethod
        def static(given):
            return given * 3

        @classmethod
        def of_class(cls, given):
            return given * 4

    before = dict(vars(Mine))
    with watched(roles="output") as run:
        for name in ("plain", "static", "of_class"):
            run.register_custom_api(Mine, name)
        given = torch.ones(1)
        Mine().plain(given), Mine.static(given), Mine().of_class(given)
    found = run.frame(api="Mine.*")
    assert found["max"].tolist() == [2.0, 3.0, 4.0]
    assert dict(vars(Mine)) == before


def test_a_function_that_torch_shows_is_renamed_and_not_replaced():
    before = torch.matmul
    given = torch.ones(2, 2)
    with watched(apis="Tensor.exp") as run:
        run.register_custom_api(torch, "matmul", "torch")
        assert torch.matmul is before
        torch.matmul(given, given)
        run.restore_custom_api()
        torch.matmul(given, given)
    assert names(run) == ["torch.matmul"]


def test_what_cannot_be_registered_is_told():
    with (
        watched(nn.Linear(1, 1), level="module", apis=None) as run,
        pytest.raises(SessionStateError, match='level="api"'),
    ):
        run.register_custom_api(torch, "matmul")
    with watched() as run, pytest.raises(ConfigError, match="`math` has no function `nothing`"):
        run.register_custom_api(__import__("math"), "nothing")
    with pytest.raises(SessionStateError, match="closed"):
        run.register_custom_api(torch, "matmul")
