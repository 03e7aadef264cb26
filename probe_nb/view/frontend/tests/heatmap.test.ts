import assert from "node:assert/strict";
import { test } from "vitest";
import { Data } from "../src/data";
import { Sites } from "../src/sites";
import { decodeFrame } from "../src/decode";
import { cellAt, columnsOf, edgeOf, heatOf, heatTicks, limitLines, OF_STRIP, OF_ZERO, placeOf, strength } from "../src/heatmap";
import { describeHeat, saidOf, signRuns } from "../src/heatwords";
import type { Frame } from "../src/types";
import { encode, site, status, type Row } from "./fake";

type Bins = [exponent: number, count: number][];

/** A frame of one row; negative bins by their own list. */
function frame(step: number, positive: Bins, negative: Bins = [], values: Row["values"] = {}): Frame {
  const histogram: Row["histogram"] = [
    ...positive.map(([e, n]): [number, number] => [e + 127, n]),
    ...negative.map(([e, n]): [number, number] => [e + 127 + 256, n]),
  ];
  return decodeFrame(encode([{ site: site({}), values: { step, ...values }, spark: [], histogram }], 0));
}

function data(frames: Frame[], shown = frames.length - 1, moment: number | null = null): Data {
  const moments = frames.map((each) => ({ step: each.columns.step[0] as number, frame: each }));
  return new Data(new Sites([site({})]), status(), frames[shown] as Frame, { moments, why: "" }, moment);
}

const heat = (frames: Frame[], limits?: [number, number, number]) => heatOf(columnsOf(data(frames), 0), limits);

test("a step is a column once, in rising order, and the numbers shown win over a moment of the same step", () => {
  const all = data([frame(5, [[0, 1]]), frame(2, [[0, 2]]), frame(9, [[0, 4]]), frame(9, [[0, 7]])]);
  const columns = columnsOf(all, 0);
  assert.deepEqual(columns.map(({ step }) => step), [2, 5, 9]);
  assert.deepEqual(columns.map(({ total }) => total), [2, 1, 7]);
});

test("a row that a moment has nothing of has no column there", () => {
  assert.deepEqual(columnsOf(data([frame(NaN, []), frame(3, [[0, 1]])]), 0).map(({ step }) => step), [3]);
  assert.deepEqual(columnsOf(data([frame(3, [[0, 1]])]), 1), []);
});

test("shares are of all elements, zeros and what is not finite among them", () => {
  const found = heat([
    frame(0, [[1, 1], [-2, 2]], [[-2, 1]], { zero_count: 3, nan_count: 1, posinf_count: 1, neginf_count: 1 }),
    frame(1, [[1, 4]]),
  ]);
  // exponents -2 to 1 are widened to eight: -4 to 3
  assert.deepEqual([found.low, found.high, found.size, found.cells], [-4, 3, 1, 8]);
  const first = [...found.shares.subarray(0, 16)];
  const expected = Array(16).fill(0);
  expected[3 - 1] = 0.1; // 2^1, counted from the top
  expected[3 + 2] = 0.2; // 2^-2
  expected[8 + 2] = 0.1; // -2^-2, counted from the middle
  first.forEach((share, at) => assert.ok(Math.abs(share - expected[at]) < 1e-7, `cell ${at}`));
  assert.equal(found.shares[16 + 2], 1);
  assert.equal(found.most, 1);
  assert.ok(Math.abs(found.least - 0.1) < 1e-7);
});

test("where one sign has no values its half is left out, and zeros have a row only where there are any", () => {
  assert.deepEqual(heat([frame(0, [[0, 1]]), frame(1, [[0, 1]])]).halves, { positive: true, negative: false, zero: false });
  assert.deepEqual(heat([frame(0, [], [[0, 1]], { zero_count: 1 })]).halves, { positive: false, negative: true, zero: true });
  assert.deepEqual(heat([frame(0, [], [], { nan_count: 4 })]).halves, { positive: true, negative: false, zero: false });
});

test("a wide range shares cells, and every element is still there", () => {
  const bins: Bins = Array.from({ length: 200 }, (_, k) => [k - 127, 1]);
  const found = heat([frame(0, bins)]);
  assert.equal(found.size, 5); // 200 exponents in at most 48 cells
  assert.equal(found.cells, 40);
  assert.ok(Math.abs(found.shares.reduce((a, b) => a + b) - 1) < 1e-6);
  assert.ok([...found.shares.subarray(0, 40)].every((share) => Math.abs(share - 5 / 200) < 1e-7));
});

test("a limit of the dtype that is near is in view, one that is far is not", () => {
  const near = heat([frame(0, [[12, 1], [0, 1]])], [-24, 15, 65504]);
  assert.deepEqual([near.low, near.high], [0, 15]);
  const far = heat([frame(0, [[5, 1], [-10, 1]])], [-133, 127, 3e38]);
  assert.deepEqual([far.low, far.high], [-10, 5]);
});

test("cells, the row of zeros and the strip of signs stand where they are found again", () => {
  const found = heat([frame(0, [[3, 1], [-4, 1]], [[0, 1]], { zero_count: 1 }), frame(1, [], [], { nan_count: 2 })]);
  const place = placeOf(found, 134, 118, 34); // strip 12, zeros 6: fifty for each half of eight cells
  assert.deepEqual([place.strip, place.zero.top, place.zero.height, place.columnWidth], [12, 62, 6, 50]);
  assert.equal(place.cellHeight, 6.25);
  assert.equal(edgeOf(3, false, found, place), 12);
  assert.equal(edgeOf(-4, false, found, place), 62 - 6.25);
  assert.equal(edgeOf(3, true, found, place), 118);
  assert.deepEqual(cellAt(found, place, 40, 5), { column: 0, cell: OF_STRIP });
  assert.deepEqual(cellAt(found, place, 90, 64), { column: 1, cell: OF_ZERO });
  assert.deepEqual(cellAt(found, place, 40, 13), { column: 0, cell: 0 });
  assert.deepEqual(cellAt(found, place, 40, 61), { column: 0, cell: 7 });
  assert.deepEqual(cellAt(found, place, 40, 69), { column: 0, cell: 8 });
  assert.deepEqual(cellAt(found, place, 134, 117.9), { column: 1, cell: 15 });
  assert.equal(cellAt(found, place, 20, 50), null);
});

test("a cell says its step, its values and their share", () => {
  const found = heat([frame(7, [[3, 1], [-4, 2]], [[0, 1]], { zero_count: 4 }), frame(8, [], [], { nan_count: 2, neginf_count: 1 })]);
  assert.equal(saidOf(found, { column: 0, cell: 0 }), "step 7, 2³ … 2⁴: 12.5 % of 8");
  assert.equal(saidOf(found, { column: 0, cell: 7 }), "step 7, 2⁻⁴ … 2⁻³: 25.0 % of 8");
  assert.equal(saidOf(found, { column: 0, cell: 12 }), "step 7, -2⁰ … -2¹: 12.5 % of 8");
  assert.equal(saidOf(found, { column: 0, cell: OF_ZERO }), "step 7, zeros: 50.0 % of 8");
  assert.equal(saidOf(found, { column: 0, cell: OF_STRIP }), "step 7: all finite");
  assert.equal(saidOf(found, { column: 1, cell: OF_STRIP }), "step 8: 2 NaN, 1 -Inf");
});

test("columns that are not finite, or nothing but zeros, bear a sign, neighbours one together", () => {
  const { columns } = heat([
    frame(0, [[0, 1]]),
    frame(1, [[0, 1]], [], { posinf_count: 1 }),
    frame(2, [], [], { nan_count: 1, posinf_count: 1 }),
    frame(3, [], [], { nan_count: 1 }),
    frame(4, [], [], { zero_count: 5 }),
    frame(5, [[0, 1]]),
  ]);
  assert.deepEqual(signRuns(columns), [
    { sign: "∞", from: 1, to: 2 },
    { sign: "✕", from: 2, to: 4 },
    { sign: "0", from: 4, to: 5 },
  ]);
});

test("the strength of a colour falls by a quarter for each decade and never to nothing", () => {
  assert.equal(strength(0, 1), 0);
  assert.equal(strength(0.5, 0.5), 1);
  assert.ok(Math.abs(strength(0.005, 0.5) - 0.5) < 1e-9);
  assert.equal(strength(1e-9, 1), 0.04);
});

test("limits of the dtype are lines on both sides, where they are in view", () => {
  const found = heat([frame(0, [[15, 1], [0, 1]], [[15, 1]])], [-24, 15, 65504]);
  const place = placeOf(found, 134, 101, 34); // fifty a half of sixteen cells, one between
  assert.deepEqual(limitLines(found, place, [-24, 15, 65504]), [{ y: 0, top: true }, { y: 101, top: true }]);
  assert.deepEqual(limitLines(found, place, [2, 20, 1e6]), [
    { y: 50 - 2 * 3.125, top: false },
    { y: 51 + 2 * 3.125, top: false },
  ]);
  assert.deepEqual(limitLines(found, place), []);
});

test("labels are round powers of two that have room, and 0 in the middle", () => {
  const found = heat([frame(0, [[3, 1], [-4, 1]], [[3, 1]])]);
  const ticks = heatTicks(found, placeOf(found, 134, 101, 34), 13); // three of them on 50 pixels
  assert.deepEqual(ticks, [
    { y: 25, words: "2⁰" },
    { y: 0, words: "2⁴" },
    { y: 76, words: "-2⁰" },
    { y: 101, words: "-2⁴" },
    { y: 50.5, words: "0" },
  ]);
});

test("the heat map says in words what it shows", () => {
  const steps = [frame(0, [[0, 1]], [[-3, 1]]), ...[1, 2, 3, 4].map((step) => frame(step, [], [], { nan_count: 1 })), frame(6, [], [], { zero_count: 1 })];
  assert.equal(
    describeHeat(heat(steps)),
    "histograms of 6 steps, 0 to 6; values of both signs between 2⁻⁵ and 2³; NaN in 4 steps from 1 on; nothing but zeros in step 6",
  );
});

test("of very many steps some are shown, evenly, the first that is not finite and the last among them", () => {
  const frames = Array.from({ length: 500 }, (_, step) => frame(step, [[0, 1]], [], step === 251 ? { nan_count: 1 } : {}));
  const steps = columnsOf(data(frames), 0).map(({ step }) => step);
  assert.ok(steps.length <= 96 && steps.length >= 90);
  assert.deepEqual([steps[0], steps.at(-1), steps.includes(251)], [0, 499, true]);
});

test("sixty-four steps of sixty-four bins are laid out in well under two milliseconds", () => {
  const bins: Bins = Array.from({ length: 32 }, (_, k) => [k - 16, k + 1]);
  const all = data(Array.from({ length: 64 }, (_, step) => frame(step, bins, bins)));
  const times = Array.from({ length: 41 }, () => {
    const begin = performance.now();
    placeOf(heatOf(columnsOf(all, 0)), 300, 118, 34);
    return performance.now() - begin;
  });
  assert.ok((times.sort((a, b) => a - b)[20] as number) < 2, `${times[20]} ms`);
});

test("the outermost bins hold what is smaller than any power, and what is larger", () => {
  const heat = heatOf(columnsOf(new Data(new Sites([site({})]), status(), frame(0, [[-127, 1], [128, 1]], [[-127, 2]])), 0));
  const bottom = heat.cells - 1;
  assert.match(saidOf(heat, { column: 0, cell: bottom }), /^step 0, 0 … 2.*: 25.0 % of 4$/);
  assert.match(saidOf(heat, { column: 0, cell: 0 }), /^step 0, 2.* … ∞: 25.0 % of 4$/);
  assert.match(saidOf(heat, { column: 0, cell: heat.cells }), /^step 0, 0 … -2.*: 50.0 % of 4$/);
});

test("of more elements than float32 can count the number is exact, and so are shares that are equal", () => {
  const many = frame(0, [[0, Math.fround(100_000_001)]], [], { numel: 100_000_001 });
  const heat = heatOf(columnsOf(new Data(new Sites([site({})]), status(), many), 0));
  assert.match(saidOf(heat, { column: 0, cell: heat.cells - 1 - (0 - heat.low) / heat.size }), /100 % of 100,000,001$/);
  const thirds = frame(0, [[0, 1]], [[0, 1]], { zero_count: 1 });
  const { least, most } = heatOf(columnsOf(new Data(new Sites([site({})]), status(), thirds), 0));
  assert.equal(least, most);
});
