"""`PrecisionDebugger` in cells of a notebook: one that is changed and run again begins anew."""

from __future__ import annotations


def test_a_changed_cell_begins_anew_and_a_loop_in_one_cell_goes_on(in_shell):
    answer = in_shell("""
        ip.run_cell('''
        import json, pathlib, torch
        from probe_nb.debugger import PrecisionDebugger
        model = torch.nn.Sequential(torch.nn.Linear(3, 2))
        def step():
            debugger.start(model)
            torch.relu(model(torch.ones(1, 3)))
            debugger.stop()
            debugger.step()
        ''', store_history=True)
        cell = '''
        for _ in range(2):
            debugger = PrecisionDebugger(dump_path="{}", level="{}")
            step()
        '''
        for path, level in (("a", "L0"), ("a", "L0"), ("b", "L1")):
            assert ip.run_cell(cell.format(path, level), store_history=True).success
            ip.run_cell("steps = debugger.run.df['step'].unique().tolist()")
            answer = (answer or []) + [ip.user_ns["steps"]]
        ip.run_cell("later = debugger.run; step()", store_history=True)  # in a cell of its own
        found = ip.user_ns["pathlib"].Path().glob("*/step*/proc*/dump.json")
        kinds = {}
        for path in found:
            data = json.loads(path.read_text())["data"]
            kinds["/".join(path.parts[:2])] = sorted({key.partition(".")[0] for key in data})
        answer.append(kinds)
    """)
    modules, functions = ["Module"], ["Functional", "Torch"]
    assert answer == [
        [0, 1],
        [0, 1],  # the same cell, run again: from 0 on
        [0, 1],
        {
            "a/step0": modules,
            "a/step1": modules,
            "b/step0": functions,
            "b/step1": functions,
            "b/step2": functions,
        },
    ]


def test_a_debugger_in_a_cell_says_what_it_is_and_prints_nothing_else(kernel):
    kernel.run("from probe_nb.debugger import PrecisionDebugger\nimport tempfile")
    reply = kernel.run(
        "debugger = PrecisionDebugger(dump_path=tempfile.mkdtemp(), level='L0')\n"
        "debugger.start(model)\nmodel(x).sum().backward()\ndebugger.stop()\ndebugger.step()\ndebugger"
    )
    assert reply.status == "ok"
    assert reply.stdout == reply.stderr == ""
    assert reply.value is not None
    assert reply.value.startswith("PrecisionDebugger: task statistics, level L0, at step 1, files")
    kernel.run("debugger.close()")
