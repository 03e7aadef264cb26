"""A cell that ends where a NaN is born."""

from __future__ import annotations

HOOKS = "len(torch.nn.modules.module._global_forward_hooks)"


def test_a_cell_ends_where_a_nan_is_born_and_says_in_which_line(kernel):
    kernel.run("%load_ext probe_nb\n%probe_start model --stop-on nonfinite --no-live")
    reply = kernel.run("a = 1\nmodel(x * float('nan'))\na = 2")
    assert reply.status == "error"
    (shown,) = reply.tracebacks
    assert "NonFiniteError" in shown
    assert "NaN first appeared at step 0 in (root) (forward input)" in shown
    assert "your code: Cell In[" in shown
    assert kernel.value("a") == 1
    assert kernel.value(HOOKS) == 0


def test_the_run_is_there_after_it(kernel):
    kernel.run("%load_ext probe_nb\n%probe_start model --stop-on nonfinite --no-live")
    kernel.run("model(x * float('nan'))")
    kernel.run("run = %probe")
    assert kernel.value("run.is_open, run.first_nonfinite().phase") == (False, "input")
    kernel.run("again = %probe_stop")
    assert kernel.value("again is run")
