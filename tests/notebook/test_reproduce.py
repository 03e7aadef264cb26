"""`find_random` in a real kernel: cells have numbers, and the shell's own frames are left out."""

from __future__ import annotations

FOUND = "found.df[['api_name', 'count', 'cell', 'line', 'function', 'code']].values.tolist()"


def test_a_row_says_which_cell_and_line(kernel):
    kernel.run("import probe_nb as probe\ndef noisy(x):\n    return torch.nn.functional.dropout(x)")
    made = kernel.value("get_ipython().execution_count") - 1
    kernel.run("with probe.find_random() as found:\n    for _ in range(3):\n        noisy(x)")
    name = "torch.nn.functional.dropout"
    code = "return torch.nn.functional.dropout(x)"
    assert kernel.value(FOUND) == [[name, 3, made, 3, "noisy", code]]
    stack = kernel.value("found.df['stack'][0]").splitlines()
    assert stack == [
        f"cell [{made}], line 3, in noisy: {code}",
        f"cell [{made + 1}], line 3, in <module>: noisy(x)",
    ]


def test_seeds_of_one_cell_hold_in_the_next_until_they_are_given_back(kernel):
    kernel.run("import probe_nb as probe\nbefore = torch.get_rng_state()")
    kernel.run("fixed = probe.seed_all(7)")
    first = kernel.value("torch.rand(2).tolist()")
    kernel.run("again = probe.seed_all(7)")
    assert kernel.value("torch.rand(2).tolist()") == first
    kernel.run("fixed.restore()")
    assert kernel.value("torch.equal(torch.get_rng_state(), before)") is True
