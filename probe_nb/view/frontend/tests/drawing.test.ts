import assert from "node:assert/strict";
import { test } from "vitest";
import { decodeFrame } from "../src/decode";
import { describe, draw, fit, geometry, ownAxis, sharedAxis, ticks, type Histogram } from "../src/histogram";
import { describeTrend, trend } from "../src/sparkline";
import { luminance, opaque } from "../src/theme";
import { encode, site } from "./fake";

const AXIS = { low: -4, high: 3 };
const NONE: Histogram = { positive: [], negative: [], zero: 0, nan: 0, posinf: 0, neginf: 0 };

interface Bar {
  x: number;
  height: number;
  width: number;
}

/** The bars of path data: `Mx foot v-height h width ...`. */
function bars(d: string): Bar[] {
  return [...d.matchAll(/M(\S+) \S+?v-?([\d.]+)h([\d.]+)/g)].map(([, x, height, width]) => ({
    x: Number(x),
    height: Number(height),
    width: Number(width),
  }));
}

test("the two signs mirror each other about the bar of zeros", () => {
  const where = geometry(AXIS, 100, 20, 4);
  const centre = where.zeroX + where.cap / 2;
  for (let exponent = AXIS.low; exponent <= AXIS.high; exponent++) {
    const right = where.x(exponent, false) - centre;
    const left = centre - (where.x(exponent, true) + where.binWidth);
    assert.ok(Math.abs(right - left) < 1e-9);
  }
});

test("everything stands inside the drawing and nothing overlaps", () => {
  for (const [width, cap] of [[108, 4], [280, 13], [60, 3]] as const) {
    const where = geometry({ low: -40, high: 24 }, width, 20, cap);
    const places = [
      where.neginfX + cap,
      where.x(24, true),
      where.x(-40, true) + where.binWidth,
      where.zeroX,
      where.zeroX + cap,
      where.x(-40, false),
      where.x(24, false) + where.binWidth,
      where.posinfX,
      where.posinfX + cap,
      where.nanX,
    ];
    assert.deepEqual([...places].sort((a, b) => a - b), places);
    assert.ok(Math.abs(where.nanX + cap - width) < 1e-9);
  }
});

test("heights go by the square root of the counts", () => {
  const where = geometry(AXIS, 100, 20, 4);
  const [small, large] = bars(draw({ ...NONE, positive: [[0, 25], [1, 100]] }, where).bars);
  assert.equal(large?.height, 20);
  assert.equal(small?.height, 10);
  assert.ok(Math.abs((large?.x ?? 0) - (small?.x ?? 0) - where.binWidth) < 0.02);
});

test("one NaN among millions is seen, and more of it never leaves the drawing", () => {
  const where = geometry(AXIS, 100, 21, 4);
  const one = bars(draw({ ...NONE, positive: [[0, 4e6]], nan: 1 }, where).nonfinite);
  assert.deepEqual(one, [{ x: where.nanX, height: 7, width: 4 }]);
  const all = bars(draw({ ...NONE, nan: 4e6, posinf: 2, neginf: 5 }, where).nonfinite);
  assert.equal(all.length, 3);
  assert.ok(all.every((bar) => bar.height <= 21));
});

test("what lies beyond the axis is piled up at its ends", () => {
  const where = geometry(AXIS, 100, 20, 4);
  const { bars: inside, beyond } = draw({ ...NONE, positive: [[90, 2], [91, 2], [0, 4]], negative: [[-50, 4]] }, where);
  assert.equal(bars(inside).length, 1);
  const places = bars(beyond).map((bar) => bar.x);
  const expected = [where.x(AXIS.low, true), where.x(AXIS.high, false)].map((x) => Math.round(x * 100) / 100);
  assert.deepEqual(places, expected);
});

test("the shared axis only grows, in steps of four, and stays within what a cell can show", () => {
  const of = (...bins: number[]) =>
    decodeFrame(encode([{ site: site({}), values: {}, spark: [], histogram: bins.map((bin) => [bin, 1]) }], 0));
  const first = sharedAxis(of(127 - 17, 127 + 256 + 5));
  assert.deepEqual(first, { low: -20, high: 8 });
  assert.deepEqual(sharedAxis(of(127), first), first);
  assert.deepEqual(sharedAxis(of(0, 255), first), { low: -40, high: 24 });
});

test("a row's own axis holds its bins and is never narrow", () => {
  const axis = ownAxis({ ...NONE, positive: [[3, 1]], negative: [[5, 1]] });
  assert.ok(axis.low < 3 && axis.high > 5 && axis.high - axis.low >= 16);
  assert.ok(ownAxis(NONE).high > ownAxis(NONE).low);
});

test("ticks are round and few", () => {
  assert.deepEqual(ticks({ low: -9, high: 9 }, 5), [-8, -4, 0, 4, 8]);
  assert.deepEqual(ticks({ low: -127, high: 128 }, 5), [-64, 0, 64, 128]);
});

test("the share that a dtype cannot hold is counted over the non-zero finite elements", () => {
  const values: Histogram = { ...NONE, positive: [[-30, 1], [0, 6]], negative: [[16, 3]], zero: 90, nan: 5 };
  assert.deepEqual(fit(values, [-24, 15, 65504]), { under: 1, over: 3, total: 10 });
});

test("a drawing says in words what it shows", () => {
  assert.equal(describe(NONE), "no values");
  const words = describe({ ...NONE, positive: [[-3, 1], [4, 2]], zero: 1500, nan: 2, neginf: 1 });
  assert.equal(words, "values: positive from 2⁻³ to 2⁴, 1,500 zero, 2 NaN, 1 -Inf");
});

test("a trend breaks where nothing was recorded and marks the non-finite", () => {
  const found = trend([1, 2, NaN, 4, Infinity], 100, 20);
  assert.equal(found.line.match(/M/g)?.length, 2);
  assert.equal(found.line.match(/L/g)?.length, 1);
  assert.equal(found.marks, "M98 0v20");
  assert.equal(found.nonfinite, 1);
  assert.equal(found.steps, 4);
  assert.deepEqual([found.low, found.high], [1, 4]);
  assert.deepEqual(found.last, [74, 2]);
  assert.equal(describeTrend(found, "absmax"), "absmax over 4 recorded steps, from 1 to 4, non-finite in 1");
});

test("a constant is flat in the middle, noise nearly so, zeros lie at the foot", () => {
  assert.match(trend([3, 3, 3], 60, 20).line, /^M2 10L30 10L58 10$/);
  const noise = [...trend([1, 1.1, 0.95], 60, 20).line.matchAll(/[ML]\S+ ([\d.]+)/g)].map(([, y]) => Number(y));
  assert.ok(Math.max(...noise) - Math.min(...noise) < 3);
  assert.deepEqual(trend([0, 1], 60, 20).line.split("L")[0], "M2 18");
  assert.equal(trend([0, 0], 60, 20).line, "M2 18L58 18");
});

test("no value, one value and only non-finite values are drawn without NaN in the path", () => {
  for (const values of [[], [5], [NaN], [Infinity], [Infinity, Infinity]]) {
    const { line, marks } = trend(values, 60, 20);
    assert.doesNotMatch(line + marks, /NaN|Infinity/);
  }
});

test("backgrounds are told light from dark, transparent ones are no background", () => {
  assert.ok(luminance("rgb(255, 255, 255)") > 0.99 && luminance("rgb(17, 17, 17)") < 0.02);
  assert.ok(luminance("color(srgb 0.1 0.1 0.1)") < 0.02 && luminance("color(srgb 1 1 1)") > 0.99);
  assert.ok(opaque("rgb(1, 2, 3)") && opaque("rgba(1, 2, 3, 0.9)"));
  assert.ok(!opaque("rgba(0, 0, 0, 0)") && !opaque("transparent") && !opaque(""));
});
