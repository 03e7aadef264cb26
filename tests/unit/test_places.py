"""The user's own line, wherever torch runs what they wrote."""

from __future__ import annotations

import sys
import threading

import torch

from probe_nb.places import own_lines


def test_it_is_the_innermost_line_and_the_first():
    def inner():
        return own_lines()

    def outer():
        return inner()

    said = outer()
    assert said.startswith(f"{__file__}:{inner.__code__.co_firstlineno + 1} in inner, called from ")
    assert said.count(__file__) == 2


def test_what_torch_runs_is_found_behind_its_frames():
    said = []
    x = torch.ones(1, requires_grad=True)
    x.register_hook(lambda _: said.append(own_lines()))
    here = sys._getframe().f_lineno + 1
    (x * 2).sum().backward()
    assert f"{__file__}:" in said[0]
    assert said[0].endswith(f"{__file__}:{here} in test_what_torch_runs_is_found_behind_its_frames")
    assert "autograd" not in said[0]


def test_a_thread_of_torchs_own_is_where_the_one_that_waits_for_it_is():
    """A backward on a device runs in such a thread; nothing in it is the user's."""
    said = []

    def hook(_):
        thread = threading.Thread(target=asks(said))
        thread.start()
        thread.join()

    x = torch.ones(1, requires_grad=True)
    x.register_hook(hook)
    line = sys._getframe().f_lineno + 1
    (x * 2).sum().backward()
    assert f":{line} in test_a_thread_of_torchs_own" in said[0]


def test_a_program_without_a_line_of_its_own_has_none():
    said = []
    thread = threading.Thread(target=asks(said))
    thread.start()
    thread.join()
    assert said == [""]


def asks(said):
    """Return what asks for the line, and has no line in any file of the user's itself."""
    names = {"said": said, "own_lines": own_lines}
    exec(compile("def ask(): said.append(own_lines())", "<frozen ask>", "exec"), names)
    return names["ask"]
