"""What Python writes the front end reads: every number of every version, bit by bit, in Node.js."""

from __future__ import annotations

import json
import shutil
import subprocess

import numpy as np
import pytest

import hatch_build
from probe_nb.view import moments, wire
from probe_nb.view.frame import COLUMNS, FrameBuilder
from tests.unit.view.make_runs import hundred_layers

ODD = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e300, -1e300, 5e-324, 1 / 3, 2.0**53 + 2)
READER = """
import { readFileSync } from "node:fs";
import { decodeFrame, decodeMoments, decodePictures, decodeTrend } from "SOURCES/decode";
const hex = (a) => Buffer.from(a.buffer, a.byteOffset, a.byteLength).toString("hex");
const hexes = (o) => Object.fromEntries(Object.entries(o).map(([name, each]) => [name, hex(each)]));
const plain = (frame) => frame && {
  rows: frame.rows, sparkLength: frame.sparkLength, columns: hexes(frame.columns),
  spark: hex(frame.spark), offsets: hex(frame.offsets), bins: hex(frame.bins),
  counts: hex(frame.counts), baseline: plain(frame.compared?.baseline ?? null),
  pairs: frame.compared && hexes(frame.compared.columns) };
const past = ({ moments, rows }) => ({ rows: [...rows],
  moments: moments.map(({ step, frame }) => ({ step, frame: plain(frame) })) });
const read = { frame: (b) => plain(decodeFrame(b)), moments: (b) => past(decodeMoments(b)),
  trend: (b) => { const { sparkLength, ...rest } = decodeTrend(b); return { sparkLength, ...hexes(rest) }; },
  pictures: (b) => decodePictures(b).map((p) => ({ ...p, cells: hex(p.cells) })) };
const found = {};
for (const file of process.argv.slice(2)) {
  const bytes = readFileSync(file);
  const moved = new Uint8Array(bytes.length + 12);  // a message begins anywhere in its buffer
  moved.set(bytes, 12);
  const [name, kind] = file.split("/").pop().split(".");
  found[name] = read[kind](new DataView(moved.buffer, 12, bytes.length));
}
console.log(JSON.stringify(found));
"""


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Give bytes, by name and kind, to the front end; return what it made of them."""
    hatch_build.install(tests=True)
    folder = tmp_path_factory.mktemp("reader")
    sources = (hatch_build.FRONTEND / "src").as_posix()
    (folder / "reader.ts").write_text(READER.replace("SOURCES", sources), "utf-8")
    wheel = hatch_build.wheel_node()
    node = shutil.which("node") or str(wheel)
    asked = {"entryPoints": [f"{folder}/reader.ts"], "outfile": f"{folder}/reader.mjs"}
    asked |= {"bundle": True, "format": "esm", "platform": "node", "logLevel": "warning"}
    bundle = f'import {{ build }} from "esbuild"; await build({json.dumps(asked)})'
    command = [node, "--input-type=module", "--eval", bundle]
    subprocess.run(command, cwd=hatch_build.FRONTEND, check=True)

    def reads(**files):
        paths = []
        for name, (kind, data) in files.items():
            paths.append(folder / f"{name}.{kind}")
            paths[-1].write_bytes(data)
        told = subprocess.run(
            [node, folder / "reader.mjs", *paths], check=True, capture_output=True, text=True
        )
        return json.loads(told.stdout)

    return reads


def odd(*shape, kind="<f8"):
    """Make numbers of every kind, none of them where another test of this file has it."""
    with np.errstate(over="ignore"):
        return np.resize(np.array(ODD), shape).astype(kind)


def made(rows, steps):
    """Return a frame of odd numbers and what it holds."""
    sizes = np.arange(rows) % 4
    entries = int(sizes.sum())
    holds = {
        "columns": list(odd(len(COLUMNS), rows) if rows else np.empty((len(COLUMNS), 0))),
        "spark": odd(rows, steps),
        "sizes": sizes,
        "bins": (np.arange(entries) * 37 % 512).astype("<u2"),
        "counts": odd(entries, kind="<f4"),
    }
    return wire.frame(*holds.values()), holds


def assert_is(got, holds):
    """The front end has exactly these numbers."""
    rows = len(holds["sizes"])
    assert (got["rows"], got["sparkLength"]) == (rows, holds["spark"].shape[1])
    assert list(got["columns"]) == list(COLUMNS)
    for name, column in zip(COLUMNS, holds["columns"], strict=True):
        assert got["columns"][name] == column.astype("<f8").tobytes().hex(), name
    offsets = np.append(0, np.cumsum(holds["sizes"])).astype("<u4")
    assert got["offsets"] == offsets.tobytes().hex()
    for name in ("spark", "bins", "counts"):
        assert got[name] == holds[name].tobytes().hex(), name


@pytest.mark.parametrize(("rows", "steps"), [(0, 0), (1, 1), (7, 3), (20, 0), (33, 5)])
def test_a_frame_and_a_comparison_arrive_bit_by_bit(read, rows, steps):
    run, holds = made(rows, steps)
    other, before = made(rows, steps + 1)
    pairs = list(odd(len(wire.PAIRS), rows)[:, ::-1])
    both = wire.comparison(pairs, run, other)
    got = read(run=("frame", run), both=("frame", both))
    assert_is(got["run"], holds)
    assert (got["run"]["baseline"], got["run"]["pairs"]) == (None, None)
    assert_is(got["both"], holds)
    assert_is(got["both"]["baseline"], before)
    assert list(got["both"]["pairs"]) == list(wire.PAIRS)
    for name, column in zip(wire.PAIRS, pairs, strict=True):
        assert got["both"]["pairs"][name] == column.tobytes().hex()


def test_moments_arrive_bit_by_bit(read):
    frames = [made(7, 0) for _ in range(3)]
    rows, steps = [0, 2, 3, 5, 8, 13, 4_000_000_000], [-1, 57, 2**53]
    got = read(past=("moments", wire.moments(steps, rows, [data for data, _ in frames])))["past"]
    assert got["rows"] == rows
    assert [moment["step"] for moment in got["moments"]] == steps
    for moment, (_, holds) in zip(got["moments"], frames, strict=True):
        assert_is(moment["frame"], holds)


@pytest.mark.parametrize(("rows", "steps"), [(0, 0), (7, 3), (20, 32)])
def test_a_trend_arrives_bit_by_bit(read, rows, steps):
    peaks, at = odd(rows, steps), np.arange(steps) * 3 - 1
    got = read(trend=("trend", wire.trend(at, peaks)))["trend"]
    assert got["spark"] == peaks.tobytes().hex()
    assert got["sparkSteps"] == at.astype("<f8").tobytes().hex()
    assert got["sparkLength"] == steps


def test_pictures_arrive_bit_by_bit(read):
    cells, about = odd(5, 3), {"step": 7, "shape": [5, 3], "slice": '「é」 "x"'}
    data = wire.picture(3, {"asked": 5, **about}, cells) + wire.picture(
        9, {"why": "none"}, np.empty((0, 0))
    )
    first, second = read(all=("pictures", data))["all"]
    told = {"row": 3, "asked": 5, "height": 5, "width": 3, "about": about}
    told["cells"] = cells.tobytes().hex()
    assert first == told
    assert (second["row"], second["cells"], second["about"]) == (9, "", {"why": "none"})


def test_a_real_run_and_its_moments_arrive(read):
    run = hundred_layers(bad=50, steps=4)
    builder = FrameBuilder(run.columns, run.info)
    builder.update()
    got = read(run=("frame", builder.frame()), past=("moments", moments.whole(builder)))
    numbers = builder.numbers()
    spark = builder.tally.window.peaks
    for frame, peaks in ((got["run"], spark), (got["past"]["moments"][-1]["frame"], spark[:, :0])):
        holds = numbers._asdict() | {"spark": peaks.astype("<f8")}
        holds |= {"bins": numbers.bins.astype("<u2"), "counts": numbers.counts.astype("<f4")}
        assert_is(frame, holds)
    assert got["past"]["rows"] == list(range(200))
    assert [moment["step"] for moment in got["past"]["moments"]] == [0, 1, 2, 3]
