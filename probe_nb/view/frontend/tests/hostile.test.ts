/** Whatever bytes and texts arrive: a frame, or an error in words; never a hang, nor more memory than they take. */
import assert from "node:assert/strict";
import { test } from "vitest";
import { Data, visibleRows } from "../src/data";
import { Sites } from "../src/sites";
import { decodeFrame, parseSites, parseStatus } from "../src/decode";
import { histogramOf, sharedAxis } from "../src/histogram";
import type { Frame } from "../src/types";
import { encode, random, site, type Row } from "./fake";

const ROUNDS = 1500;
const ROWS: Row[] = Array.from({ length: 7 }, (_, n) => ({
  site: site({ module: `layers.${n}` }),
  values: { order: n, mean: n / 3, nan_count: n },
  spark: [n, NaN, 2],
  histogram: [[127 - n, 3], [127 + n, 2], [300, 1]],
}));
const NUMBERS = [0, 1, 2, 8, 255, 65535, 2 ** 16, 2 ** 24, 2 ** 31 - 1, 2 ** 31, 2 ** 32 - 1];

/** Bytes cut off, overwritten with numbers, doubled, or flipped. */
function spoiled(bytes: Uint8Array, next: () => number): Uint8Array {
  const at = (length: number): number => Math.floor(next() * length);
  let made = bytes.slice();
  for (let change = 0; change <= at(4); change++) {
    const act = at(5);
    if (act === 0) made = made.slice(0, at(made.length + 1));
    // the first eight numbers, and the offsets near the end, are what sizes come from
    const words = Math.floor(made.length / 4);
    const word = act === 1 ? at(Math.min(words, 8)) : at(words);
    const view = new DataView(made.buffer);
    if ((act === 1 || act === 2) && words) view.setUint32(word * 4, NUMBERS[at(NUMBERS.length)] ?? 0, true);
    if (act === 3 && made.length) view.setUint8(at(made.length), at(256));
    if (act === 4) made = new Uint8Array([...made, ...made.slice(at(made.length))]);
  }
  return made;
}

/** Read all that the view reads of a frame. */
function read(frame: Frame, bytes: number): void {
  const held = [frame.spark, frame.offsets, frame.bins, frame.counts, ...Object.values(frame.columns)];
  assert.ok(held.every((each) => each.byteLength <= bytes + 4)); // no bytes at all are one offset
  sharedAxis(frame);
  for (let row = 0; row < frame.rows; row++) {
    const { positive, negative } = histogramOf(frame, row);
    assert.ok(positive.length + negative.length <= bytes);
  }
}

test("spoiled bytes are a frame or an error in words", () => {
  const [sound, next] = [encode(ROWS, 3), random(7)];
  const refused = new Set<string>();
  let read_ = 0;
  for (let round = 0; round < ROUNDS; round++) {
    const bytes = spoiled(sound, next);
    try {
      read(decodeFrame(bytes), bytes.byteLength);
      read_ += 1;
    } catch (error) {
      assert.match(String(error), /^Error: (frame |it ends |a histogram|a comparison|the two runs)/, String((error as Error).stack));
      refused.add(String(error).replace(/[0-9]+/g, "n"));
    }
  }
  assert.ok(read_ > ROUNDS / 10 && refused.size > 3, `${read_} read, ${[...refused].join("; ")}`);
});

test("a histogram that ends beyond the frame is refused, not read for minutes", () => {
  const bytes = encode(ROWS, 3);
  const offsets = new Uint32Array(ROWS.map((_, row) => 3 * row).concat(3 * ROWS.length));
  const found = find(bytes, new Uint8Array(offsets.buffer));
  new DataView(bytes.buffer, bytes.byteOffset).setUint32(found + 4 * 4, 2 ** 32 - 1, true);
  assert.throws(() => decodeFrame(bytes), /histogram lies outside/);
});

function find(bytes: Uint8Array, wanted: Uint8Array): number {
  for (let at = 0; at <= bytes.length - wanted.length; at += 4) {
    if (wanted.every((each, place) => bytes[at + place] === each)) return at;
  }
  throw new Error("not there");
}

const TEXTS = [
  "", "null", "0", "[]", "{}", '"x"', '{"rows":null}', '{"rows":[{}]}', '{"rows":[{"shape":"x","module":7}]}',
  '{"rows":[{"shape":[null,{}],"baseline":{},"why":9}]}', '{"headline":{"row":1e9},"unobserved":[],"notices":[]}',
  '{"step":"x","steps":null,"spark":3}', '{"__proto__":{"polluted":1}}', '{"constructor":1,"title":{"a":1}}',
]; // fmt: skip

test("odd texts beside a frame are read or refused, and change no prototype", () => {
  const frame = decodeFrame(encode(ROWS, 3));
  for (const sites of TEXTS) {
    for (const status of TEXTS) {
      try {
        const data = new Data(new Sites(parseSites(sites)), parseStatus(status), frame);
        visibleRows(data, { query: "x", role: "", anomalies: false, verdicts: new Set(), order: { by: "execution", down: false } } as never);
      } catch (error) {
        assert.ok(error instanceof Error);
      }
    }
  }
  assert.equal(({} as { polluted?: number }).polluted, undefined);
});
