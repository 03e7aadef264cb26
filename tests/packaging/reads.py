"""All that needs no torch, by an interpreter that has none: `python -I reads.py FOLDER [WHEEL]`.

FOLDER is what `saved.py` wrote. WHEEL is an unpacked wheel, where probe_nb is not installed; then
torch may be there, and is hidden. The numbers are those of ones through weights -1.5 to 1.25.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

FOLDER = Path(sys.argv[1])
if sys.argv[2:]:
    sys.path.insert(0, sys.argv[2])
    sys.modules["torch"] = None

import probe_nb  # noqa: E402 - from the place that was named
from probe_nb.errors import TorchError  # noqa: E402

OUTPUTS = (-4.5, -0.5, 3.5) * 2
MEAN = math.fsum(OUTPUTS) / len(OUTPUTS)
NORM = math.sqrt(math.fsum(each * each for each in OUTPUTS))
SPREAD = math.sqrt(math.fsum((each - MEAN) ** 2 for each in OUTPUTS) / len(OUTPUTS))

NEEDS_TORCH = {"gather", "self_check", "start", "step", "stop", "watch"}


def row(run, **site):
    return run.frame(**site).iloc[0]


def asks_for_torch(door):
    """Tell whether it is torch that something lacks, and says so."""
    try:
        door()
    except TorchError as error:
        return str(error) == "torch is not installed; only saved runs can be read without it."
    return False


def check_names():
    refused = {
        name
        for name in probe_nb.__all__
        if asks_for_torch(lambda name=name: getattr(probe_nb, name))
    }
    assert refused == NEEDS_TORCH, refused


def check_numbers(run):
    assert len(run.df) == len(run)
    assert sorted(run.df["step"].unique()) == [0, 1]
    of = row(run, module="0", role="output", step=1)
    assert (of["min"], of["max"], of["absmax"]) == (-4.5, 3.5, 4.5), of
    assert math.isclose(of["mean"], MEAN, rel_tol=1e-6), of
    assert math.isclose(of["l2"], NORM, rel_tol=1e-6), of
    assert (of["nan_count"], of["numel"], of["shape"]) == (0, 6, (2, 3)), of


def check_spread(run):
    of = row(run, module="0", role="output", step=1)
    assert math.isclose(of["std"], SPREAD, rel_tol=1e-6), of
    # 4.5 and 3.5, 0.5: exponents 2, 1 and -1, twice each
    counts = run.histogram("0", "output", 1)
    assert counts.total == len(OUTPUTS), counts


def check_words(run):
    assert run.findings()["severity"].isin(["note"]).all(), run.findings()
    assert run.first_nonfinite() is None
    assert "Sequential" in str(run)
    assert set(run.kept()["status"]) == {"kept"}
    assert run.structure() is not None
    share = run.what_if("float16")
    assert len(share) > 0


def check_infinite():
    run = probe_nb.load(FOLDER / "infinite.parquet")
    found = run.findings().iloc[0]
    assert (found["severity"], found["step"]) == ("error", 2), found
    assert run.first_nonfinite() is not None
    assert "✕" in run._repr_mimebundle_()["text/plain"]


def check_report(run):
    shown = run._repr_mimebundle_()
    page = shown["text/html"]
    assert "<table" in page, page[:200]
    assert "Sequential" in page, page[:200]
    assert probe_nb.view.BUNDLE.read_text(encoding="utf-8").strip()
    widget = run.inspect()
    assert bytes(widget.frame)[:4], widget
    assert "Scale" in widget.sites, widget.sites


def check_plots(run):
    import matplotlib as mpl

    mpl.use("Agg")
    axes = run.plot.trend("0", "output")
    assert axes.get_lines(), axes
    assert run.plot.heatmap() is not None


def check_dump(run):
    read = probe_nb.read_dump(FOLDER / "dump")
    check_numbers(read)
    compared = probe_nb.compare(run, FOLDER / "dump")
    assert compared.first_divergence() is None, compared
    assert compared.counts["same"] > 0, compared.counts
    verdicts = probe_nb.compare(FOLDER / "dump", FOLDER / "dump").to_msprobe()
    assert len(verdicts) > 0
    assert "pass" in set(verdicts["Result"]), verdicts


def check_comparison(run):
    compared = probe_nb.compare(run, probe_nb.load(FOLDER / "second.parquet"))
    found = compared.first_divergence()
    assert (found.module, found.step) == ("1", 0), found
    assert "first diverges at 1 (Scale)" in str(compared), compared
    assert "1 (Scale)" in compared._repr_mimebundle_()["text/html"]
    assert compared.inspect() is not None


def check_torch_is_asked_for(run):
    """What makes a tensor, or a file of one, says what it lacks."""
    second = probe_nb.load(FOLDER / "second.parquet")
    doors = (
        lambda: run.tensor("0", "input"),
        lambda: run.replay("0", None),
        lambda: probe_nb.compare(run, second).replay("0", None),
        lambda: probe_nb.compare(run, second).to_msprobe(),
    )
    assert [asks_for_torch(door) for door in doors] == [True] * len(doors)


def check_writing(run, folder):
    again = probe_nb.load(run.save(folder / "again.parquet"))
    check_numbers(again)
    run.write_dump(folder / "dump", task="statistics")
    check_numbers(probe_nb.read_dump(folder / "dump"))


def main():
    import tempfile

    check_names()
    run = probe_nb.load(FOLDER / "first.parquet")
    check_numbers(run)
    check_spread(run)
    check_words(run)
    check_infinite()
    check_report(run)
    check_plots(run)
    check_dump(run)
    check_comparison(run)
    check_torch_is_asked_for(run)
    with tempfile.TemporaryDirectory() as folder:
        check_writing(run, Path(folder))
    assert sys.modules.get("torch") is None
    sys.stdout.write(probe_nb.__file__)


if __name__ == "__main__":
    main()
