import assert from "node:assert/strict";
import { test } from "vitest";
import { Data } from "../src/data";
import { Sites } from "../src/sites";
import { decodeFrame } from "../src/decode";
import { badOf, series, STATISTICS, type Point, type Statistic } from "../src/series";
import { along, describe, layLine, nearest, said, scaleOf } from "../src/trend";
import type { Frame } from "../src/types";
import { encode, encodePairs, site, status, type Row } from "./fake";

function statistic(key: string): Statistic {
  return STATISTICS.find((each) => each.key === key) as Statistic;
}

function bytes(values: Row["values"], spark: number[] = []): Uint8Array {
  return encode([{ site: site({}), values, spark, histogram: [] }], spark.length);
}

function frame(values: Row["values"], spark: number[] = []): Frame {
  return decodeFrame(bytes(values, spark));
}

function data(now: Frame, moments: Frame[] = [], sparkSteps: number[] = [], step: number | null = 59): Data {
  const history = { moments: moments.map((each) => ({ step: each.columns.step[0] as number, frame: each })), why: "" };
  return new Data(new Sites([site({})]), status({ spark_steps: sparkSteps, step }), now, history);
}

const BOX = { left: 0, right: 100, top: 0, bottom: 10 };

test("a statistic is taken from the moments, once a step, absent where a record has none", () => {
  const all = data(frame({ step: 9, l2: 3 }), [frame({ step: 1, l2: 1 }), frame({ step: 4, l2: NaN }), frame({ step: 4, l2: 2 })]);
  assert.deepEqual(series(all, 0, statistic("l2")), [
    { step: 1, value: 1, bad: "" },
    { step: 4, value: 2, bad: "" },
    { step: 9, value: 3, bad: "" },
  ]);
});

test("of the largest magnitude the spark knows every step, and a moment fills in what the spark lost to an infinity", () => {
  const now = frame({ step: 8, absmax: 5, nan_count: 2 }, [1, NaN, Infinity]);
  const all = data(now, [frame({ step: 2, absmax: 7 })], [4, 6, 8]);
  assert.deepEqual(series(all, 0, statistic("absmax")), [
    { step: 2, value: 7, bad: "" },
    { step: 4, value: 1, bad: "" },
    { step: 6, value: NaN, bad: "" },
    { step: 8, value: 5, bad: "NaN" },
  ]);
});

test("a spark without steps ends at the latest one", () => {
  const steps = series(data(frame({}, [1, 2, 3]), [], [], 40), 0, statistic("absmax")).map(({ step }) => step);
  assert.deepEqual(steps, [38, 39, 40]);
});

test("shares are per cent of the elements, and absent where nothing was counted", () => {
  const now = frame({ step: 1, numel: 200, nan_count: 1, posinf_count: 3, neginf_count: 1, zero_count: 50 });
  assert.equal(statistic("nan").of(now, 0), 0.5);
  assert.equal(statistic("inf").of(now, 0), 2);
  assert.equal(statistic("zero").of(now, 0), 25);
  assert.ok(Number.isNaN(statistic("subnormal").of(now, 0)));
  assert.ok(Number.isNaN(statistic("zero").of(frame({ zero_count: 0, numel: 0 }), 0)));
  assert.equal(badOf(now, 0), "NaN, Inf");
  assert.equal(badOf(frame({ neginf_count: 1 }), 0), "Inf");
});

test("two runs are two series", () => {
  const compared = decodeFrame(encodePairs([{}], bytes({ step: 3, std: 2 }), bytes({ step: 3, std: 5 })));
  const all = data(compared);
  assert.deepEqual(series(all, 0, statistic("std")), [{ step: 3, value: 2, bad: "" }]);
  assert.deepEqual(series(all, 0, statistic("std"), "before"), [{ step: 3, value: 5, bad: "" }]);
});

test("positive values are on a log scale", () => {
  const scale = scaleOf([1, 100, 10, NaN]);
  assert.equal(scale.kind, "log");
  assert.deepEqual([1, 10, 100].map((value) => Number(scale.at(value).toFixed(9))), [0, 0.5, 1]);
});

test("less than two octaves are flat: a factor of two takes half of the height", () => {
  const scale = scaleOf([1, 2]);
  assert.ok(Math.abs(scale.at(1) - 0.25) < 1e-9 && Math.abs(scale.at(2) - 0.75) < 1e-9);
  assert.ok(Math.abs(scaleOf([3]).at(3) - 0.5) < 1e-9);
});

test("values of both signs are linear, and where some are tiny symmetric and logarithmic", () => {
  const near = scaleOf([-1, 0, 1, 3]);
  assert.equal(near.kind, "linear");
  assert.deepEqual([-1, 1, 3].map((value) => near.at(value)), [0, 0.5, 1]);
  const far = scaleOf([-1000, -1, 1, 1000]);
  assert.equal(far.kind, "symmetric log");
  assert.ok(Math.abs(far.at(0) - 0.5) < 1e-9);
  assert.ok(Math.abs(far.at(1000) - 1) < 1e-9 && Math.abs(far.at(-1000)) < 1e-9);
  // log(1 + 1) of log(1 + 1000), on half of the height
  assert.ok(Math.abs(far.at(1) - (0.5 + (0.5 * Math.log(2)) / Math.log(1001))) < 1e-9);
});

test("zeros beside positive values keep their place at the foot", () => {
  const scale = scaleOf([0, 2, 4]);
  assert.equal(scale.kind, "linear");
  assert.equal(scale.at(0), 0);
  assert.ok(scaleOf([0, 0]).at(0) === 0.5 && scaleOf([]).at(1) === 0.5);
});

test("steps stand where they belong, not one after the other", () => {
  const x = along(10, 30, BOX);
  assert.deepEqual([10, 15, 30].map(x), [0, 25, 100]);
  assert.equal(along(7, 7, BOX)(7), 50);
});

test("a line has gaps where a value is absent, dots where a point is alone, and marks where one is not finite", () => {
  const points: Point[] = [
    { step: 0, value: 0, bad: "" },
    { step: 1, value: 2, bad: "NaN" },
    { step: 2, value: NaN, bad: "" },
    { step: 3, value: 1, bad: "" },
    { step: 4, value: NaN, bad: "Inf" },
  ];
  const line = layLine(points, along(0, 4, BOX), scaleOf([0, 2, 1]), BOX);
  assert.equal(line.path, "M0 10L25 0");
  assert.equal(line.dots, "M75 5h0");
  assert.deepEqual(line.marks, [{ x: 25, bad: "NaN" }, { x: 100, bad: "Inf" }]);
  assert.equal(nearest(line.places, 60), 2);
  assert.equal(nearest(line.places, 95), 4);
  assert.equal(nearest([], 5), -1);
});

test("an infinite statistic is marked and drawn nowhere", () => {
  const line = layLine([{ step: 0, value: Infinity, bad: "" }], along(0, 0, BOX), scaleOf([Infinity]), BOX);
  assert.deepEqual([line.path, line.dots, line.marks], ["", "", [{ x: 50, bad: "Inf" }]]);
});

test("a point and a trend are said in words", () => {
  const points = [{ step: 3, value: 0.5, bad: "" }, { step: 5, value: NaN, bad: "NaN" }, { step: 6, value: NaN, bad: "" }];
  assert.equal(said(points[0] as Point, statistic("l2")), "step 3: 0.500");
  assert.equal(said(points[0] as Point, statistic("zero")), "step 3: 0.50 %");
  assert.equal(said(points[1] as Point, statistic("l2")), "step 5: NaN");
  assert.equal(said(points[2] as Point, statistic("l2")), "step 6: absent");
  assert.equal(
    describe(points, statistic("l2"), scaleOf([0.5])),
    "l2 over 3 steps, 3 to 6, from 0.500 to 0.500, log scale, not finite in 1 of them",
  );
  assert.equal(describe([], statistic("l2"), scaleOf([])), "l2: nothing recorded");
});
