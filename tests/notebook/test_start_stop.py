"""`%probe_start`, `%probe_stop`, `%probe_step` and `%probe` in a real kernel."""

from __future__ import annotations

import json
import textwrap

import pytest

from tests.notebook.conftest import SECONDS

HOOKS = "len(torch.nn.modules.module._global_forward_pre_hooks)"
START = "%probe_start model --roles output"


def test_the_cells_between_start_and_stop_are_recorded(kernel):
    assert kernel.run(START).value is None
    kernel.run("model(x)")
    kernel.run("for _ in range(2): model(x)")
    reply = kernel.run("run = %probe_stop")
    assert (reply.status, reply.value, reply.stderr) == ("ok", None, "")
    assert kernel.value("len(run)") == 9  # three forwards of three modules
    assert kernel.value("run.info.ended") == "stopped"
    assert kernel.value("run.df['module'].astype(str).unique().tolist()") == ["0", "1", ""]
    assert kernel.value(HOOKS) == 0


def test_stop_displays_the_report_and_the_live_view_becomes_one_line(kernel):
    started = kernel.run(START)
    assert len(started.shown) == 1
    kernel.run("model(x);")
    stopped = kernel.run("%probe_stop")
    assert "<table" in stopped.bundle["text/html"]
    (_, end) = stopped.updates[-1]
    assert "application/vnd.jupyter.widget-view+json" not in end
    assert len(end["text/plain"].splitlines()) == 1


def test_stopping_twice_is_one_line_and_no_error(kernel):
    kernel.run(START)
    kernel.run("%probe_stop")
    reply = kernel.run("%probe_stop")
    assert (reply.status, reply.value, reply.stderr) == ("ok", None, "")
    assert len(reply.stdout.splitlines()) == 1
    assert kernel.run("again = %probe_stop").status == "ok"
    assert kernel.value("again is None") is True


def test_starting_again_and_again_never_doubles_a_row(kernel):
    first = kernel.run(START)
    assert first.stdout == ""
    for _ in range(2):
        reply = kernel.run(START)
        assert (reply.status, reply.stderr, len(reply.stdout.splitlines())) == ("ok", "", 1)
    kernel.run("model(x)")
    kernel.run(f"before = %probe\nold = model\n{'model = nn.Linear(4, 1)'}")
    reply = kernel.run("%probe_start model --roles output")  # a new object, the same name
    assert len(reply.stdout.splitlines()) == 1
    kernel.run("old(x); model(x)")
    kernel.run("run = %probe_stop")
    assert kernel.value("(len(before), before.info.ended)") == (3, "stopped: another watch began")
    assert kernel.run("again = %probe earlier").stdout == ""
    assert kernel.value("again is before") is True
    assert kernel.value("(len(run), run.df['type'].tolist())") == (1, ["Linear"])
    assert kernel.value(HOOKS) == 0
    assert kernel.run("%probe_stop").status == "ok"


def test_a_watch_that_another_has_stopped_says_where_its_run_is(kernel):
    kernel.run(START)
    nothing = kernel.run(START)  # it had recorded nothing
    assert nothing.stdout.endswith("a new watch begins.\n")
    kernel.run("model(x)\nfirst = %probe")
    again = kernel.run(START)
    assert "`run = %probe earlier` gives the run that was stopped" in again.stdout
    kernel.run("run = %probe earlier")
    assert kernel.value("(run is first, len(run))") == (True, 3)
    assert kernel.value("run.info.ended") == "stopped: the same model was watched again"
    kernel.run("model(x)\nsecond = %probe")
    warned = kernel.run("import probe_nb as probe\nwith probe.watch(model) as third: model(x);")
    assert "When this one has ended, `run = %probe` gives the earlier run." in warned.stderr
    stopped = kernel.run("run = %probe_stop")
    assert "Nothing is being watched" in stopped.stdout
    assert "`run = %probe` gives the last run" in stopped.stdout
    kernel.run("run = %probe")
    assert kernel.value("(run is second, len(run), len(third.frame(role='output')))") == (
        True,
        3,
        3,
    )
    kernel.run("%unload_ext probe_nb\n%load_ext probe_nb")
    assert kernel.run("%probe earlier").stdout == "probe_nb: There is no earlier run.\n"


def test_a_failing_cell_stays_a_failure_and_is_written_down(kernel):
    kernel.run(START)
    reply = kernel.run("model(x)\nraise ValueError('of the user')")
    assert (reply.status, len(reply.tracebacks)) == ("error", 1)
    assert "probe_nb" not in reply.tracebacks[0]
    kernel.run("model(x)")  # the hooks are still there
    kernel.run("run = %probe_stop")
    assert kernel.value("len(run)") == 6
    (notice,) = kernel.value("run.info.notices")
    assert "ValueError: of the user" in notice
    assert "step 0" in notice


def test_an_interrupted_cell_keeps_what_was_recorded(kernel):
    kernel.run(START)
    code = "import time\nmodel(x)\nprint('now', flush=True)\ntime.sleep(600)"
    reply = kernel.run(code, interrupt_at="now")
    assert (reply.status, len(reply.tracebacks)) == ("error", 1)
    kernel.run("run = %probe_stop")
    assert kernel.value("len(run)") == 3
    assert "KeyboardInterrupt" in kernel.value("run.info.notices")[0]


@pytest.mark.parametrize("end", ["", "1 / 0"])
def test_the_last_frame_of_a_cell_holds_all_of_its_rows(kernel, end):
    kernel.run(START)
    reply = kernel.run(f"for _ in range(50): model(x)\n{end}")
    status = json.loads(reply.traits["status"])
    assert (status["step"], status["records"]) == (49, 150)


def test_probe_shows_the_open_run_then_the_last_one(kernel):
    nothing = kernel.run("%probe")
    assert (nothing.value, len(nothing.stdout.splitlines())) == (None, 1)
    kernel.run(START)
    kernel.run("model(x)")
    kernel.run("during = %probe")
    kernel.run("run = %probe_stop")
    kernel.run("after = %probe")
    assert kernel.value("during is run and after is run") is True


def test_a_step_ends_where_the_user_says(kernel):
    kernel.run(START)
    kernel.run("model(x)\n%probe_step")
    kernel.run("for _ in range(2):\n    model(x); model(x)\n    %probe_step\n")
    kernel.run("run = %probe_stop")
    assert kernel.value("run.df.groupby('step').size().to_dict()") == {0: 3, 1: 6, 2: 6}


def test_optimizers_and_options_reach_the_session(kernel):
    kernel.run("opts = {'a b': torch.optim.SGD(model.parameters(), lr=.1)}")
    kernel.run(
        "%probe_start model --optimizer opts['a b'] --select 'type:Linear' --roles output,input"
        " --steps 11 --first-step 10 --name 'my run'"
    )
    kernel.run(
        "for _ in range(3):\n    model(x).sum().backward()\n"
        "    opts['a b'].step(); opts['a b'].zero_grad()"
    )
    kernel.run("run = %probe_stop")
    assert kernel.value("run.info.name") == "my run"
    assert kernel.value("run.df['step'].astype(int).tolist()") == [11, 11]
    assert kernel.value("run.df['role'].astype(str).tolist()") == ["input", "output"]
    assert kernel.value("run.df['module'].astype(str).unique().tolist()") == ["0"]


def test_the_inputs_of_modules_that_are_named_are_kept(kernel):
    kernel.run("%probe_start model --keep '(root), type:ReLU' --keep 0")
    kernel.run("y = model(x)\n%probe_step")
    kernel.run("run = %probe_stop")
    assert kernel.value("run.kept()['module'].astype(str).tolist()") == ["", "0", "1"]
    assert kernel.value("bool((run.tensor('(root)') == x).all())") is True
    assert kernel.value("bool((run.tensor('1') == model[0](x)).all())") is True


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("{'a b': model}['a b']", ["model"]),
        ("{'gen': gen, 'disc': disc}", ["gen", "disc"]),
        ("gen, disc", ["gen", "disc"]),
        ("[gen, disc][1]", ["model"]),
        ("model if x.numel() else disc", ["model"]),
        ("(lambda m: m)(model)  # the one above", ["model"]),
        ("[each for each in (gen, disc)]", ["0", "1"]),
    ],
)
def test_any_expression_gives_the_model(kernel, expression, names):
    kernel.run("gen, disc = nn.Linear(4, 2), nn.Linear(2, 1)")
    reply = kernel.run(f"%probe_start {expression}")
    assert (reply.status, reply.stderr) == ("ok", "")
    kernel.run("run = %probe_stop")
    assert kernel.value("list(run.info.models)") == names


def test_a_variable_of_the_function_around_is_found(kernel):
    kernel.run("def f(inner):\n    %probe_start inner --roles output\n    inner(x)\nf(model)")
    kernel.run("run = %probe_stop")
    assert kernel.value("len(run)") == 3


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("modle", ["modle", "`model`"]),
        ("x", ["torch.nn.Module", "Tensor"]),
        ("nn.Linear", ["class Linear"]),
        ("model.weigth", ["model.weigth", "AttributeError"]),
        ("model[7]", ["IndexError"]),
        ("model --sellect 0", ["--sellect", "`--select`"]),
        ("model --select nothing.*", ["nothing.*", "3 modules"]),
        ("model --roles outputs", ["outputs", "`output`"]),
        ("model --first-step one", ["--first-step", "`one`"]),
        ("model --first-step -3", ["-3"]),
        ("model --micro-batches 0", ["`--micro-batches` is 0"]),
        ("model --steps 5-1", ["`--steps` has `5-1`"]),
        ("model --memory lots", ["`--memory` is 'lots'", "or `none` for no limit"]),
        ("model --token-range 2", ["`--token-range` is '2'", "such as `2,5`"]),
        ("model --roles steps", ["`steps` is not a role"]),
        ("model --optimizer opt", ["`opt` is not defined"]),
        ("model --optimizer model", ["optimizer"]),
        ("model --name", ["--name"]),
        ("model and (", ["`)`"]),
        ('models["a', ["quote"]),
        ("model model", ["model model"]),
        ("", ["%probe_start model"]),
    ],
)
def test_a_mistake_is_one_red_line_and_nothing_is_opened(kernel, line, words):
    kernel.run(START)
    kernel.run("open_run = %probe")
    reply = kernel.run(f"%probe_start {line}")
    assert (reply.status, reply.stdout, reply.shown) == ("error", "", [])
    assert reply.stderr.startswith("UsageError: ")
    assert len(reply.stderr.splitlines()) == 1
    assert "Traceback" not in "".join(reply.tracebacks)
    for word in words:
        assert word in reply.stderr
    assert kernel.value("open_run.is_open") is True
    kernel.run("run = %probe_stop")
    assert kernel.value("run is open_run") is True
    assert kernel.value(HOOKS) == 0


def test_an_exception_of_a_function_in_the_expression_is_the_users(kernel):
    kernel.run("def make():\n    return {}['of the user']")
    reply = kernel.run("%probe_start make()")
    assert (reply.status, len(reply.tracebacks)) == ("error", 1)
    assert "return {}['of the user']" in reply.tracebacks[0]


@pytest.mark.parametrize("magic", ["%probe", "%probe_stop", "%probe_step"])
def test_magics_without_argument_say_so(kernel, magic):
    reply = kernel.run(f"{magic} model")
    assert reply.status == "error"
    assert reply.stderr.startswith(f"UsageError: `{magic}` takes no argument")


def test_a_step_with_nothing_open_is_one_red_line(kernel):
    reply = kernel.run("%probe_step")
    assert reply.status == "error"
    assert reply.stderr.startswith("UsageError: There is no step to end.")


def test_no_live_shows_no_view(kernel):
    reply = kernel.run(START + " --no-live")
    assert reply.shown == []
    assert len(reply.stdout.splitlines()) == 1
    kernel.run("model(x)")
    assert kernel.run("%probe_stop").value is not None


def test_a_session_closed_elsewhere_is_not_missed(kernel):
    kernel.run(START)
    kernel.run("import probe_nb as probe\nmodel(x)\nrun = probe.stop()")
    reply = kernel.run("%probe_stop")
    assert (reply.status, len(reply.stdout.splitlines())) == ("ok", 1)
    kernel.run("last = %probe")
    assert kernel.value("last is run") is True
    kernel.run("import probe_nb as probe\nrun = probe.start(model, live=False)")
    kernel.run("got = %probe_stop")
    assert kernel.value("got is run and not run.is_open") is True


def test_autoreload_and_config_work_between_start_and_stop(kernel, tmp_path):
    source = tmp_path / "net_for_autoreload.py"
    source.write_text("def factor(): return 2\n")
    kernel.run(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n%load_ext autoreload")
    kernel.run("%autoreload 2")
    kernel.run("import net_for_autoreload")
    kernel.run(START)
    kernel.run("model(x)")
    source.write_text("def factor(): return 2 + 1  # a longer file\n")
    assert kernel.run("net_for_autoreload.factor()").value == "3"
    kernel.run("%config InteractiveShell.ast_node_interactivity = 'all'")
    reply = kernel.run("1\n2")
    kernel.run("%config InteractiveShell.ast_node_interactivity = 'last_expr'\n%autoreload 0")
    assert (reply.status, reply.value) == ("ok", "2")
    assert kernel.run("model(x)").status == "ok"
    kernel.run("run = %probe_stop")
    assert kernel.value("len(run)") == 6


def test_help_lists_every_option(kernel):
    pages = kernel.client.execute_interactive("%probe_start?", timeout=SECONDS, output_hook=print)
    text = pages["content"]["payload"][0]["data"]["text/plain"]
    for option in (
        *("--optimizer", "--scaler", "--select", "--roles", "--keep", "--steps", "--first-step"),
        *("--micro-batches", "--compiled", "--recompute", "--memory", "--name", "--no-live"),
        "--stop-on",
    ):
        assert option in text


def test_a_stack_names_the_cell_and_the_line_and_nothing_of_the_notebook(kernel):
    kernel.run("def forward(f):\n    return f(x)\n\n\nrun_it = lambda: forward(model)")
    made = kernel.value("get_ipython().execution_count")
    kernel.run("%probe_start model --stacks --no-live")
    kernel.run("# one\nrun_it()")
    kernel.run("run = %probe_stop")
    assert kernel.value("run.calls()['stack'].astype(str)[1].splitlines()") == [
        f"File Cell In[{made - 1}], line 2, in forward",
        "    return f(x)",
        f"File Cell In[{made - 1}], line 5, in <lambda>",
        "    run_it = lambda: forward(model)",
        f"File Cell In[{made + 1}], line 2, in <module>",
        "    run_it()",
    ]


def test_structure_alone_is_shown_as_the_tree_when_the_watch_stops(kernel):
    kernel.run("%probe_start model --structure --no-live")
    kernel.run("model(x)")
    reply = kernel.run("stopped = %probe_stop\nstopped")
    assert reply.status == "ok"
    assert reply.value.splitlines() == [
        "model · Sequential · 3 modules · 15 parameters",
        "",
        "module  type        parameters  inputs          outputs",
        "(root)  Sequential          15  float32 (2, 4)  float32 (2, 3)",
        "  0     Linear              15  float32 (2, 4)  float32 (2, 3)",
        "  1     ReLU                 0  float32 (2, 3)  float32 (2, 3)",
    ]
    assert "<code>(root)</code>" in reply.bundle["text/html"]
    assert kernel.value("set(stopped.df['status'])") == {"not_asked"}


def test_a_wrong_name_shows_the_users_line_and_not_all_of_what_is_behind_it(kernel):
    kernel.run("import probe_nb as probe\nwith probe.watch(model, live=False) as run: model(x);")
    for line, said in (
        ("run.history('9', 'output', 'l2')", "SelectionError: "),
        ("probe.watch(model, extras={'spectral': '*'})", "ConfigError: "),
        ("with probe.watch(model, keep='nope'): pass", "SelectionError: No module matches `nope`"),
    ):
        (shown,) = kernel.run(line).tracebacks
        assert f"> 1 {line}" in shown
        assert "skipping hidden" in shown
        assert said in shown
        assert len(shown.splitlines()) < 30
    assert kernel.run("%xmode Verbose").status == "ok"
    try:
        (whole,) = kernel.run("%tb").tracebacks
    finally:
        kernel.run("%xmode Context")
    assert "skipping hidden" not in whole
    assert len(whole.splitlines()) > 3 * len(shown.splitlines())


def test_what_led_to_a_wrong_name_is_shown_whole(kernel):
    code = """
    import probe_nb as probe
    with probe.watch(model, live=False) as run: model(x)
    def find():
        try:
            {}['of the user']
        except KeyError:
            run.history('9', 'output', 'l2')
    find()
    """
    (shown,) = kernel.run(textwrap.dedent(code)).tracebacks
    assert "{}['of the user']" in shown
    assert shown.count("find()") > 1
    assert "SelectionError: " in shown.splitlines()[-1]
