"""What lives how long: nothing of the user's is kept, nothing of ours grows but the rows."""

from __future__ import annotations

import copy
import gc
import io
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

import probe_nb as probe
from probe_nb import pace, session
from probe_nb.view.inspector import Inspector
from probe_nb.view.live import LiveView
from tests.models import hook_tables, no_faults

X = torch.ones(2, 4)

LONG = """
import collections, gc, sys, torch
import probe_nb as probe
from probe_nb.stats.kernels import cpu

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def ours():
    found = collections.Counter(type(o).__name__ for o in gc.get_objects()
                                if str(type(o).__module__).startswith("probe_nb"))
    found.pop("Block", None)
    return found

torch.set_num_threads(1)
cpu.warm().join()  # what measures is the same from the first step to the last
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
x = torch.ones(2, 4)
at = {}
with probe.watch(model, optimizer=optimizer, live=False) as run:
    for step in range(10_001):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step in (5_000, 10_000):
            gc.collect()
            at[step] = resident(), len(run.columns), len(gc.get_objects()), ours()
first, last = at[5_000], at[10_000]
grown, rows, tracked = (b - a for a, b in zip(first[:3], last[:3]))
record = sum(column.nbytes for column in run.columns.arrays().values()) / len(run.columns)
print(grown, int(rows * record), tracked, int(record))
print({name: count for name, count in (last[3] - first[3]).items() if count > 0})
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_over_ten_thousand_steps_memory_grows_by_the_rows_and_nothing_else():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LONG], capture_output=True, text=True, check=True
    )
    numbers, objects = done.stdout.splitlines()
    grown, rows, tracked, record = map(int, numbers.split())
    assert record < 300  # 200 bytes and a small histogram
    assert grown - rows < 6 * 2**20  # what the allocator keeps for the next joining of blocks
    assert objects == "{}"
    assert tracked < 200


def train(model):
    model(X).sum().backward()


def small():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())


def dies(model):
    """Tell whether a model is gone once the caller has let go of it."""
    gc.collect()
    return model() is None


@pytest.mark.parametrize("still_open", [True, False], ids=["open", "closed"])
@pytest.mark.parametrize(
    "shows",
    [
        lambda run: run._repr_mimebundle_(),
        repr,
        lambda run: run.df,
        lambda run: run.coverage(),
        lambda run: run.inspect(),
        Inspector,
        lambda run: LiveView(run, display=lambda *_, **__: None),
    ],
    ids=["report", "text", "frame", "coverage", "inspect", "inspector", "live"],
)
def test_what_shows_a_run_keeps_no_model_alive(shows, still_open):
    model = small()
    x = X.clone().requires_grad_()
    run = probe.start(model, live=False)
    loss = model(x).sum()
    loss.backward()
    if not still_open:
        probe.stop()
    kept = shows(run)
    seen = [weakref.ref(model), weakref.ref(model[0].weight.grad), weakref.ref(loss)]
    del model, loss, x
    assert [dies(each) for each in seen] == [True] * 3
    probe.stop()
    assert kept is not None
    assert len(run) > 0


@pytest.mark.parametrize("given", [lambda o: o, lambda o: [o]], ids=["alone", "in a list"])
def test_an_open_watch_keeps_no_optimizer_alive_and_with_it_no_parameter(given):
    model = small()
    optimizer = torch.optim.AdamW(model.parameters())
    run = probe.start(model, optimizer=given(optimizer), live=False)
    for _ in range(2):
        model(X).sum().backward()
        optimizer.step()
    moment = optimizer.state[model[0].weight]["exp_avg"]
    seen = [weakref.ref(each) for each in (optimizer, moment, model[0].weight)]
    del model, optimizer, moment
    assert [dies(each) for each in seen] == [True] * 3
    probe.stop(run)
    assert run.info.steps == 2


def test_a_session_that_nobody_closed_is_freed_when_it_is():
    for _ in range(3):
        model = small()
        run = probe.start(model, live=False)
        train(model)
        opened = weakref.ref(session.sessions()[-1])
        probe.stop(run)
        assert dies(opened)
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def save(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "save and load": save,
    "average": lambda model: torch.optim.swa_utils.AveragedModel(model).module,
    "script": torch.jit.script,
    "trace": lambda model: torch.jit.trace(model, X, check_trace=False),
    "in a thread": lambda model: ThreadPoolExecutor(1).submit(copy.deepcopy, model).result(),
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_made_under_the_watch_computes_the_same_and_leaves_no_row(copied):
    torch.manual_seed(0)
    model = small()
    expected = model(X)
    with no_faults(), probe.watch(model, live=False) as run:
        train(model)
        before = len(run)
        twin = copied(model)
        assert torch.equal(twin(X), expected)
        assert len(run) == before
        model(X)
        assert len(run) > before
    assert not any(
        hook
        for module in twin.modules()
        for table in hook_tables(module).values()
        for hook in table.values()
    )
    assert torch.equal(twin(X), expected)


# -- threads -----------------------------------------------------------------------------------------


def together(*acts):
    """Run acts in threads that begin at the same instant, and return what they gave or raised."""
    meeting = threading.Barrier(len(acts))

    def run(act):
        meeting.wait(timeout=200)
        return act()

    with ThreadPoolExecutor(len(acts)) as pool:
        futures = [pool.submit(run, act) for act in acts]
        return [future.exception() or future.result() for future in futures]


@pytest.mark.filterwarnings("ignore::probe_nb.errors.ProbeWarning")
def test_sessions_opened_on_one_model_at_the_same_instant_leave_one_or_none_and_no_hook():
    model = small()
    for _ in range(20):
        found = together(*[lambda: probe.start(model, live=False)] * 3)
        assert all(isinstance(run, probe.Run) for run in found), found
        train(model)
        while probe.stop() is not None:
            pass
        assert not any(run.is_open for run in found)
        assert not any(p._backward_hooks for p in model.parameters())
        # whatever stayed open recorded the model once, never twice
        for run in found:
            outputs = run.df[(run.df["role"] == "output") & (run.df["module"] == "")]
            assert len(outputs) <= 1


def test_sessions_on_models_of_their_own_in_threads_do_not_mix():
    def act(scale):
        model = nn.Linear(1, 1, bias=False)
        nn.init.constant_(model.weight, scale)
        with probe.watch(model, optimizer=torch.optim.SGD(model.parameters()), live=False) as run:
            for _ in range(20):
                model(torch.ones(1, 1)).sum().backward()
        return run

    runs = together(*[lambda s=scale: act(float(s)) for scale in (1, 2, 3)])
    for scale, run in enumerate(runs, 1):
        assert set(run.frame(role="output")["mean"]) == {float(scale)}
        assert len(run.frame(role="output")) == 20
    assert session.sessions() == ()


def test_forwards_in_threads_and_their_backward_in_another_are_paired():
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 2.0)
    optimizer = torch.optim.SGD(model.parameters())
    with no_faults(), probe.watch(model, optimizer=optimizer, live=False) as run:
        outputs = together(
            *[lambda n=n: model(torch.tensor([[float(n)]], requires_grad=True)) for n in range(6)]
        )
        for number, output in enumerate(outputs):
            (output * (number + 1)).sum().backward()
    rows = run.df[run.df["role"].isin(["input", "grad_output", "grad_input"])]
    by_call = rows.pivot_table(index="call", columns="role", values="mean", observed=True)
    assert len(by_call) == 6
    assert (by_call["grad_output"] == by_call["input"] + 1).all()
    assert (by_call["grad_input"] == 2 * by_call["grad_output"]).all()


def test_the_stacks_of_threads_that_are_gone_are_gone():
    model = small()
    with probe.watch(model, live=False):
        hooks = session.sessions()[0]._rooms.modules
        seen = []

        def act():
            model(X)
            seen.append(weakref.ref(hooks.open))
            stacks.append(weakref.ref(Kept(hooks.open.stack)))

        class Kept:
            def __init__(self, stack):
                self.stack = stack

        stacks = []
        before = len([o for o in gc.get_objects() if type(o).__name__ == "Call"])
        for _ in range(20):
            thread = threading.Thread(target=act)
            thread.start()
            thread.join()
        gc.collect()
        after = len([o for o in gc.get_objects() if type(o).__name__ == "Call"])
    assert after - before < 20


def handles():
    return sum(type(o) is RemovableHandle for o in gc.get_objects())


@pytest.mark.parametrize("steps", [None, "1000"])
def test_training_by_hand_gathers_no_handles(monkeypatch, steps):
    """No optimizer ends a step, so it never ends."""
    monkeypatch.setattr(pace, "_PATIENCE", 0.0)
    model, counted = small(), []
    with no_faults(), probe.watch(model, steps=steps, live=False) as run:
        for n in range(60):
            train(model)
            with torch.no_grad():
                for p in model.parameters():
                    p.sub_(0.1 * p.grad)
                    p.grad = None
            if n in (5, 59):
                gc.collect()
                counted.append(handles())
        assert run.info.steps <= 2
    assert counted[1] <= counted[0]


def test_a_hook_that_a_thread_puts_on_while_handles_are_pruned_is_taken_away_again():
    model = small()
    outputs = []

    def forwards():
        outputs.extend(model(X) for _ in range(150))

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with probe.watch(model, roles="grad_output", live=False):
            gradients = session.sessions()[-1]._rooms.gradients
            model(X).sum().backward()
            threads = [threading.Thread(target=forwards) for _ in range(3)]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                gradients.prune(leaves=False)
    finally:
        sys.setswitchinterval(switch)
    assert len(outputs) == 450
    assert not [y for y in outputs if y._backward_hooks]


class Frees(torch.autograd.Function):
    """Lets go of what it has made, as reversible blocks do."""

    @staticmethod
    def forward(ctx, x, layer, alive):
        made = layer(x)
        seen = weakref.ref(made)
        result = layer(made)
        del made
        alive.append(seen() is not None)
        return result

    @staticmethod
    def backward(ctx, g):
        return g, None, None


class NamesItsOwn(Frees):
    """Holds the table of its variables, which is as it left it."""

    @staticmethod
    def forward(ctx, x, layer, alive):
        own = locals()
        del own["ctx"]
        result = layer(layer(x))
        alive.append("ctx" in own or own["alive"] is not alive)
        return result


@pytest.mark.parametrize("function", [Frees, NamesItsOwn])
def test_what_a_custom_function_lets_go_of_is_gone_and_its_own_table_stays_its_own(function):
    layer = nn.Linear(4, 4)
    model, alive = nn.Sequential(layer), []
    model.forward = lambda x: function.apply(x, layer, alive)
    x = X.clone().requires_grad_()
    model(x)
    with no_faults(), probe.watch(model, live=False):
        model(x).sum().backward()
    assert alive == [False, False]
