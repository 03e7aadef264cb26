"""`seed_all` and `find_random` leave no name, variable, switch, mode or random number changed."""

# ruff: noqa: NPY002 - the functions that are looked for
from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import sys
import threading
from types import ModuleType

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.backends import cudnn

from probe_nb.reproduce import find_random, random_save, seed_all
from tests.models import no_faults

VARIABLES = ("PYTHONHASHSEED", "HCCL_DETERMINISTIC", "CUBLAS_WORKSPACE_CONFIG")
OPTIONS = [
    {},
    {"mode": True},
    {"rm_dropout": True},
    {"is_enhanced": True},
    {"mode": True, "rm_dropout": True, "is_enhanced": True},
]


def everything():
    """Return every name of the libraries, every variable, switch and random number."""
    rooms = [torch, F, torch.Tensor, torch.nn, torch.nn.init, random, random.Random, np.random]
    rooms += [np.random.Generator, np.random.RandomState, torch._C._nn, torch._VF]
    import torch._inductor.config as compiler

    return {
        **{f"{room}.{name}": id(value) for room in rooms for name, value in vars(room).items()},
        "modules": {
            (module, name): id(value)
            for module, room in list(sys.modules.items())
            if isinstance(room, ModuleType)
            for name, value in list(vars(room).items())
            if callable(value) and not isinstance(value, type)
        },
        "environment": dict(os.environ),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "compiler": compiler.deterministic,
        "cudnn": (cudnn.enabled, cudnn.benchmark, cudnn.deterministic),
        "profile": sys.getprofile(),
        "modes": torch.utils._python_dispatch._get_current_dispatch_mode_stack(),
        "waiting seeds": dict(vars(torch.cuda._lazy_seed_tracker)),
        "numbers": numbers(),
    }


def numbers():
    """Return where the generators are; nothing is drawn."""
    return (
        random.getstate(),
        pickle.dumps(np.random.get_state(legacy=False)),
        torch.get_rng_state().numpy().tobytes(),
    )


def changed(before):
    after = everything()
    return {
        key: (value, after.get(key))
        for key, value in before.items()
        if after.get(key) != value and key != "modules"
    } | {
        key: "module name"
        for key, value in before["modules"].items()
        if after["modules"].get(key) != value
    }


def draw():
    random.random()
    np.random.rand(3)
    torch.rand(3)
    torch.ones(3).normal_()
    F.dropout(torch.ones(4))


everything()  # so that what it imports is there before


@pytest.mark.parametrize("options", OPTIONS, ids=lambda each: "-".join(each) or "plain")
def test_after_restore_everything_is_as_if_nothing_had_happened(options, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "99")
    monkeypatch.delenv("HCCL_DETERMINISTIC", raising=False)
    before = everything()
    seeded = seed_all(5, **options)
    draw()
    assert changed(before)
    seeded.restore()
    assert changed(before) == {}


def test_after_a_search_everything_is_as_if_nobody_had_looked():
    before = everything()
    with no_faults(), find_random() as found:
        assert changed(before)
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        draw()
        here = numbers()
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    draw()
    assert numbers() == here
    assert len(found) == 5
    del before["numbers"], before["waiting seeds"]  # which the seeds above changed
    assert changed(before) == {}


def test_without_a_call_that_draws_a_search_draws_nothing():
    before = everything()
    with find_random() as found:
        torch.ones(3).relu().sum()
    assert changed(before) == {}
    assert (len(found), found.notes) == (0, ())


@pytest.mark.parametrize("block", [find_random, lambda: seed_all(is_enhanced=True)])
def test_an_exception_of_the_users_passes_and_everything_is_given_back(block):
    before, raised = everything(), KeyError("mine")
    with pytest.raises(KeyError) as caught, block():
        raise raised
    assert caught.value is raised
    assert changed(before) == {}


def test_the_end_of_a_block_inside_gives_back_what_the_block_outside_had_set():
    with seed_all(1, mode=True, rm_dropout=True, is_enhanced=True) as outside:
        one = torch.rand(1)
        here = everything()
        with seed_all(2):
            assert os.environ["PYTHONHASHSEED"] == "2"
            assert not torch.are_deterministic_algorithms_enabled()
            assert not torch.equal(torch.rand(1), torch.rand(1))
            assert (F.dropout(torch.ones(1000)) == 0).any()
        assert {key for key in changed(here) if key in ("environment", "deterministic")} == set()
        assert torch.equal(torch.rand(1), one)
        assert torch.equal(F.dropout(torch.ones(1000)), torch.ones(1000))
    assert "given back" in repr(outside)


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "dropped"])
def test_restore_takes_back_later_ones_too(kept):
    before = everything()
    outside = seed_all(1, rm_dropout=True)
    inside = seed_all(2, mode=True, is_enhanced=True)
    if not kept:
        inside = None
    outside.restore()
    assert changed(before) == {}
    if kept:
        inside.restore()
        assert changed(before) == {}


def test_restore_twice_puts_nothing_back_a_second_time():
    seeded = seed_all(3)
    seeded.restore()
    torch.rand(2)
    here = numbers()
    seeded.restore()
    assert numbers() == here


def test_restore_in_another_thread_gives_everything_back():
    before = everything()
    seeded = seed_all(3, mode=True, rm_dropout=True, is_enhanced=True)
    other = threading.Thread(target=seeded.restore)
    other.start()
    other.join()
    assert set(changed(before)) == {"compiler"}, "this one option is a thread's own"
    torch._inductor.config.deterministic = before["compiler"]
    assert changed(before) == {}


def test_what_the_user_has_set_in_between_is_theirs(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    mine = lambda *args, **kwargs: args[0]  # noqa: E731
    original, flags = F.dropout, (cudnn.benchmark, cudnn.deterministic)
    seeded = seed_all(rm_dropout=True, is_enhanced=True)
    monkeypatch.setenv("PYTHONHASHSEED", "77")
    monkeypatch.setattr(F, "dropout", mine)
    seeded.restore()
    assert os.environ["PYTHONHASHSEED"] == "77"
    assert F.dropout is mine
    assert (cudnn.benchmark, cudnn.deterministic) == flags
    monkeypatch.undo()  # which puts our function back: it calls the one it stood for
    assert (F.dropout(torch.ones(1000)) == 0).any()
    F.dropout = original


def test_a_name_that_was_imported_meanwhile_is_torchs_afterwards():
    user = ModuleType("a_user_of_torch")
    sys.modules[user.__name__] = user
    try:
        with seed_all(is_enhanced=True):
            exec("from torch import rand\nfrom torch.nn.functional import dropout", user.__dict__)
            assert user.rand is not torch._C._VariableFunctions.rand
        assert (user.rand, user.dropout) == (torch.rand, F.dropout)
        with seed_all(rm_dropout=True):
            assert torch.equal(user.dropout(torch.ones(100)), torch.ones(100))
    finally:
        del sys.modules[user.__name__]


def test_a_failure_in_the_middle_changes_nothing(monkeypatch):
    before = everything()

    def refuse(seed):
        raise RuntimeError("no seed today")

    with monkeypatch.context() as patched:
        patched.setattr(torch, "manual_seed", refuse)
        with pytest.raises(RuntimeError, match="no seed today"):
            seed_all(mode=True, rm_dropout=True, is_enhanced=True)
    assert changed(before) == {}


def test_a_forked_process_restores_its_own_and_leaves_ours():
    seeded = seed_all(3)
    here = numbers()
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe()

    def child():
        seeded.restore()
        writer.send((os.environ.get("PYTHONHASHSEED"), numbers() == here))

    process = context.Process(target=child)
    process.start()
    process.join(250)
    assert reader.recv() == (seeded._changes[0].before, False)
    assert (os.environ["PYTHONHASHSEED"], numbers()) == ("3", here)
    seeded.restore()


def test_searches_that_end_in_the_wrong_order_give_everything_back(tmp_path):
    before = everything()
    written = random_save(str(tmp_path))
    block = find_random()
    block.__enter__()
    written.stop()
    np.random.rand(2)
    torch.rand(2)
    block.__exit__(None, None, None)
    assert list(block.df["api_name"]) == ["numpy.random.rand", "torch.rand"]
    before["numbers"] = numbers()
    assert changed(before) == {}


def test_a_search_tells_the_profile_function_of_the_users_everything_and_gives_it_back():
    told = []

    def mine(frame, event, arg):
        told.append((event, frame.f_code.co_name))

    sys.setprofile(mine)
    try:
        with find_random() as found:
            random.choice([1, 2])
        assert sys.getprofile() is mine
    finally:
        sys.setprofile(None)
    assert ("call", "choice") in told
    assert list(found.df["api_name"]) == ["random.choice"]


def test_a_mode_of_the_users_that_outlives_the_search_stays():
    class Mine(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    mine, block = Mine(), find_random()
    block.__enter__()
    with mine:
        block.__exit__(None, None, None)
        stack = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
        assert [each is mine for each in stack] == [True]
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []
