"""Parameters: whose rows they have, and what a backward adds to their gradients."""

from __future__ import annotations

import copy
import gc
import io
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrizations

import probe_nb as probe
from probe_nb.terms import COUNTS, STATISTICS
from tests import oracle
from tests.models import no_faults

x = torch.linspace(-1.0, 2.0, 12).reshape(3, 4)
WAYS = {"param": "forward", "param_grad": "backward"}


def rows(run, role="param_grad", **chosen):
    """Return {(module, leaf): [(step, micro step, backward), ...]} in the order of the rows."""
    found: dict[tuple[str, str], list] = {}
    for row in run.frame(role=role, direction=WAYS[role], **chosen).to_dict("records"):
        backward = None if role == "param" else row["backward"]
        at = (row["step"], row["micro_step"], backward)
        found.setdefault((row["module"], row["leaf"]), []).append(at)
    return found


def leaves(run, role="param_grad"):
    return set(rows(run, role))


def holds(run, truth: dict[tuple[str, str], list[Tensor]], role="param_grad"):
    """Hold that the rows of a role are these, in this order, with the numbers of these tensors."""
    frame = run.frame(role=role, direction=WAYS[role])
    assert {*zip(frame["module"], frame["leaf"], strict=True)} == set(truth)
    for (module, leaf), tensors in truth.items():
        chosen = frame[(frame["module"] == module) & (frame["leaf"] == leaf)]
        assert len(chosen) == len(tensors), (module, leaf)
        for (_, row), tensor in zip(chosen.iterrows(), tensors, strict=True):
            want = oracle.expected(tensor.detach())
            numbers = {name: float(row[name]) for name in STATISTICS}
            counts = {name: int(row[name]) for name in COUNTS}
            assert oracle.faults(want, numbers, counts, want.bins) == [], (module, leaf)
            assert row["numel"] == want.numel


def watching(model, **options):
    return probe.watch(model, live=False, **options)


def trains(model, optimizer, batch=x):
    model(batch).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


# -- what a backward adds, and what `.grad` holds then -------------------------------------------


def test_an_ordinary_training_has_one_row_per_parameter_and_step():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 4))
    optimizer = sgd(model)
    with no_faults(), watching(model, optimizer=optimizer) as run:
        for _ in range(3):
            trains(model, optimizer, torch.tensor([0, 1, 1]))
    want = [(step, 0, 0) for step in range(3)]
    assert len(leaves(run)) == 5
    assert all(found == want for found in rows(run).values())


@pytest.mark.parametrize("gives", [lambda p: p * 2, lambda p: p, lambda p: p.t(), lambda p: p + p])
def test_a_gradient_that_is_copied_or_taken_over_is_not_written_twice(gives):
    class Lone(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = nn.Parameter(torch.ones(2, 3))

        def forward(self):
            return gives(self.p)

    model = Lone()
    with no_faults(), watching(model) as run:
        model().sum().backward()
    assert leaves(run) == {("", "p")}


@pytest.mark.parametrize("batches", [2, 5])
def test_accumulation_has_what_each_micro_step_adds_and_what_is_held_then(batches):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = sgd(model)
    data = [torch.randn(3, 4) for _ in range(batches)]
    losses = [model(each).square().sum() for each in data]
    each = [torch.autograd.grad(loss, (*model.parameters(),), retain_graph=True) for loss in losses]
    of_sum = torch.autograd.grad(sum(losses), (*model.parameters(),))
    with no_faults(), watching(model, optimizer=optimizer) as run:
        for batch in data:
            model(batch).square().sum().backward()
    truth = {}
    for place, name in enumerate(("weight", "bias")):
        added = [grads[place] for grads in each]
        held = [sum(added[1 : n + 1], added[0]) for n in range(1, batches)]
        assert torch.allclose(held[-1], of_sum[place])
        truth["", name], truth["", f"{name}.grad"] = added, held
    holds(run, truth)
    assert rows(run)["", "weight"] == [(0, n, 0) for n in range(batches)]
    assert rows(run)["", "weight.grad"] == [(0, n, 0) for n in range(1, batches)]


def test_gradients_that_were_set_to_zero_are_held_from_before():
    model = nn.Linear(4, 1, bias=False)
    optimizer = sgd(model)
    with no_faults(), watching(model, optimizer=optimizer) as run:
        for _ in range(2):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    gradient = x.sum(0, keepdim=True)
    holds(run, {("", "weight"): [gradient] * 2, ("", "weight.grad"): [gradient]})


def test_a_held_gradient_that_a_backward_does_not_touch_has_no_row():
    model = nn.Linear(4, 1)
    with no_faults(), watching(model) as run:
        model(x).sum().backward()
        torch.autograd.grad(model(x).sum(), model.weight)  # adds to nothing
    assert rows(run)["", "weight"] == [(0, 0, 0), (0, 1, 0)]
    assert ("", "weight.grad") not in rows(run)


def test_sparse_gradients_accumulate_too():
    model = nn.Embedding(5, 2, sparse=True)
    with no_faults(), watching(model, micro_batches=2) as run:
        model(torch.tensor([1, 1, 2])).sum().backward()
        model(torch.tensor([2, 4])).sum().backward()
    first, second = torch.zeros(5, 2), torch.zeros(5, 2)
    first[1], first[2] = 2.0, 1.0
    second[2] = second[4] = 1.0
    holds(run, {("", "weight"): [first, second], ("", "weight.grad"): [first + second]})
    assert model.weight.grad._nnz() == 5
    assert not model.weight.grad.is_coalesced()


def test_the_gradient_of_a_complex_parameter_is_measured_by_its_modulus():
    class Turns(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([1 + 2j, 3 - 1j]))

        def forward(self):
            return (self.w * self.w.conj()).real.sum()

    model = Turns()
    with no_faults(), watching(model) as run:
        model().backward()
    holds(run, {("", "w"): [2 * model.w.detach()]})


def test_a_double_backward_has_its_own_rows():
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 3.0)
    with no_faults(), watching(model) as run:
        y = model(torch.tensor([[2.0]])).pow(3).sum()  # 8 w^3
        with pytest.warns(UserWarning, match="create_graph"):
            y.backward(create_graph=True)  # 24 w^2 = 216
        model.weight.grad.sum().backward()  # adds 48 w = 144
    assert model.weight.grad.item() == 360.0
    frame = run.frame(role="param_grad", direction="backward")
    found = list(zip(frame["leaf"], frame["backward"], frame["mean"], strict=True))
    assert found == [("weight", 0, 216.0), ("weight", 1, 144.0), ("weight.grad", 1, 360.0)]
    model.weight.grad = None  # break the cycle that torch warns of


def test_under_a_scaler_both_are_unscaled():
    model = nn.Linear(4, 1, bias=False)
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    with no_faults(), watching(model, optimizer=optimizer, scaler=scaler) as run:
        for _ in range(2):
            scaler.scale(model(x).sum()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    gradient = x.sum(0, keepdim=True)
    holds(run, {("", "weight"): [gradient] * 2, ("", "weight.grad"): [2 * gradient]})
    assert set(run.frame(role="param_grad", direction="backward")["loss_scale"]) == {1024.0}


# -- hooks of the user's own ------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before the watch", "in the watch", "in the first step"])
def test_a_users_hook_that_changes_the_gradient_is_seen(when):
    model = nn.Linear(4, 1, bias=False)
    gradient = x.sum(0, keepdim=True)

    def hook(g):
        return g * 10

    if when == "before the watch":
        model.weight.register_hook(hook)
    with no_faults(), watching(model) as run:
        if when == "in the watch":
            model.weight.register_hook(hook)
        y = model(x).sum()
        if when == "in the first step":  # ours is there already, and runs first this once
            model.weight.register_hook(hook)
        y.backward()
        model.weight.grad = None
        run.step()
        model(x).sum().backward()
    truth = {("", "weight"): [10 * gradient] * 2}
    if when == "in the first step":
        truth = {("", "weight"): [gradient, 10 * gradient], ("", "weight.grad"): [10 * gradient]}
    holds(run, truth)


def test_a_hook_after_the_accumulation_that_changes_the_gradient_is_seen():
    model = nn.Linear(4, 1, bias=False)
    gradient = x.sum(0, keepdim=True)

    def halve(p):
        p.grad = p.grad * 0.5

    model.weight.register_post_accumulate_grad_hook(halve)
    with no_faults(), watching(model) as run:
        model(x).sum().backward()
    holds(run, {("", "weight"): [gradient], ("", "weight.grad"): [gradient * 0.5]})


def test_an_optimizer_in_the_backward_leaves_no_gradient_and_is_unchanged():
    def trained(watch):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizers = {p: torch.optim.Adam([p]) for p in model.parameters()}

        def steps(p):
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(steps)
        if not watch:
            for _ in range(3):
                model(x).sum().backward()
            return model, None
        with no_faults(), watching(model, micro_batches=1) as run:
            for _ in range(3):
                model(x).sum().backward()
                assert all(p.grad is None for p in model.parameters())
        return model, run

    (bare, _), (watched, run) = trained(watch=False), trained(watch=True)
    for a, b in zip(bare.parameters(), watched.parameters(), strict=True):
        assert torch.equal(a, b)
    assert leaves(run) == {("0", "weight"), ("0", "bias"), ("2", "weight"), ("2", "bias")}
    assert rows(run)["0", "weight"] == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]


def test_a_users_hooks_run_in_their_order_and_stay():
    model = nn.Linear(4, 1, bias=False)
    log = []
    model.weight.register_hook(lambda _: log.append("first"))
    with no_faults(), watching(model) as run:
        model(x).sum().backward()
        handle = model.weight.register_hook(lambda _: log.append("second"))
        run.step()
        model(x).sum().backward()
        handle.remove()
        run.step()
        model(x).sum().backward()
    model(x).sum().backward()
    assert log == ["first", "first", "second", "first", "first"]
    assert len(model.weight._backward_hooks) == 1


# -- which forward a gradient belongs to ------------------------------------------------------------

ROLES = [None, ["param_grad"], ["param_grad", "grad_input"], ["param_grad", "grad_output"]]


@pytest.mark.parametrize("roles", ROLES)
def test_backwards_of_interleaved_forwards_belong_each_to_its_own(roles):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    data = [torch.full((1, 4), float(n)) for n in range(4)]
    with no_faults(), watching(model, roles=roles) as run:
        losses = []
        for each in data:
            losses.append(model(each).square().sum())
            run.step()
        for n in (2, 0, 3, 1):
            losses[n].backward()
            model.zero_grad()
    assert rows(run)["0", "weight"] == [(n, 0, 0) for n in (2, 0, 3, 1)]
    holds(run, _bare(model, data))


def _bare(model, data):
    """Return the gradients of every parameter, in the order of the backwards above."""
    names = [tuple(name.rsplit(".", 1)) for name, _ in model.named_parameters()]
    found: dict[tuple[str, str], list[Tensor]] = {name: [] for name in names}
    for n in (2, 0, 3, 1):
        grads = torch.autograd.grad(model(data[n]).square().sum(), (*model.parameters(),))
        for name, g in zip(names, grads, strict=True):
            found[name].append(g)
    return found


@pytest.mark.parametrize("roles", ROLES)
def test_a_backward_after_the_next_forward_began_belongs_to_its_own_step(roles):
    model = nn.Linear(4, 1)
    optimizer = sgd(model)
    with no_faults(), watching(model, optimizer=optimizer, roles=roles) as run:
        late = None
        for _ in range(3):
            now = model(x).sum()
            if late is not None:
                late.backward()
            optimizer.step()
            optimizer.zero_grad()
            late = now
    assert rows(run)["", "weight"] == [(0, 0, 0), (1, 0, 0)]


@pytest.mark.parametrize(("steps", "want"), [("0", [(0, 0, 0)]), ("1", [(1, 0, 0)])])
@pytest.mark.parametrize("roles", ROLES)
def test_a_late_backward_is_recorded_if_its_forward_was(steps, want, roles):
    model = nn.Linear(4, 1)
    with no_faults(), watching(model, steps=steps, roles=roles) as run:
        losses = []
        for _ in range(3):
            losses.append(model(x).sum())
            run.step()
        model(x)
        for loss in losses:
            loss.backward()
            model.zero_grad()
    assert rows(run).get(("", "weight"), []) == want


@pytest.mark.parametrize("roles", [None, ["param_grad"]])
def test_one_backward_through_two_models_belongs_to_the_forward_of_each(roles):
    class Gan(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x):
            return self.lin(x)

    generator, critic = Gan(), Gan()
    with no_faults(), watching({"g": generator, "d": critic}, micro_batches=2, roles=roles) as run:
        critic(generator(x)).sum().backward()
    frame = run.frame(role="param_grad", direction="backward", leaf="weight")
    found = set(zip(frame["model"], frame["step"], frame["micro_step"], strict=True))
    assert found == {("g", 0, 0), ("d", 0, 1)}


def test_a_branch_that_did_not_run_has_no_row_for_that_step():
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 1), nn.Linear(4, 1)

        def forward(self, x, which):
            return getattr(self, which)(x)

    model = Branch()
    optimizer = sgd(model)
    with no_faults(), watching(model, optimizer=optimizer) as run:
        for which in "aba":
            model(x, which).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    assert rows(run)["a", "weight"] == [(0, 0, 0), (2, 0, 0)]
    assert rows(run)["b", "weight"] == [(1, 0, 0)]
    assert rows(run)["a", "weight.grad"] == [(2, 0, 0)]


def test_a_parameter_that_is_used_outside_of_a_forward_has_its_whole_gradient():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return x * self.scale

    model = Scaled()
    with no_faults(), watching(model) as run:
        (model(x).sum() + 3 * model.scale).backward()
    holds(run, {("", "scale"): [x.sum() + 3]})


# -- whose row it is --------------------------------------------------------------------------------


def test_a_parameter_that_is_unfrozen_later_has_rows_from_then_on():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    optimizer = sgd(model)
    with no_faults(), watching(model, optimizer=optimizer) as run:
        trains(model, optimizer)
        model[0].requires_grad_(True)
        trains(model, optimizer)
        model[0].requires_grad_(False)
        trains(model, optimizer)
    assert rows(run)["0", "weight"] == [(1, 0, 0)]
    assert rows(run)["1", "weight"] == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]


def test_a_replaced_parameter_or_module_has_rows_and_the_old_one_none():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    old = [model[0].weight, model[1]]
    optimizer = sgd(model)
    with no_faults(), watching(model, optimizer=optimizer) as run:
        trains(model, optimizer)
        model[0].weight = nn.Parameter(torch.full((4, 4), 2.0))
        model[1] = nn.Linear(4, 1)
        trains(model, optimizer)
        model(x)
        (old[0].sum() + old[1](x).sum()).backward()
    assert rows(run)["0", "weight"] == [(0, 0, 0), (1, 0, 0)]
    assert not old[0]._backward_hooks
    assert not old[1].weight._backward_hooks
    values = run.frame(role="param", direction="forward", module="0", leaf="weight")
    assert values["mean"].tolist()[1] == 2.0


class Tied(nn.Module):
    """One weight in two modules, and one module in two places."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.mid = self.again = nn.Linear(4, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.again(self.mid(self.embed(tokens))))


def test_a_shared_parameter_has_the_row_of_its_first_owner_and_the_run_says_so():
    torch.manual_seed(0)
    model, tokens = Tied(), torch.tensor([0, 3])
    loss = model(tokens).square().sum()
    truth = torch.autograd.grad(loss, (model.embed.weight, model.mid.weight, model.mid.bias))
    with no_faults(), watching(model) as run:
        model(tokens).square().sum().backward()
    names = [("embed", "weight"), ("mid", "weight"), ("mid", "bias")]
    holds(run, {name: [g] for name, g in zip(names, truth, strict=True)})
    assert leaves(run, "param") == set(names)
    assert run.info.shared == {"head.weight": "embed.weight"}


def test_of_the_owners_of_a_shared_parameter_the_first_selected_one_has_the_row():
    model = Tied()
    with no_faults(), watching(model, select=["head", "mid"]) as run:
        model(torch.tensor([0, 3])).sum().backward()
    assert leaves(run) == {("mid", "weight"), ("mid", "bias"), ("head", "weight")}
    assert run.info.shared == {}


def test_what_is_shared_is_saved_with_the_run(tmp_path):
    model = Tied()
    with watching(model) as run:
        model(torch.tensor([0]))
    loaded = probe.load(run.save(tmp_path / "run.parquet"))
    assert loaded.info.shared == {"head.weight": "embed.weight"}


def test_a_shared_parameter_moves_on_when_its_owner_loses_it():
    model = Tied()
    with no_faults(), watching(model) as run:
        model(torch.tensor([0])).sum().backward()
        model.embed.weight = nn.Parameter(torch.ones(5, 4))
        model.zero_grad()
        run.step()
        model(torch.tensor([0])).sum().backward()
    assert rows(run)["embed", "weight"] == [(0, 0, 0), (1, 0, 0)]
    assert rows(run)["head", "weight"] == [(1, 0, 0)]


def test_the_parameters_of_modules_that_are_not_selected_have_no_rows():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    with no_faults(), watching(model, select=["1"]) as run:
        model(x).sum().backward()
        assert not model[0].weight._backward_hooks
    assert leaves(run) == {("1", "weight"), ("1", "bias")}


def test_a_lazy_module_has_rows_from_its_first_step_on():
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyLinear(1))
    with no_faults(), watching(model) as run:
        model(x).sum().backward()
    truth = torch.autograd.grad(model(x).sum(), (*model.parameters(),))
    names = [tuple(name.split(".")) for name, _ in model.named_parameters()]
    holds(run, {name: [g] for name, g in zip(names, truth, strict=True)})


class Lists(nn.Module):
    """Parameters in containers, which have no forward of their own."""

    def __init__(self):
        super().__init__()
        self.many = nn.ParameterList([nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))])
        self.named = nn.ParameterDict({"a": nn.Parameter(torch.ones(2))})

    def forward(self):
        return self.many[0].sum() + 2 * self.many[1].sum() + 3 * self.named["a"].sum()


@pytest.mark.parametrize("roles", [None, ["param_grad"]])
def test_parameters_in_containers_without_a_forward_are_seen_under_the_right_step(roles):
    model = Lists()
    with no_faults(), watching(model, roles=roles) as run:
        first = model()
        run.step()
        model()
        first.backward()
    two, three = torch.ones(2), torch.ones(3)
    holds(run, {("many", "0"): [two], ("many", "1"): [2 * three], ("named", "a"): [3 * two]})
    assert set(run.frame(role="param_grad", direction="backward")["step"]) == {0}


@pytest.mark.parametrize(
    "of",
    [parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal],
)
def test_a_parametrized_weight_has_the_rows_of_what_is_behind_it(of):
    torch.manual_seed(0)
    bare = of(nn.Linear(4, 4))
    model = copy.deepcopy(bare)
    bare(x).square().sum().backward()
    with no_faults(), watching(model) as run:
        model(x).square().sum().backward()
    truth = {}
    for name, p in bare.named_parameters():
        module, _, leaf = name.rpartition(".")
        truth[module, leaf] = [p.grad]
        assert torch.equal(p.grad, model.get_parameter(name).grad)
    holds(run, truth)


def test_quantised_weights_are_no_parameters():
    class Int8(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("codes", torch.arange(16, dtype=torch.int8).reshape(4, 4))
            self.bias = nn.Parameter(torch.zeros(4))

        def forward(self, x):
            return x @ (self.codes.float() * 0.1) + self.bias

    model = nn.Sequential(Int8(), nn.Linear(4, 1))
    with no_faults(), watching(model) as run:
        model(x).sum().backward()
    assert leaves(run) == {("0", "bias"), ("1", "weight"), ("1", "bias")}
    assert leaves(run, "param") == leaves(run)


class Lora(nn.Module):
    """A low rank beside a frozen layer, named as PEFT names it."""

    def __init__(self, base, rank=2):
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, base.out_features, bias=False)})

    def forward(self, x):
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


def test_of_an_adapted_layer_the_adapter_has_gradients_and_the_base_none():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    with no_faults(), watching(model) as run:
        model(x).sum().backward()
        model.zero_grad()
        model.requires_grad_(False)
        model[0] = Lora(model[0])
        run.step()
        model(x).sum().backward()
    frame = run.frame(role="param_grad", direction="backward", step=1)
    found = set(zip(frame["module"], frame["leaf"], strict=True))
    assert found == {("0.lora_A.default", "weight"), ("0.lora_B.default", "weight")}
    frame = run.frame(role="param", step=1)
    assert set(frame["module"]) == {
        "0.base_layer",
        "0.lora_A.default",
        "0.lora_B.default",
        "1",
    }


def test_tensors_in_a_parameters_place_are_seen_and_left_alone():
    model = nn.Linear(4, 1, bias=False)
    fast = (model.weight * 2).detach().requires_grad_()
    slow = model.weight.detach().clone().requires_grad_()
    with no_faults(), watching(model) as run:
        functional_call(model, {"weight": fast}, (x,)).sum().backward()
        run.step()
        functional_call(model, {"weight": slow * 3}, (x,)).sum().backward()
        run.step()
        torch.func.grad(lambda w: functional_call(model, {"weight": w}, (x,)).sum())(slow.detach())
    gradient = x.sum(0, keepdim=True)
    assert torch.equal(slow.grad, 3 * gradient)
    holds(run, {("", "weight"): [gradient, gradient]})


# -- parameters that are swapped -----------------------------------------------------------------


@pytest.fixture
def swaps():
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(before)


CHANGES = {
    "to": lambda model: model.to(torch.float64),
    "data": lambda model: [setattr(p, "data", p.data.double()) for p in model.parameters()],
    "new": lambda model: model._apply(lambda t: t.double()),
    "load": lambda model: model.double().load_state_dict(
        {k: v.double() + 0.5 for k, v in model.state_dict().items()}
    ),
    "assign": lambda model: model.load_state_dict(
        {k: v.double() for k, v in model.state_dict().items()}, assign=True
    ),
    "twice": lambda model: model.half().double(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("swapping", [True, False])
def test_parameters_of_another_type_keep_their_rows(change, swapping, request):
    if swapping:
        request.getfixturevalue("swaps")
    model = nn.Linear(4, 1, bias=False)
    gradient = x.sum(0, keepdim=True)
    with no_faults(), watching(model) as run:
        model(x).sum().backward()
        model.zero_grad()
        CHANGES[change](model)
        run.step()
        model(x.double()).sum().backward()
    holds(run, {("", "weight"): [gradient, x.double().sum(0)]})
    assert run.frame(role="param_grad", direction="backward")["dtype"].tolist() == [
        "float32",
        "float64",
    ]
    assert not model.weight._backward_hooks


def test_a_users_hook_on_a_swapped_parameter_is_as_alive_as_without_a_watch(swaps):
    def fired(watch, after):
        """Count the calls of a hook put there before or after the swap."""
        model, calls = nn.Linear(4, 1), []

        def body():
            if not after:
                model.weight.register_hook(calls.append)
            model(x).sum().backward()
            model.double()
            if after:
                model.weight.register_hook(calls.append)
            model(x.double()).sum().backward()

        if watch:
            with no_faults(), watching(model, micro_batches=1):
                body()
        else:
            body()
        model(x.double()).sum().backward()
        return len(calls)

    for after in (True, False):
        assert fired(True, after) == fired(False, after), after


def test_a_parameter_swapped_last_of_all_is_given_back_whole(swaps):
    model, calls = nn.Linear(4, 1), []
    with no_faults(), watching(model):
        model(x).sum().backward()
        model.double()
    model.weight.register_hook(calls.append)
    model(x.double()).sum().backward()
    assert len(calls) == 1


# -- nothing is changed -----------------------------------------------------------------------------


def facts(model):
    """Return what can be told of the gradients of a model without the watch."""
    ids: dict[int, int] = {}
    found = []
    for name, p in model.named_parameters():
        g = p.grad
        if g is None or g.layout != torch.strided:
            found.append((name, None if g is None else g.to_dense().tolist()))
            continue
        place = ids.setdefault(g.untyped_storage().data_ptr(), len(ids))
        about = (g.stride(), g.storage_offset(), g._version, g._is_view(), place)
        found.append((name, g.tolist(), *about, p._version, p._use_count()))
    return found


def _accumulates(model, opt):
    for _ in range(2):
        model(x).square().sum().backward()
    opt.step()
    opt.zero_grad()


def _keeps_zeros(model, opt):
    model(x).square().sum().backward()
    opt.step()
    opt.zero_grad(set_to_none=False)


def _doubles(model, opt):
    loss = model(x).square().sum()
    grads = torch.autograd.grad(loss, (*model.parameters(),), create_graph=True)
    (loss + sum(g.square().sum() for g in grads)).backward()
    opt.step()
    opt.zero_grad()


def _pipelines(model, opt):
    losses = [model(x * n).square().sum() for n in range(3)]
    for loss in losses:
        loss.backward()
    opt.step()
    opt.zero_grad()


@pytest.mark.parametrize("step", [_accumulates, _keeps_zeros, _doubles, _pipelines])
def test_gradients_are_the_same_to_the_bit_and_in_the_same_memory(step):
    def trained(watch):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
        model[3].bias = model[1].bias = nn.Parameter(torch.zeros(4))
        model[3] = nn.Linear(4, 2)
        opt = torch.optim.Adam(model.parameters())
        seen = []
        session = watching(model, optimizer=opt) if watch else None
        for _ in range(3):
            step(model, opt)
            model(x).square().sum().backward()
            seen.append(facts(model))
        if session is not None:
            session.stop() if hasattr(session, "stop") else probe.stop()
        return seen, [p.detach().clone() for p in model.parameters()]

    bare, watched = trained(watch=False), trained(watch=True)
    assert bare[0] == watched[0]
    assert all(torch.equal(a, b) for a, b in zip(bare[1], watched[1], strict=True))


def test_a_gradient_is_the_same_object_before_and_after_and_none_is_kept_alive():
    model = nn.Linear(4, 1, bias=False)
    with no_faults(), watching(model):
        model(x).sum().backward()
        first, address = model.weight.grad, model.weight.grad.data_ptr()
        model(x).sum().backward()
        assert model.weight.grad is first
        assert model.weight.grad.data_ptr() == address
        gone = weakref.ref(first)
        del first
        model.weight.grad = None
        gc.collect()
        assert gone() is None


def test_a_gradient_is_taken_over_and_not_copied():
    def taken(watch):
        model, seen = nn.Linear(4, 1, bias=False), []
        model.weight.register_hook(lambda g: seen.append(g.data_ptr()))
        session = watching(model) if watch else None
        model(x).sum().backward()
        if session is not None:
            probe.stop()
        return seen == [model.weight.grad.data_ptr()]

    assert taken(watch=False)
    assert taken(watch=True)


def test_a_backward_that_raises_leaves_nothing_and_the_next_is_right():
    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            raise RuntimeError("on purpose")

    model = nn.Linear(4, 1, bias=False)
    before = nn.Parameter(x.clone())
    with no_faults(), watching(model) as run:
        with pytest.raises(RuntimeError, match="on purpose"):
            model(Breaks.apply(before)).sum().backward()
        model.zero_grad()
        run.step()
        model(x).sum().backward()
        model(x).sum().backward()
    frame = run.frame(role="param_grad", direction="backward", step=1)
    assert frame["leaf"].tolist() == ["weight", "weight", "weight.grad"]


def test_a_watch_that_ends_inside_a_backward_writes_nothing_more():
    model = nn.Linear(4, 1, bias=False)
    first = x.clone().requires_grad_()
    first.register_hook(lambda _: probe.stop() and None)
    run = probe.start(model, live=False)
    model(x).sum().backward()
    model(first).sum().backward()
    assert run.info.ended == "stopped"
    assert ("", "weight.grad") not in rows(run)


def test_a_watched_parameter_can_be_saved_and_copied():
    model = nn.Linear(4, 1)
    with no_faults(), watching(model):
        model(x).sum().backward()
        twin = copy.deepcopy(model)
        torch.save(model.state_dict(), io.BytesIO())
        torch.save(model, io.BytesIO())
        assert not twin.weight._backward_hooks
