"""Compiled code: it stays compiled and is listed, or runs eagerly for as long as it is watched."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo import eval_frame
from torch._dynamo.convert_frame import input_codes
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters

import probe_nb as probe
from probe_nb.errors import ConfigError
from tests.models import no_faults

X = torch.ones(1, 2)
EAGER = {"compiled": "eager"}

# torch.compile looks at the .grad of what it is fed, and torch warns of that
pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)


def layers():
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU())


def reasons(run):
    """Return module -> reason of what was not seen."""
    frame = run.coverage()
    unseen = frame[frame["rows"].isna()]
    return dict(zip(unseen["module"], unseen["reason"], strict=True))


@pytest.fixture
def counter():
    torch._dynamo.reset()
    yield CompileCounter()
    torch._dynamo.reset()


def test_code_that_was_compiled_before_the_watch_stays_compiled_and_is_listed(counter):
    model = torch.compile(layers(), backend=counter)
    expected = model(X)
    with probe.watch(model, live=False) as run:
        assert torch.equal(model(X), expected)
    assert torch.equal(model(X), expected)
    assert counter.frame_count == 1
    assert {reasons(run)[module] for module in ("0", "1")} == {"compiled"}


def test_compiled_code_stays_quiet_when_another_session_ends(counter):
    model = torch.compile(layers(), backend=counter)
    other = probe.start(torch.compile(nn.Linear(1, 1), backend=counter), live=False)
    with probe.watch(model, live=False):
        probe.stop(other)
        model(X)  # torch would warn of process-wide hooks


def test_code_that_is_first_compiled_inside_the_watch_is_compiled_after_it(counter):
    model = torch.compile(layers(), backend=counter)
    with probe.watch(model, live=False):
        model(X)
        model(X)
        inside = counter.frame_count
    for _ in range(3):
        model(X)
    assert inside == 1
    assert counter.frame_count <= 2


def test_a_compiled_child_leaves_the_rows_of_the_others_right(counter):
    model = nn.Sequential(
        nn.Linear(2, 2), torch.compile(nn.Tanh(), backend=counter), nn.Linear(2, 1)
    )
    x = torch.ones(1, 2, requires_grad=True)
    with probe.watch(model, live=False) as run:
        model(x).sum().backward()
    outputs = run.frame(role="output")
    assert {"0", "2", ""} <= set(outputs["module"])
    found = run.frame(role="grad_input", module="(root)")["l2"].item()
    assert found == pytest.approx(x.grad.norm().item(), rel=1e-5)
    assert counter.frame_count == 1


def test_a_compiled_function_around_a_watched_model_stays_compiled(counter):
    model = layers()

    @torch.compile(backend=counter)
    def loss(x):
        return model(x).square().sum()

    loss(X)
    with probe.watch(model, live=False) as run:
        loss(X)
        rows = len(run)
        model(X)
    assert rows in (0, 2)  # none, or the parameters alone
    assert set(run.frame(role="output")["module"]) == {"", "0", "1"}
    assert counter.frame_count == 1


# -- it stays compiled --------------------------------------------------------------------------


class Whole(nn.Module):
    """One graph of three operations."""

    def __init__(self):
        super().__init__()
        self.first, self.last = layers(), nn.Linear(2, 2)

    def forward(self, x):
        return self.last(self.first(x))


class Broken(Whole):
    """Breaks the graph in the middle."""

    def forward(self, x):
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.last(x)


def compiled_model(counter, make=Whole, **options):
    return torch.compile(make(), backend=counter, **options)


def compiled_in_place(counter, make=Whole, **options):
    model = make()
    model.compile(backend=counter, **options)
    return model


WAYS = [compiled_model, compiled_in_place]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("make", [Whole, Broken])
def test_compiled_code_costs_at_most_one_compilation_more(counter, way, first, make):
    """No part of it is skipped for good, and nothing is compiled again while it is watched."""
    model = way(counter, make)
    parts = 2 if make is Broken else 1
    if first:
        model(X)
    with no_faults(), probe.watch(model, live=False) as run:
        expected = model(X)
        assert counter.frame_count == parts
        model(X)
        assert counter.frame_count == parts
    for _ in range(3):
        assert torch.equal(model(X), expected)
    assert counter.frame_count == parts if first else counter.frame_count <= 2 * parts
    assert counter.op_count == 3 * counter.frame_count // parts
    assert "compiled" in reasons(run).values()
    assert not any("_orig_mod" in module for module in [*reasons(run), *run.df["module"]])


@pytest.mark.parametrize("way", WAYS)
def test_one_whole_graph_stays_one_whole_graph(counter, way):
    model = way(counter, fullgraph=True)
    with no_faults(), probe.watch(model, live=False):
        model(X)
        model(X)
    assert (counter.frame_count, counter.op_count) == (1, 3)


def test_a_compiled_train_step_stays_compiled_and_says_that_nothing_was_seen(counter):
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    compiled = torch.compile(step, backend=counter)
    compiled(X)
    frames = counter.frame_count
    with no_faults(), probe.watch(model, optimizer=optimizer, live=False) as run:
        compiled(X)
        compiled(X)
    compiled(X)
    assert counter.frame_count == frames
    assert set(run.df["role"]) <= {"param", "param_grad"}
    assert reasons(run).keys() == {"", "0", "1"}
    assert "not seen" in repr(run)


def test_a_run_in_which_only_compiled_code_ran_says_so_first():
    torch._dynamo.reset()
    model = torch.compile(layers(), backend="eager")
    model(X)
    with no_faults(), probe.watch(model, roles="output,grad_output", live=False) as run:
        model(X).sum().backward()
    torch._dynamo.reset()
    if len(run) == 0:
        assert "Nothing was recorded" in repr(run).splitlines()[0]
    assert "compiled" in repr(run)
    assert {*reasons(run).values()} == {"compiled"}


class Blocks(nn.Module):
    """Calls two blocks that may each be compiled."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Whole(), Whole()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def test_compiled_blocks_are_seen_from_outside_with_their_gradients():
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = Blocks()
    x = torch.randn(3, 2, requires_grad=True)
    first = model.blocks[0](x)
    last = model.blocks[1](first)
    truth = torch.autograd.grad(last.square().sum(), (last, first, x))
    for block in model.blocks:
        block.compile(backend="aot_eager", fullgraph=True)
    model(x).square().sum().backward()
    graphs = counters["stats"]["unique_graphs"]
    with no_faults(), probe.watch(model, live=False) as run:
        model(x).square().sum().backward()
    model(x)
    assert counters["stats"]["unique_graphs"] == graphs
    torch._dynamo.reset()
    found = [
        run.frame(module=f"blocks.{n}", role=role)["l2"].item()
        for n, role in (
            (1, "grad_output"),
            (1, "grad_input"),
            (0, "grad_output"),
            (0, "grad_input"),
        )
    ]
    last, between, first = (g.norm().item() for g in truth)
    assert found == pytest.approx([last, between, between, first], rel=1e-5)
    inside = {module for module, reason in reasons(run).items() if reason == "compiled"}
    assert inside == {f"blocks.{n}.{name}" for n in (0, 1) for name in INSIDE}


INSIDE = ("first", "first.0", "first.1", "last")


def test_the_compiler_never_compiles_hooks_of_ours():
    """It would for every backend anew, and give up for good after the eighth."""
    torch._dynamo.reset()
    models = nn.ModuleList([Whole() for _ in range(3)])
    compiled = [torch.compile(m, backend=CompileCounter()) for m in models]
    with no_faults(), probe.watch(models, live=False) as run:
        for each in compiled:
            each(X.clone().requires_grad_()).sum().backward()
    seen = [code.co_filename for ref in input_codes.seen if (code := ref()) is not None]
    torch._dynamo.reset()
    assert __file__ in seen
    assert not [name for name in seen if name.startswith(str(Path(probe.__file__).parent))]
    assert set(run.frame(role="output")["module"]) == {"0", "1", "2"}
    assert set(run.frame(role="grad_input")["module"]) == {"0", "1", "2"}


class Sliced(nn.Module):
    """Writes a view in place, and sends to its input from several nodes."""

    def forward(self, x):
        y = (x * 1.5).flatten()
        return (y.relu_() * y.sum()).view_as(x) + x.square()


def penalised(y, x):
    (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    (y.sum() + g.square().sum()).backward()


@pytest.mark.parametrize("penalty", [False, True])
def test_a_backward_inside_compiled_code_compiles_what_it_does_unwatched(penalty):
    """The forward runs beside: all our hooks on tensors and nodes are met by the compiler."""

    def frames(watch):
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Sliced(), nn.Linear(4, 4))

        @torch._dynamo.disable
        def forward(x):
            return model(x)

        def step(x):
            z = x * 2
            y = forward(z)
            penalised(y, z) if penalty else y.sum().backward()
            return z.sum()

        compiled = torch.compile(step, backend="eager")
        with no_faults(), probe.watch(model, live=False) if watch else nullcontext() as run:
            for n in range(1, 4):
                compiled(torch.full((3, 4), float(n), requires_grad=True))
        seen = [code.co_filename for ref in input_codes.seen if (code := ref()) is not None]
        counted = dict(counters["frames"])
        torch._dynamo.reset()
        assert not [name for name in seen if name.startswith(str(Path(probe.__file__).parent))]
        return counted, run

    counted, run = frames(watch=True)
    assert counted == frames(watch=False)[0]
    assert set(run.frame(role="grad_input")["module"]) == {"", "0", "1", "2", "3"}
    assert set(run.df["status"]) == {"ok"}


# -- or runs eagerly ------------------------------------------------------------------------------


def stance():
    return eval_frame._stance.stance


def trained(model, *, watch=None, loss=None):
    """Train two steps; return the run, if it was watched, and everything that came out."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = None if watch is None else probe.start(watch, optimizer=optimizer, live=False, **EAGER)
    results = []
    for scale in (1.0, 2.0):
        y = model(scale * X) if loss is None else loss(scale * X)
        y.square().sum().backward()
        optimizer.step()
        results += [y.detach(), *(p.detach().clone() for p in model.parameters())]
        optimizer.zero_grad()
    probe.stop(run)
    return run, results


def seeded(make):
    torch.manual_seed(0)
    return make()


def around(counter):
    """Return a model and a compiled function that calls it."""
    model = seeded(Broken)
    return model, model, torch.compile(lambda x: model(x) * 1, backend=counter)


def whole(counter):
    model = torch.compile(seeded(Broken), backend=counter)
    return model, model, None


def in_place(counter):
    model = compiled_in_place(counter, lambda: seeded(Broken))
    return model, model, None


def parts(counter):
    model = seeded(Broken)
    model.first = torch.compile(model.first, backend=counter, fullgraph=True)
    model.last.compile(backend=counter)
    return model, model, None


@pytest.mark.parametrize("make", [whole, in_place, parts, around])
@pytest.mark.parametrize("first", [True, False])
def test_opened_it_has_the_rows_and_results_of_the_eager_model(counter, make, first):
    expected_run, expected = trained(eager := seeded(Broken), watch=eager)
    model, watch, loss = make(counter)
    if first:
        with torch.no_grad():
            model(X) if loss is None else loss(X)
    frames = counter.frame_count
    with no_faults():
        run, found = trained(model, watch=watch, loss=loss)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert counter.frame_count == frames
    columns = ["step", "micro_step", "call", "module", "type", "role", "leaf", "mean", "status"]
    rows = [r.df[columns].astype(str).to_numpy().tolist() for r in (run, expected_run)]
    assert sorted(rows[0]) == sorted(rows[1])
    assert len(run.coverage()) == 0
    assert sum("uncompiled" in notice for notice in run.info.notices) == 1
    assert stance() == "default"
    loss(X) if loss is not None else model(X)
    assert counter.frame_count > frames or first


def test_opened_it_hides_nothing_so_what_is_not_called_is_not_called_compiled(counter):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    model = torch.compile(Net(), backend=counter)
    found = {}
    for way in ("stay", "eager"):
        with probe.watch(model, live=False, compiled=way) as run:
            model(X)
        found[way] = reasons(run)
    assert found["stay"] == {"used": "compiled", "unused": "compiled"}
    assert found["eager"] == {"unused": "never called"}


def test_after_it_what_was_compiled_before_runs_compiled_again(counter):
    model = torch.compile(layers(), backend=counter)
    model(X)
    with probe.watch(model, live=False, **EAGER) as run:
        model(X)
    assert set(run.frame(role="output")["module"]) == {"", "0", "1"}
    with probe.watch(model, live=False) as run:
        model(X)
    assert "0" in reasons(run)
    assert counter.frame_count == 1


def test_sessions_that_end_in_any_order_leave_the_stance_of_the_user():
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    for order in ((0, 1), (1, 0)):
        with torch.compiler.set_stance("eager_on_recompile"):
            runs = [probe.start(m, live=False, **EAGER) for m in (first, second)]
            assert stance() == "force_eager"
            probe.stop(runs[order[0]])
            assert stance() == "force_eager"
            probe.stop(runs[order[1]])
            assert stance() == "eager_on_recompile"
        assert stance() == "default"


def test_a_stance_that_the_user_sets_meanwhile_is_the_users():
    model = nn.Linear(2, 2)
    run = probe.start(model, live=False, **EAGER)
    with torch.compiler.set_stance("fail_on_recompile"):
        assert stance() == "fail_on_recompile"
        probe.stop(run)
        assert stance() == "fail_on_recompile"
    assert stance() == "default"  # not what was in force when the block began


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_gives_the_stance_back(error):
    model = nn.Linear(2, 2)
    with pytest.raises(error), probe.watch(model, live=False, **EAGER):
        raise error
    assert stance() == "default"


def test_an_interrupt_at_any_line_gives_the_stance_back():
    model = nn.Linear(2, 2)
    numbers = iter(range(1, 1000))
    while interrupted(model, next(numbers)):
        probe.stop()
        assert stance() == "default"
    assert next(numbers) > 20


def interrupted(model, number):
    """Interrupt one watch at the nth line that opens or closes it; False if it was over before."""
    left = [number]

    def trace(frame, event, _):
        if not frame.f_code.co_filename.endswith(("observe/attach.py", "observe/compiled.py")):
            return None
        left[0] -= event == "line"
        if left[0] == 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    try:
        sys.settrace(trace)
        with probe.watch(model, live=False, **EAGER):
            pass
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return left[0] <= 0


def test_how_compiled_code_runs_is_one_of_two_words():
    with pytest.raises(ConfigError, match="eager"):
        probe.watch(layers(), compiled="no")
    with probe.watch(layers(), compiled="stay", live=False) as run:
        assert stance() == "default"
    assert run.info.config["compiled"] == "stay"
    assert run.info.notices == []


def test_a_compiled_step_of_an_optimizer_is_said_not_to_be_seen():
    def trained(options):
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = torch.compile(optimizer.step, backend="eager")
        context = nullcontext()
        if options is not None:
            context = probe.watch(model, optimizer=optimizer, live=False, **options)
        with no_faults(), context as run:
            for _ in range(3):
                model(X).sum().backward()
                step()
        return [p.detach() for p in model.parameters()], run

    bare, _ = trained(None)
    seen, run = trained({})
    assert all(torch.equal(a, b) for a, b in zip(bare, seen, strict=True))
    (notice,) = run.info.notices
    assert "`optimizer.0` (SGD) stepped, but what it did was not seen" in notice
    assert "optimizer" not in set(run.df["direction"])
    opened, run = trained(EAGER)
    assert len(run.updates()) == 6
    assert run.updates()["update_l2"].notna().all()
    assert all(torch.equal(a, b) for a, b in zip(bare, opened, strict=True))
