import assert from "node:assert/strict";
import { test } from "vitest";
import { Asks } from "../src/asks";
import { Data } from "../src/data";
import { Sites } from "../src/sites";
import { decodeFrame, decodeMoments } from "../src/decode";
import { histogramOf } from "../src/histogram";
import { bothOf } from "../src/compared";
import { bytesOf, NO_HISTORY, Received, shown, widened } from "../src/history";
import { Past } from "../src/past";
import { series, STATISTICS, type Statistic } from "../src/series";
import { Source } from "../src/source";
import type { Frame, Model, Moment } from "../src/types";
import { encode, site, sitesJson, status, type Row } from "./fake";

function rows(number: number, mean: number, bad = -1): Row[] {
  return Array.from({ length: number }, (_, order) => ({
    site: site({ module: `m${order}` }),
    values: { order, mean: mean + order, status: 0, first_bad_step: order === 1 ? bad : -1 },
    spark: [1, 2],
    histogram: [[order, mean + 1]],
  }));
}

function frame(number: number, mean: number, bad = -1): Frame {
  return decodeFrame(encode(rows(number, mean, bad), 2));
}

/** Moments in the wire format, written here independently of Python. */
function encodeMoments(steps: number[], of: number[], frames: Uint8Array[]): Uint8Array {
  const begin = 32 + 8 * steps.length + Math.ceil(of.length / 2) * 8;
  const bytes = new Uint8Array(begin + frames.reduce((sum, each) => sum + each.byteLength, 0));
  const view = new DataView(bytes.buffer);
  [0x31424e50, 3, steps.length, of.length].forEach((value, at) => view.setUint32(4 * at, value, true));
  steps.forEach((step, at) => view.setFloat64(32 + 8 * at, step, true));
  of.forEach((row, at) => view.setUint32(32 + 8 * steps.length + 4 * at, row, true));
  let at = begin;
  for (const each of frames) {
    bytes.set(each, at);
    at += each.byteLength;
  }
  return bytes;
}

const steps = (received: Received): number[] => received.moments.map(({ step }) => step);

test("one frame is kept of each step, the last one, with all the memory that it came in", () => {
  const received = new Received();
  const bytes = encode(rows(3, 1), 2);
  received.add(0, decodeFrame(bytes), []);
  assert.equal(bytesOf((received.moments[0] as Moment).frame), bytes.buffer.byteLength);
  received.add(1, frame(3, 2), []);
  received.add(1, frame(4, 3), []);
  assert.deepEqual(steps(received), [0, 1]);
  const [first, second] = received.moments;
  assert.deepEqual([...(first?.frame.columns.mean ?? [])], [1, 2, 3]);
  assert.deepEqual([...(second?.frame.columns.mean ?? [])], [3, 4, 5, 6]);
  assert.equal(first?.frame.sparkLength, 0);
  assert.notEqual(first?.frame.columns.mean.buffer, second?.frame.columns.mean.buffer);
});

test("a budget holds, steps stay evenly spread, and the turn to the bad and what is looked at stay", () => {
  const size = bytesOf(frame(3, 0));
  const received = new Received(20 * size);
  for (let step = 0; step < 500; step++) {
    if (step === 100) received.held = 99;
    received.add(step, frame(3, step, step >= 57 ? 57 : -1), []);
    const used = received.moments.reduce((sum, each) => sum + bytesOf(each.frame), 0);
    assert.ok(used <= 20 * size);
  }
  const kept = steps(received);
  assert.equal(kept.length, 20);
  for (const step of [0, 56, 57, 99, 499]) assert.ok(kept.includes(step), `${step} in ${kept}`);
  const gaps = kept.slice(1).map((step, at) => step - (kept[at] as number));
  assert.ok(Math.max(...gaps) <= 4 * (500 / 20), `${gaps}`);
});

test("a run that is begun anew has no steps of the one before", () => {
  const received = new Received();
  for (const step of [7, 8, 0]) received.add(step, frame(1, step), []);
  assert.deepEqual(steps(received), [0]);
});

test("moments of some rows say of the others that they were not kept", () => {
  const data = encodeMoments([3, 7], [1, 4], [encode(rows(2, 10), 0), encode(rows(2, 20), 0)]);
  const found = decodeMoments(data);
  assert.deepEqual([...(found?.rows ?? [])], [1, 4]);
  const [, last] = widened(found?.moments ?? [], found?.rows ?? new Uint32Array(0), 6);
  assert.equal(last?.step, 7);
  assert.deepEqual([...(last?.frame.columns.mean ?? [])], [NaN, 20, NaN, NaN, 21, NaN]);
  assert.deepEqual([...(last?.frame.columns.status ?? [])], [-1, 0, -1, -1, 0, -1]);
  const bins = [0, 1, 2, 3, 4, 5].map((row) => histogramOf(last?.frame as Frame, row).positive);
  assert.deepEqual(bins, [[], [[-127, 21]], [], [], [[-126, 21]], []]);
  const latest = frame(6, 0);
  const all = Array.from({ length: 6 }, (_, at) => site({ module: `m${at}` }));
  const then = new Data(new Sites(all), status(), shown(last as never, latest), { moments: [], why: "" }, 1, latest);
  assert.deepEqual(then.badges(0).map(({ word }) => word), ["not kept"]);
  assert.deepEqual(then.badges(1), []);
  assert.deepEqual([...then.executed], [0, 1, 2, 3, 4, 5]);
  assert.deepEqual([...then.spark(2)], [1, 2]);
});

test("damaged moments are refused with a reason", () => {
  const data = encodeMoments([3], [0, 1], [encode(rows(2, 10), 0)]);
  assert.throws(() => decodeMoments(data.subarray(0, data.length - 8)), /ends after/);
  assert.throws(() => decodeMoments(encodeMoments([3], [0], [encode(rows(2, 10), 0)])), /rows of the others/);
  assert.throws(() => decodeMoments(encode(rows(2, 10), 0)), /version 1, 3 expected/);
  assert.equal(decodeMoments(undefined), null);
  const { moments, rows: of } = decodeMoments(data) ?? { moments: [], rows: new Uint32Array(0) };
  assert.throws(() => widened(moments, of, 1), /there are 1/);
});

/** A model that has what it is given, and remembers what it was asked. */
function fake(state: Record<string, unknown>, answers = true): Model & { asked: unknown[] } {
  const asked: unknown[] = [];
  const model: Model = { get: (key) => state[key], on: () => {}, off: () => {} };
  return Object.assign(model, answers ? { send: (message: unknown) => asked.push(message) } : {}, { asked });
}

test("nothing is asked while the run goes on, nor of a report", () => {
  const model = fake({});
  const asks = new Asks(model);
  asks.update(status({ open: true }));
  assert.equal(asks.ask({ ask: "history" }), false);
  assert.match(asks.why, /while the run goes on/);
  asks.update(status({ open: false }));
  assert.equal(asks.ask({ ask: "picture", row: 3 }), true);
  assert.deepEqual(model.asked, [{ ask: "picture", row: 3 }]);
  const report = new Asks(fake({}, false));
  assert.equal(report.ask({ ask: "history" }), false);
  assert.match(report.why, /report/);
});

test("a tensor that had another size then is not said to have had the shape of now", () => {
  const sites = new Sites([site({ shape: [8, 16] }), site({ leaf: "1", shape: [] })]);
  const of = (numel: number): Frame => decodeFrame(encode([0, 1].map((at) => ({ ...(rows(2, 0)[at] as Row), values: { numel } })), 0));
  const at = (moment: number | null, numel: number): Data => new Data(sites, status(), of(numel), NO_HISTORY, moment);
  assert.equal(bothOf(at(0, 128), 0, "shape"), "8×16");
  assert.equal(bothOf(at(0, 1216), 0, "shape"), "1,216 elements");
  assert.equal(bothOf(at(0, 1), 1, "shape"), "scalar");
  assert.equal(bothOf(at(null, 128), 0, "shape"), "8×16");
  assert.equal(bothOf(at(0, -1), 0, "shape"), "8×16"); // nobody knows
});

test("a finished run is asked once, a large one only where the reader wants it, a refusal is told", () => {
  const state: Record<string, unknown> = {};
  const model = fake(state);
  const asks = new Asks(model);
  const past = new Past(model, asks);
  const long = status({ records: 10_000, steps: 5_000 }); // steps take time as well
  past.ask(long, false);
  const large = status({ records: 5_000_000 });
  past.update(large, frame(2, 0), []);
  past.ask(large, false);
  assert.deepEqual(model.asked, []);
  assert.equal(past.history(large, 2).moments.length, 0);
  past.ask(large, true);
  past.ask(large, true);
  assert.deepEqual(model.asked, [{ ask: "history" }]);
  assert.match(past.history(large, 2).why, /asking/);
  state.refused = '{"history":"OSError: gone"}';
  assert.match(past.history(large, 2).why, /OSError: gone/);
  state.history = encodeMoments([3, 7], [0, 1], [encode(rows(2, 10), 0), encode(rows(2, 20), 0)]);
  past.update(large, frame(2, 0), []);
  assert.deepEqual(past.history(large, 2).moments.map(({ step }) => step), [3, 7]);
  assert.equal(past.history(large, 2).why, "");
});

test("where there are no steps it is said why", () => {
  const said = (given: Parameters<typeof status>[0], state = {}, answers = true): string => {
    const model = fake(state, answers);
    const asks = new Asks(model);
    const about = status(given);
    asks.update(about);
    const past = new Past(model, asks);
    past.update(about, frame(2, 0), []);
    return past.history(about, 2).why;
  };
  const comparison = { verdicts: [], measures: [], fed: null, fed_text: "", baseline: "", candidate: "", divergences: [] };
  assert.equal(said({ comparison }), ""); // there is no line of steps
  assert.match(said({ steps: 1 }), /one step only/);
  assert.match(said({ steps: 9 }, {}, false), /run\.inspect\(\) has all/);
  assert.match(said({ open: true, steps: 1 }), /as soon as there are two/);
  const some = encodeMoments([3, 7], [1], [encode(rows(1, 10), 0), encode(rows(1, 20), 0)]);
  assert.match(said({ steps: 9 }, { history: some }, false), /1 row, the worst; run\.inspect\(\) has all/);
});

test("a history that cannot be read is said to be so, and the numbers of now are shown", () => {
  const state: Record<string, unknown> = { history: new Uint8Array(40) };
  const past = new Past(fake(state), new Asks(fake(state)));
  past.update(status({ steps: 9 }), frame(2, 0), []);
  assert.match(past.history(status({ steps: 9 }), 2).why, /cannot be read/);
});

test("what cannot be read is tried again, and what has not changed is not read again", () => {
  const state: Record<string, unknown> = { sites: sitesJson(rows(2, 0)), status: JSON.stringify(status()), frame: new Uint8Array(20) };
  const model = fake(state);
  const source = new Source(model, new Asks(model));
  assert.equal(source.bare().size, 2);
  assert.throws(() => source.receive(), /ends after 20 bytes/);
  assert.throws(() => source.receive(), /ends after 20 bytes/);
  state.frame = encode(rows(2, 5), 2);
  source.receive();
  const { frame: first, sites } = source.now(source.bare());
  assert.deepEqual([...first.columns.mean], [5, 6]);
  source.receive();
  assert.equal(source.now(source.bare()).frame, first);
  assert.equal(source.bare().sites, sites);
});

test("a chosen step is shown whatever comes, until the newest is followed again", () => {
  const state: Record<string, unknown> = { sites: sitesJson(rows(2, 0)) };
  const model = fake(state);
  const source = new Source(model, new Asks(model));
  const come = (step: number): void => {
    state.status = JSON.stringify(status({ open: true, step, steps: step + 1 }));
    state.frame = encode(rows(2, 10 * step), 2);
    source.receive();
  };
  for (let step = 0; step < 5; step++) come(step);
  source.choose(2);
  come(5);
  const then = source.now(source.bare());
  assert.equal(then.moment, 2);
  assert.equal(then.step, 2);
  assert.deepEqual([...then.frame.columns.mean], [20, 21]);
  assert.deepEqual([...then.latest.columns.mean], [50, 51]);
  assert.equal(then.history.moments.length, 6);
  source.choose(null);
  assert.equal(source.now(source.bare()).moment, null);
  assert.deepEqual([...source.now(source.bare()).frame.columns.mean], [50, 51]);
});

test("a trend that comes by itself stands beside newer numbers, and knows its own steps", () => {
  const spark = [1, 2, 3, 4];
  const bytes = new DataView(new ArrayBuffer(32 + 8 * (2 + spark.length)));
  [0x31424e50, 5, 2, 2].forEach((value, at) => bytes.setUint32(4 * at, value, true));
  [7, 9, ...spark].forEach((value, at) => bytes.setFloat64(32 + 8 * at, value, true));
  const state: Record<string, unknown> = {
    sites: sitesJson(rows(3, 1)),
    status: JSON.stringify(status({ open: true, step: 11, spark_steps: [10, 11] })),
    frame: encode(rows(3, 1), 0),
    trend: bytes,
  };
  const model: Model = { get: (key) => state[key], on: () => {}, off: () => {} };
  const source = new Source(model, new Asks(model));
  const read = (): Data => {
    const bare = source.bare();
    source.receive();
    return source.now(bare);
  };
  const absmax = STATISTICS[0] as Statistic;
  const points = (data: Data, row: number) => series(data, row, absmax).map(({ step, value }) => [step, value]);
  assert.deepEqual(points(read(), 0), [[7, 1], [9, 2]]);
  assert.deepEqual(points(read(), 1), [[7, 3], [9, 4]]);
  assert.deepEqual(points(read(), 2), []); // newer than the trend
  state.frame = encode(rows(3, 5), 0);
  assert.deepEqual(points(read(), 1), [[7, 3], [9, 4]]);
  bytes.setFloat64(32 + 8 * 3, 8, true);
  state.trend = new DataView(bytes.buffer.slice(0));
  assert.deepEqual(points(read(), 0), [[7, 1], [9, 8]]);
});

test("a row was at each moment of the dtype and on the device of then, received or brought", () => {
  const was = { dtype: "float32", device: "cpu" };
  const now = [0, 1].map((at) => site({ module: `m${at}`, dtype: "bfloat16", device: "cuda:0" }));
  const received = new Received();
  received.add(3, frame(2, 0), now.map((each) => ({ ...each, ...was })));
  received.add(7, frame(2, 0), now);
  const whole = encodeMoments([3, 7], [0, 1], [encode(rows(2, 10), 0), encode(rows(2, 20), 0)]);
  const text = new TextEncoder().encode(JSON.stringify([{ 0: ["float32", "cpu"] }, {}]));
  const bytes = new Uint8Array(whole.length + text.length);
  bytes.set(whole);
  bytes.set(text, whole.length);
  new DataView(bytes.buffer).setUint32(16, text.length, true);
  const brought = decodeMoments(bytes)?.moments ?? [];
  const at = (moments: readonly Moment[], place: number | null) =>
    new Data(new Sites(now), status(), frame(2, 0), { moments, why: "" }, place);
  const said = (data: Data) => [0, 1].map((row) => `${bothOf(data, row, "dtype")} ${bothOf(data, row, "device")}`);
  assert.deepEqual(said(at(received.moments, 0)), ["float32 cpu", "float32 cpu"]);
  assert.deepEqual(said(at(received.moments, 1)), ["bfloat16 cuda:0", "bfloat16 cuda:0"]);
  assert.deepEqual(said(at(brought, 0)), ["float32 cpu", "bfloat16 cuda:0"]);
  assert.deepEqual(said(at(brought, null)), ["bfloat16 cuda:0", "bfloat16 cuda:0"]);
  // of rows 4 and 9 among others
  const some = widened(brought, Uint32Array.of(4, 9), 12);
  assert.deepEqual([4, 9, 0].map((row) => some[0]?.made?.(row)?.dtype), ["float32", undefined, undefined]);
});
