"""A notebook over ipyparallel's engines: `engines.py NUMBER OUT`. Nothing is asserted here."""

from __future__ import annotations

import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

WATCHED = """
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(3, 1, bias=False)
torch.nn.init.ones_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
%load_ext probe_nb
%probe_start model --optimizer optimizer --keep (root)
for step in range(3):
    model(torch.full((4, 3), 10.0 * me + step + 1)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
run = %probe_stop
"""
LATER = """
import probe_nb as probe
with probe.watch(model, name="second", live=False, roles="input") as other:
    model(torch.full((1, 3), -1.0))
"""
OPEN = """
%probe_start model --no-live --roles input
model(torch.full((1, 3), 7.0))
"""
ALONE = "if me == 0: alone = other"


def told(gather: Any) -> Any:
    """Return what a call gives, or the words of its error."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            run = gather()
        except Exception as error:
            return type(error).__name__, str(error)
    names = ["step", "rank", "order", "module", "direction", "role", "leaf", "max", "l2"]
    frame = run.df.astype(dict.fromkeys(("module", "direction", "role", "leaf"), str))
    return {
        "rows": frame[names].to_dict("records"),
        "notices": run.info.notices,
        "name": run.info.name,
        "warned": [str(each.message) for each in heard if "probe_nb" in str(each.message)],
        "processes": {rank: each["ended"] for rank, each in run.info.processes.items()},
        "kept": {
            int(rank): run.tensor("(root)", step=1, rank=int(rank)).tolist()
            for rank in run.kept()["rank"].dropna().unique()
        },
    }


def main(number: int, out: Path) -> None:
    """Start engines, watch a model on each from cells, and gather."""
    import ipyparallel as ipp
    from IPython.core.interactiveshell import InteractiveShell

    import probe_nb as probe

    found: dict[str, Any] = {}
    with ipp.Cluster(n=number, log_level=40, engine_timeout=240) as client:
        view = client[:]
        view.block = True
        view.scatter("me", client.ids, flatten=True)
        shell = InteractiveShell.instance()
        shell.run_line_magic("load_ext", "ipyparallel")
        view.activate()

        def px(cell: str) -> None:
            shell.run_cell(f"%%px\n{cell}", store_history=False).raise_error()

        found["none"] = told(lambda: probe.gather(view))
        px(WATCHED)
        found["newest"] = told(lambda: probe.gather(view))
        px(LATER)
        found["second"] = told(lambda: probe.gather(client))
        found["variable"] = told(lambda: probe.gather(view, "run"))
        found["named"] = told(lambda: probe.gather(client[1], "second"))
        px(ALONE)
        found["alone"] = told(lambda: probe.gather(view, "alone"))
        px(OPEN)
        found["open"] = told(lambda: probe.gather(view))
        px("stopped = %probe_stop")
        found["wrong"] = told(lambda: probe.gather([1, 2]))
    out.write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
