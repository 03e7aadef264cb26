"""`%probe_save` in a real kernel."""

from __future__ import annotations

START = "%probe_start --level debug --no-live"
ROWS = "[[r.api, r.call, r.direction, r.leaf, float(r.mean)] for r in run.df.itertuples()]"


def test_a_value_is_saved_under_the_expression_or_a_name(kernel):
    assert kernel.run(START).status == "ok"
    kernel.run("h = torch.full((2,), 3.0, requires_grad=True)\ny = h * 2")
    reply = kernel.run("%probe_save y")
    assert (reply.status, reply.value, reply.stdout, reply.stderr) == ("ok", None, "", "")
    assert kernel.run('%probe_save {"a": h, "n": 3} --name "my pair" --no-backward').status == "ok"
    kernel.run("y.sum().backward()")
    kernel.run("run = %probe_stop")
    assert kernel.value(ROWS) == [
        ["y", 0, "forward", "", 6.0],
        ["my pair", 0, "forward", "a", 3.0],
        ["y", 0, "backward", "", 1.0],
    ]
    assert kernel.value("run.values()[['api', 'leaf', 'value']].values.tolist()") == [
        ["my pair", "n", 3]
    ]


def test_it_sees_the_variables_of_a_function(kernel):
    kernel.run(START)
    assert kernel.run("def f(inner):\n    %probe_save inner\nf(torch.ones(2))").status == "ok"
    kernel.run("run = %probe_stop")
    assert kernel.value(ROWS) == [["inner", 0, "forward", "", 1.0]]


def test_mistakes_are_one_line(kernel):
    nothing = kernel.run("%probe_save model")
    assert "UsageError: There is no watch to record it." in nothing.stderr
    kernel.run(START)
    for line, said in (
        ("%probe_save", "was given no value"),
        ("%probe_save unknown_name", "`unknown_name` is not defined"),
        ("%probe_save model --nane x", "`--nane` is not an option. The closest is `--name`"),
        ("%probe_save model[", "`]` is missing"),
    ):
        reply = kernel.run(line)
        assert said in reply.stderr, reply
        assert not reply.tracebacks
    kernel.run("%probe_stop")


def test_help_shows_the_options(kernel):
    shown = kernel.value(
        "type(get_ipython().magics_manager.registry['ProbeMagics']).probe_save.__doc__"
    )
    assert "--no-backward" in shown
    assert "--name" in shown
