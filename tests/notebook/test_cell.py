"""`%%probe` in a real kernel: the cell runs as if the first line were not there."""

from __future__ import annotations

import pytest

HOOKS = "len(torch.nn.modules.module._global_forward_pre_hooks)"
PROBE = "%%probe model --roles output\n"


def test_variables_stay_and_the_last_value_is_shown(kernel):
    reply = kernel.run(PROBE + "y = model(x)\nkept = [1, 2]\nlen(kept) + 40")
    assert (reply.status, reply.stderr, reply.value) == ("ok", "", "42")
    assert kernel.value("kept") == [1, 2]
    assert kernel.value("tuple(y.shape)") == (2, 3)
    kernel.run("run = %probe")
    assert kernel.value("(len(run), run.info.ended)") == (3, "finished")
    assert kernel.value(HOOKS) == 0


def test_the_report_takes_the_place_of_the_live_view(kernel):
    reply = kernel.run(PROBE + "model(x);")
    assert len(reply.shown) == 1
    (_, last) = reply.updates[-1]
    assert "<table" in last["text/html"]
    assert "application/vnd.jupyter.widget-view+json" not in last
    assert len(last["text/plain"].splitlines()) < 30


@pytest.mark.parametrize("last", ["model(x);", "model(x) ;  # no tensor please", "y = 1"])
def test_a_semicolon_or_a_statement_shows_no_value(kernel, last):
    assert kernel.run(PROBE + f"1\n{last}\n").bundle == {}


def test_the_semicolon_is_found_below_a_line_that_is_no_python(kernel):
    reply = kernel.run(PROBE + "!echo \\(\n6 * 7")
    assert (reply.status, reply.value) == ("ok", "42")
    assert kernel.run(PROBE + "!echo \\(\n6 * 7;").bundle == {}


def test_a_multi_line_string_is_intact(kernel):
    kernel.run(PROBE + "if True:\n    s = '''a\nb\n  %c\n!d'''")
    assert kernel.value("s") == "a\nb\n  %c\n!d"


def test_commands_and_magics_work_inside(kernel):
    reply = kernel.run(PROBE + "!echo from the shell\n%time z = 3\nfiles = !echo one\nfiles[0]")
    assert "from the shell" in reply.stdout
    assert (reply.status, reply.value) == ("ok", "'one'")
    assert kernel.value("z") == 3
    assert kernel.run(PROBE + "%%time\nmodel(x)\n7").value == "7"


def test_an_exception_fails_the_cell_with_one_traceback(kernel):
    kernel.run("def fail(): raise ValueError('of the user')")
    reply = kernel.run(PROBE + "model(x)\n\nfail()\n")
    assert (reply.status, len(reply.tracebacks)) == ("error", 1)
    (text,) = reply.tracebacks
    assert text.count("Traceback (most recent call last)") == 1
    assert "----> 4 fail()" in text  # the line of the cell as it stands in the notebook
    assert "raise ValueError('of the user')" in text
    assert "probe_nb" not in text
    kernel.run("run = %probe")
    assert kernel.value("len(run)") == 3
    assert kernel.value("run.info.ended") == "ValueError at step 0: of the user"
    assert kernel.value(HOOKS) == 0


def test_the_number_of_a_failing_cell_is_its_own(kernel):
    number = kernel.value("get_ipython().execution_count")
    (text,) = kernel.run(PROBE + "1 / 0").tracebacks
    assert text.replace("In [", "In[").count(f"Cell In[{number}], line") == 2


def test_the_exception_is_the_same_object(kernel):
    kernel.run("mine = KeyError('mine')")
    assert kernel.run(PROBE + "raise mine").status == "error"
    assert kernel.value("sys.last_value is mine if 'sys' in globals() else None") in (True, None)
    kernel.run("import sys; kept = sys.last_value")
    assert kernel.value("kept is mine and mine.__cause__ is None") is True
    assert kernel.value("mine.__context__ is None") is True


def test_an_exception_in_a_module_names_it(kernel):
    kernel.run(
        "class Bad(nn.Module):\n    def forward(self, x): raise ValueError('bad')\n"
        "model = nn.Sequential(nn.Linear(4, 3), Bad())"
    )
    assert kernel.run(PROBE + "model(x)").status == "error"
    kernel.run("run = %probe")
    assert kernel.value("run.info.ended") == "ValueError in 1 at step 0: bad"


def test_an_interrupt_fails_the_cell_and_keeps_the_rows(kernel):
    code = "import time\nmodel(x)\nprint('now', flush=True)\ntime.sleep(600)"
    reply = kernel.run(PROBE + code, interrupt_at="now")
    assert (reply.status, len(reply.tracebacks)) == ("error", 1)
    assert "KeyboardInterrupt" in reply.tracebacks[0]
    kernel.run("run = %probe")
    assert kernel.value("len(run)") == 3
    assert kernel.value("run.info.ended").startswith("KeyboardInterrupt")
    assert kernel.value(HOOKS) == 0


def test_running_the_cell_again_records_the_same_rows(kernel):
    for said in ("probe_nb: `run = %probe` gives the run of this cell.\n", "", ""):
        reply = kernel.run(PROBE + "model(x);")
        assert (reply.status, reply.stdout, reply.stderr) == ("ok", said, "")
        kernel.run("run = %probe")
        assert kernel.value("len(run)") == 3


def test_a_watch_of_the_same_model_ends_with_one_line(kernel):
    kernel.run("%probe_start model --roles output")
    kernel.run("model(x)\nbefore = %probe")
    reply = kernel.run(PROBE + "model(x);")
    assert (reply.status, reply.stderr) == ("ok", "")
    assert [line.partition(" ")[2][:7] for line in reply.stdout.splitlines()] == [
        "Stopped",
        "`run = ",
    ]
    kernel.run("run = %probe")
    again = "stopped: the same model was watched again"
    assert kernel.value("(len(before), before.info.ended)") == (3, again)
    assert kernel.value("len(run)") == 3
    assert kernel.run("%probe_stop").value is None


def test_a_watch_of_another_model_goes_on(kernel):
    kernel.run("other = nn.Linear(4, 1)\n%probe_start other --roles output")
    kernel.run(PROBE + "model(x); other(x);")
    kernel.run("outer = %probe_stop")
    assert kernel.value("outer.df['type'].tolist()") == ["Linear"]


@pytest.mark.parametrize(
    ("body", "line"), [("x = (1\n", 2), ("\n  \nx = 1 +\n", 4), ("a = 1\nreturn a", 3)]
)
def test_a_syntax_error_points_at_its_line_and_opens_nothing(kernel, body, line):
    number = kernel.value("get_ipython().execution_count")
    reply = kernel.run(PROBE + body)
    assert (reply.status, len(reply.tracebacks), reply.shown) == ("error", 1, [])
    assert f"Cell In[{number}], line {line}" in reply.tracebacks[0].replace("In [", "In[")
    assert kernel.value(HOOKS) == 0
    assert kernel.run("%probe").value is None


@pytest.mark.parametrize(
    "body",
    [
        "import asyncio\nawait asyncio.sleep(0)",
        "async with thing: pass",
        "[i async for i in thing]",
    ],
)
def test_a_cell_that_awaits_is_told_how(kernel, body):
    reply = kernel.run(PROBE + body)
    assert (reply.status, reply.shown) == ("error", [])
    assert reply.stderr.startswith("UsageError: ")
    assert len(reply.stderr.splitlines()) == 1
    assert "with probe.watch(model):" in reply.stderr
    assert kernel.run("%probe").value is None


def test_the_block_that_the_advice_names_works_with_await(kernel):
    kernel.run("import asyncio, probe_nb as probe")
    code = (
        "with probe.watch(model, roles='output') as run:\n    await asyncio.sleep(0)\n    model(x)"
    )
    assert kernel.run(code).status == "ok"
    assert kernel.value("len(run)") == 3


def test_a_coroutine_inside_a_function_is_no_await_of_the_cell(kernel):
    reply = kernel.run(PROBE + "async def later(): await thing\n5")
    assert (reply.status, reply.value) == ("ok", "5")


@pytest.mark.parametrize("line", ["modle", "model --sellect 0", "", "x", "model --select no.*"])
def test_a_mistake_in_the_line_is_one_red_line_and_the_cell_does_not_run(kernel, line):
    reply = kernel.run(f"%%probe {line}\nhas_run = True")
    assert (reply.status, reply.shown, reply.stdout) == ("error", [], "")
    assert reply.stderr.startswith("UsageError: ")
    assert len(reply.stderr.splitlines()) == 1
    assert kernel.value("'has_run' in globals()") is False
    assert kernel.value(HOOKS) == 0


def test_braces_and_dollars_are_python_and_not_expanded(kernel):
    kernel.run("models = {'$a': model}")
    assert kernel.run("%%probe {'a': models['$a']}['a']\nmodel(x);").status == "ok"


def test_an_output_widget_around_a_magic_does_not_hide_the_error(kernel):
    kernel.run("import ipywidgets")
    kernel.run("%probe_start model --roles output")
    with_output = "with ipywidgets.Output():\n    model(x)\n"
    kernel.run(with_output)
    reply = kernel.run("model(x)\nraise ValueError('seen')")
    assert (reply.status, len(reply.tracebacks)) == ("error", 1)
    kernel.run("run = %probe_stop")
    assert kernel.value("len(run)") == 6
    reply = kernel.run(PROBE + "model(x)\nraise ValueError('seen')")
    assert (reply.status, len(reply.tracebacks)) == ("error", 1)


def test_without_a_live_view_the_report_stands_below_the_cell(kernel):
    reply = kernel.run("%%probe model --roles output --no-live\nprint('first')\nmodel(x);")
    assert (reply.stdout.splitlines()[0], len(reply.shown), reply.updates) == ("first", 1, [])
    reply = kernel.run("%%probe model --no-live\n1 / 0")
    assert (reply.status, len(reply.shown)) == ("error", 1)
    assert "ZeroDivisionError" in reply.shown[0]
