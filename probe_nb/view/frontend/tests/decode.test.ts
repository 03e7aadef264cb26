import assert from "node:assert/strict";
import { test } from "vitest";
import { asBytes, decodeFrame, parseSites, parseStatus } from "../src/decode";
import { histogramOf } from "../src/histogram";
import { encode, random, site, type Row } from "./fake";

const ROWS: Row[] = [
  {
    site: site({}),
    values: { order: 3, mean: -0, min: 1e300, max: 5e-324, l2: Infinity, nan_count: 2, badges: 257 },
    spark: [1, NaN, Infinity],
    histogram: [[127, 4], [127 + 256 - 3, 2.5]],
  },
  { site: site({ role: "input" }), values: { order: 1 }, spark: [0, 0, 0], histogram: [] },
  { site: site({ role: "param" }), values: { order: 2 }, spark: [], histogram: [[0, 1]] },
];

function shifted(bytes: Uint8Array, by: number): Uint8Array {
  const larger = new Uint8Array(bytes.byteLength + by + 3);
  larger.fill(0xab);
  larger.set(bytes, by);
  return larger.subarray(by, by + bytes.byteLength);
}

test("every value arrives as it was written, also those that JSON cannot carry", () => {
  const frame = decodeFrame(encode(ROWS, 3));
  assert.equal(frame.rows, 3);
  assert.deepEqual([...frame.columns.order], [3, 1, 2]);
  assert.ok(Object.is(frame.columns.mean[0], -0));
  assert.equal(frame.columns.min[0], 1e300);
  assert.equal(frame.columns.max[0], 5e-324);
  assert.equal(frame.columns.l2[0], Infinity);
  assert.ok(Number.isNaN(frame.columns.min[1]));
  assert.equal(frame.columns.nan_count[1], -1);
  assert.equal(frame.columns.badges[0], 257);
  assert.deepEqual([...frame.spark], [1, NaN, Infinity, 0, 0, 0, NaN, NaN, NaN]);
});

test("histograms come out by sign and exponent", () => {
  const frame = decodeFrame(encode(ROWS, 3));
  assert.deepEqual(histogramOf(frame, 0), { positive: [[0, 4]], negative: [[-3, 2.5]], zero: 0, nan: 2, posinf: 0, neginf: 0 });
  assert.deepEqual(histogramOf(frame, 1).positive, []);
  assert.deepEqual(histogramOf(frame, 2).positive, [[-127, 1]]);
});

test("a frame is read wherever it begins in its buffer", () => {
  const bytes = encode(ROWS, 3);
  const plain = decodeFrame(bytes);
  for (let by = 0; by < 9; by++) {
    const moved = shifted(bytes, by);
    const view = new DataView(moved.buffer, moved.byteOffset, moved.byteLength);
    assert.deepEqual(decodeFrame(view), plain);
    assert.deepEqual(decodeFrame(moved), plain);
  }
  assert.deepEqual(decodeFrame(bytes.buffer), plain);
});

test("odd numbers of rows and of entries keep the blocks aligned", () => {
  const next = random(1);
  for (let count = 0; count < 20; count++) {
    const rows = Array.from({ length: count }, (_, order): Row => ({
      site: site({}),
      values: { order },
      spark: [order],
      histogram: Array.from({ length: Math.floor(next() * 5) }, (_, k) => [k, order + k]),
    }));
    const frame = decodeFrame(encode(rows, 1));
    assert.deepEqual([...frame.columns.order], rows.map((_, order) => order));
    rows.forEach((row, index) => {
      const { positive } = histogramOf(frame, index);
      assert.deepEqual(positive, row.histogram.map(([bin, count]) => [bin - 127, count]));
    });
  }
});

test("no bytes are no rows, and damaged bytes are refused with a reason", () => {
  for (const nothing of [null, undefined, "", new Uint8Array(0), new DataView(new ArrayBuffer(0))]) {
    assert.equal(decodeFrame(nothing).rows, 0);
  }
  const bytes = encode(ROWS, 3);
  assert.throws(() => decodeFrame(bytes.subarray(0, bytes.byteLength - 8)), /it ends after/);
  assert.throws(() => decodeFrame(bytes.subarray(0, 20)), /it ends after 20 bytes, 32 expected/);
  const wrong = bytes.slice();
  wrong[0] = 0;
  assert.throws(() => decodeFrame(wrong), /PNB1/);
  const newer = bytes.slice();
  newer[4] = 9;
  assert.throws(() => decodeFrame(newer), /version 9/);
  assert.throws(() => asBytes(3), /not bytes/);
});

test("sites and status are readable while nothing is there yet", () => {
  assert.deepEqual(parseSites(""), []);
  assert.deepEqual(parseSites(undefined), []);
  assert.equal(parseSites('{"rows":[{"module":"a"}]}')[0]?.type, "");
  assert.equal(parseStatus("").headline.kind, "empty");
  assert.equal(parseStatus('{"headline":{"text":"x"}}').headline.row, null);
});

test("what was left out is said in words", () => {
  const truncated = (value: unknown): string | null => parseStatus(JSON.stringify({ truncated: value })).truncated;
  assert.equal(truncated(null), null);
  assert.equal(truncated("300 of 900 rows"), "300 of 900 rows");
  assert.equal(truncated({ shown: 300, total: 900 }), "Only 300 of 900 rows are shown.");
  assert.equal(truncated(true), "Not all rows are shown.");
});
