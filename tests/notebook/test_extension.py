"""Loading, completion, unloading and the terminal, each in a shell of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.notebook.conftest import PRELUDE, environment

FINGERPRINT = """
ip.run_line_magic("unload_ext", "nothing")  # newer shells make their own magics when first used
def fingerprint():
    manager = ip.magics_manager
    return (
        {kind: {name: id(f) for name, f in table.items()} for kind, table in manager.magics.items()},
        {name: id(each) for name, each in manager.registry.items()},
        {event: list(map(id, calls)) for event, calls in ip.events.callbacks.items()},
        list(map(id, ip.Completer.custom_matchers)),
        len(ip.Completer.matchers),
        list(map(id, ip.configurables)),
        list(map(id, ip.ast_transformers)),
        list(map(id, ip.input_transformers_post)),
        list(map(id, ip.input_transformer_manager.line_transforms)),
        sorted(ip.user_ns),
    )
"""
MODEL = """
ip.run_cell('''
import torch
from torch import nn
model, head, mlist = nn.Linear(4, 3), nn.ReLU(), [nn.Linear(1, 1)]
opt, scaler = torch.optim.SGD(model.parameters(), lr=1), torch.amp.GradScaler("cpu")
number, name = 5, "model"
net = nn.Module()
net.encoder, net.head, net.factor = nn.Sequential(), nn.ReLU(), 2
net.encoder.append(nn.ReLU())
net.encoder.last = nn.ReLU()
batch, tensors = torch.ones(2), [torch.ones(2)]
''').raise_error()
"""


def test_unloading_leaves_the_shell_as_it_was(in_shell):
    script = """
    ip.run_line_magic("load_ext", "probe_nb")
    ip.run_line_magic("unload_ext", "probe_nb")
    """
    assert in_shell(
        FINGERPRINT
        + f"""
before = fingerprint()
{"".join(line.strip() + chr(10) for line in script.splitlines())}
answer = [fingerprint() == before, ip.find_line_magic("probe_start") is None]
"""
    ) == [True, True]


def test_unloading_ends_the_watch_and_gives_back_what_stood_there(in_shell):
    assert in_shell(
        FINGERPRINT
        + MODEL
        + """
from IPython.core.magic import register_line_magic
ip.register_magic_function(lambda line: "theirs", "line", "probe")
before = fingerprint()
ip.run_line_magic("load_ext", "probe_nb")
ip.run_line_magic("probe_start", "model --roles output")
ip.run_cell("for _ in [0]: model(torch.ones(1, 4))")
run = ip.run_line_magic("probe", "")
ip.run_line_magic("unload_ext", "probe_nb")
answer = [
    fingerprint() == before, ip.run_line_magic("probe", ""), len(run), run.info.ended,
    len(sys.modules["torch"].nn.modules.module._global_forward_hooks),
]
"""
    ) == [True, "theirs", 1, "stopped", 0]


def test_loading_twice_and_reloading_are_safe(in_shell):
    assert in_shell(
        FINGERPRINT
        + MODEL
        + """
import probe_nb
ip.run_line_magic("load_ext", "probe_nb")
once = fingerprint()
ip.run_line_magic("load_ext", "probe_nb")
probe_nb.load_ipython_extension(ip)
twice = fingerprint()
ip.run_line_magic("probe_start", "model")
ip.run_line_magic("reload_ext", "probe_nb")
calls = ip.events.callbacks["post_run_cell"]
answer = [once == twice, len(ip.Completer.custom_matchers), ip.run_line_magic("probe_stop", "")]
ip.run_line_magic("unload_ext", "probe_nb")
probe_nb.unload_ipython_extension(ip)
answer.append(ip.find_line_magic("probe_start") is None)
"""
    ) == [True, 1, None, True]


def test_the_shell_is_not_loaded_with_the_package():
    code = "import sys, probe_nb; print([m for m in ('IPython', 'torch', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def completions(tmp_path_factory):
    """What the tab key offers at the end of a text, asked of one shell for all tests."""
    script = (
        PRELUDE
        + MODEL
        + """
from IPython.core.completer import provisionalcompleter
ip.Completer.use_jedi = False
ip.run_line_magic("load_ext", "probe_nb")
with provisionalcompleter():
    for line in sys.stdin:
        text = json.loads(line)
        print(json.dumps([each.text for each in ip.Completer.completions(text, len(text))]), flush=True)
"""
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(IPYTHONDIR=tmp_path_factory.mktemp("ipython")),
    ) as process:

        def ask(text):
            process.stdin.write(json.dumps(text) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield ask
        process.stdin.close()


OPTIONS = [
    *("--apis", "--backward-only", "--baseline", "--checksum", "--compiled"),
    *("--first-step", "--forward-only"),
    *("--keep", "--level", "--memory", "--micro-batches", "--name", "--names", "--no-live"),
    *("--optimizer",),
    *("--ranks", "--recompute", "--roles", "--scaler", "--scope", "--select", "--slices"),
    *("--stacks", "--steps", "--stop-on", "--structure", "--token-range", "--values", "--when"),
]
ROLES = [
    *("buffer", "grad_input", "grad_output", "input", "output", "param", "param_grad"),
    *("state", "update"),
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%probe_start model --", OPTIONS),
        ("%probe_start --", OPTIONS),
        ("%probe_start model --select a --st", ["--stacks", "--steps", "--stop-on", "--structure"]),
        ("x = 1\n%probe_start model --r", ["--ranks", "--recompute", "--roles"]),
        ("%%probe model --o", ["--optimizer"]),
        ("%probe_start model --roles ", ROLES),
        ("%probe_start model --roles grad", ["grad_input", "grad_output"]),
        ("%probe_start model --roles input,grad_o", ["grad_output"]),
        ("%probe_start model --roles=par", ["param", "param_grad"]),
        ("%probe_start m", ["mlist", "model"]),
        ("%%probe ", ["head", "mlist", "model", "net"]),
        ("%probe_start model, he", ["head"]),
        ("%probe_start [mo", ["model"]),
        ("%probe_start model --optimizer ", ["opt"]),
        ("%probe_start model --scaler ", ["scaler"]),
        ("%probe_start --no-live mo", ["model"]),
        ("%probe_start net.", ["net.encoder", "net.head"]),
        ("%%probe net.encoder.l", ["net.encoder.last"]),
        ("%probe_start [model, net.h", ["net.head"]),
        ("%probe_save ", ["batch", "tensors"]),
        ("%probe_save ba", ["batch"]),
        ("%probe_save --name it b", ["batch"]),
        ("%probe_save batch --n", ["--name", "--no-backward"]),
        ("%probe_compare a --", ["--fuzzy", "--mapping", "--ranks", "--tolerance"]),
    ],
)
def test_tab_completes_exactly_what_fits(completions, text, expected):
    assert sorted(completions(text)) == expected


@pytest.mark.parametrize(
    ("text", "among"),
    [
        ("%probe_start num", "number"),
        ("mod", "model"),
        ("%%probe model\nnum", "number"),
        ("%probe_st", "%probe_start"),
    ],
)
def test_tab_elsewhere_is_ipythons(completions, text, among):
    assert any(found.endswith(among) for found in completions(text))


def test_in_a_terminal_the_magics_speak_text(in_shell):
    shown = in_shell(
        MODEL
        + """
import contextlib, io
ip.run_line_magic("load_ext", "probe_nb")
answer = []
for cell in (
    "%probe_start model --roles output", "model(torch.ones(1, 4));", "%probe_stop",
    "%%probe model --roles output\\nmodel(torch.ones(1, 4))\\n42", "%%probe model\\n1 / 0",
):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        ip.run_cell(cell, store_history=True)
    answer.append(out.getvalue())
"""
    )
    started, nothing, stopped, cell, failed = shown
    assert len(started.splitlines()) == 1
    assert nothing == ""
    for text in (stopped, cell):
        assert "Linear" in text
        assert "<" not in text.replace("<=", "")
        assert len(text.splitlines()) < 30
    assert cell.rstrip().endswith(": 42")
    assert failed.count("Traceback (most recent call last)") == 1
    assert "1 / 0" in failed


def test_the_module_runs_under_ipython_as_a_program(tmp_path):
    script = tmp_path / "session.ipy"
    script.write_text(
        "%load_ext probe_nb\nimport torch\nmodel = torch.nn.Linear(4, 3)\n"
        "%probe_start model --roles output\nmodel(torch.ones(1, 4))\n"
        "run = %probe_stop\nprint('rows', len(run))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--colors=nocolor", "--quick", str(script)],
        capture_output=True,
        text=True,
        check=True,
        timeout=250,
    )
    assert "rows 1" in done.stdout
