import assert from "node:assert/strict";
import { test } from "vitest";
import { Asks } from "../src/asks";
import { verdictOf } from "../src/chart";
import { expression } from "../src/copy";
import { Data } from "../src/data";
import { Sites } from "../src/sites";
import { decodePictures, emptyFrame, parseSites } from "../src/decode";
import { describePicture, describeReach, Pictures, reach, saidOfCell, signOfCell } from "../src/picture";
import { css, lightness, shade, signed, type Colour } from "../src/ramp";
import { parseStack } from "../src/stack";
import type { Picture, Site } from "../src/types";
import { site, status } from "./fake";

/** Pictures as the kernel writes them, by the description of the wire alone. */
function packed(row: number, about: object, cells: number[][] = []): Uint8Array {
  const text = new TextEncoder().encode(JSON.stringify({ row, ...about }));
  const [height, width] = [cells.length, cells[0]?.length ?? 0];
  const begin = 32 + Math.ceil(text.length / 8) * 8;
  const view = new DataView(new ArrayBuffer(begin + 8 * height * width));
  [0x31424e50, 4, height, width, text.length].forEach((value, at) => view.setUint32(4 * at, value, true));
  new Uint8Array(view.buffer).set(text, 32);
  cells.flat().forEach((value, at) => view.setFloat64(begin + 8 * at, value, true));
  return new Uint8Array(view.buffer);
}

function joined(...parts: Uint8Array[]): Uint8Array {
  return Uint8Array.from(parts.flatMap((part) => [...part]));
}

const KEPT = { step: 3, call: 0, shape: [2, 2], dtype: "float32", slice: "", pooled: "", part: "", nan: 1, posinf: 0, neginf: 2 };

test("pictures arrive one after the other, from any place in memory", () => {
  const bytes = joined(packed(4, KEPT, [[1, -2.5], [NaN, Infinity]]), packed(7, { why: "not kept" }), packed(8, KEPT, [[1e300]]));
  const moved = new Uint8Array(bytes.length + 3);
  moved.set(bytes, 3);
  for (const value of [bytes, new DataView(moved.buffer, 3)]) {
    const found = decodePictures(value);
    assert.deepEqual(found.map(({ row, height, width }) => [row, height, width]), [[4, 2, 2], [7, 0, 0], [8, 1, 1]]);
    assert.deepEqual([...(found[0] as Picture).cells], [1, -2.5, NaN, Infinity]);
    assert.equal(found[1]?.about.why, "not kept");
    assert.equal(found[2]?.cells[0], 1e300);
  }
  assert.deepEqual(decodePictures(""), []);
});

test("a picture that is cut, or of another version, is an error", () => {
  const bytes = packed(0, KEPT, [[1, 2]]);
  assert.throws(() => decodePictures(bytes.slice(0, bytes.length - 8)), /ends after/);
  assert.throws(() => decodePictures(bytes.slice(0, 20)), /ends after/);
  bytes[4] = 9;
  assert.throws(() => decodePictures(bytes), /version 9/);
});

test("the colours end at the largest finite magnitude", () => {
  assert.equal(reach([1, -3, NaN, Infinity]), 3);
  assert.equal(reach([0, 0]), 0);
  assert.ok(Number.isNaN(reach([NaN, Infinity])));
  assert.equal(describeReach(3), "colours from -3 to 3, 0 in the middle");
  assert.equal(describeReach(0), "every finite cell is 0");
  assert.equal(describeReach(NaN), "no cell is finite");
  assert.deepEqual([NaN, Infinity, -Infinity, 0].map(signOfCell), ["NaN", "+Inf", "-Inf", ""]);
});

test("a picture says which slice it is of, and a cell its value", () => {
  const about = { ...KEPT, shape: [2, 128, 64], call: 1, slice: "slice [1], the first with NaN or Inf", pooled: "each cell the largest of 2×1 elements" };
  const [found] = decodePictures(packed(0, about, [[1, 2], [-0.125, NaN]]));
  assert.equal(
    describePicture(found as Picture),
    "step 3, call 1; slice [1], the first with NaN or Inf of 2×128×64; each cell the largest of 2×1 elements; 1 NaN (✕), 2 -Inf (−)",
  );
  assert.equal(saidOfCell(found as Picture, 3, 17, 10), "cell [1, 0]: -0.12500");
  assert.equal(saidOfCell(found as Picture, 19.9, 19.9, 10), "cell [1, 1]: NaN");
  assert.equal(saidOfCell(found as Picture, 20, 5, 10), "");
  assert.equal(saidOfCell(found as Picture, -1, 5, 10), "");
});

function pictures(state: Record<string, unknown>, open = false) {
  const sent: Record<string, unknown>[] = [];
  const nothing = (): void => {};
  const model = { get: (key: string) => state[key], on: nothing, off: nothing, send: (message: Record<string, unknown>) => void sent.push(message) };
  const asks = new Asks(model);
  asks.update(status({ open }));
  return { found: new Pictures(model, asks), sent };
}

const pause = (): Promise<void> => new Promise((done) => setTimeout(done, 200));

test("a picture is asked for once, after a pause, and only that of the row where the reader stays", async () => {
  const state: Record<string, unknown> = {};
  const { found, sent } = pictures(state);
  for (const row of [1, 2, 5]) assert.equal(found.of(row, 3), "asking the kernel …");
  assert.equal(found.of(5, 3), "asking the kernel …");
  await pause();
  assert.deepEqual(sent, [{ ask: "picture", row: 5, step: 3 }]);
  state.picture = packed(5, { ...KEPT, asked: 3 }, [[2]]);
  assert.equal((found.of(5, 3) as Picture).cells[0], 2);
  found.of(5, 4); // another step is another question
  await pause();
  assert.equal(sent.length, 2);
});

test("an answer is of the step that was asked about, however late it comes", async () => {
  const state: Record<string, unknown> = {};
  const { found } = pictures(state);
  found.of(5, 3);
  await pause();
  found.of(5, 4); // the reader has gone on
  state.picture = packed(5, { ...KEPT, asked: 3 }, [[2]]);
  assert.equal(found.of(5, 4), "asking the kernel …");
  assert.equal((found.of(5, 3) as Picture).cells[0], 2);
  state.picture = packed(5, { asked: 4, why: "not kept" });
  assert.equal(found.of(5, 4), "not kept");
  assert.equal((found.of(5, 3) as Picture).cells[0], 2);
});

test("a picture that cannot be read is said, and what can be read is shown", async () => {
  const state: Record<string, unknown> = {};
  const { found, sent } = pictures(state);
  found.of(1, 0);
  await pause();
  for (const bad of [new Uint8Array(40), new Uint8Array(3), "text", 7]) {
    state.picture = bad;
    assert.match(found.of(1, 0) as string, /cannot be read: /);
  }
  assert.equal(found.of(2, 0), "asking the kernel …"); // another question
  await pause();
  assert.equal(sent.length, 2);
  state.picture = packed(2, { ...KEPT, asked: 0 }, [[2]]);
  assert.equal((found.of(2, 0) as Picture).cells[0], 2);
});

test("while the run goes on nothing is asked, and the reason is said", async () => {
  const { found, sent } = pictures({}, true);
  assert.match(found.of(1, 0) as string, /while the run goes on/);
  await pause();
  assert.deepEqual(sent, []);
});

test("a picture that a report embeds is there at once, and one that there is not has a reason", () => {
  const { found } = pictures({ picture: joined(packed(2, KEPT, [[1]]), packed(3, { why: "budget" })) }, true);
  assert.equal((found.of(2, 77) as Picture).cells[0], 1);
  assert.equal(found.of(3, 77), "budget");
});

test("a question that failed is said to have failed, and not asked again", async () => {
  const state: Record<string, unknown> = {};
  const { found, sent } = pictures(state);
  found.of(1, 0);
  await pause();
  state.refused = JSON.stringify({ picture: "ValueError: no" });
  assert.equal(found.of(1, 0), "ValueError: no");
  await pause();
  assert.equal(sent.length, 1);
});

test("a stack is taken apart: the source, the place without folders, and each way", () => {
  const text = "File Cell In[3], line 2, in forward\n    return self.fc(x)\nFile /home/x y/net.py, line 14, in <module>\n… 3 more\n\nFile a, b.py, line 1, in g";
  assert.deepEqual(parseStack(text), [
    [
      { where: "Cell In[3]:2", file: "Cell In[3], line 2", name: "forward", source: "return self.fc(x)" },
      { where: "net.py:14", file: "/home/x y/net.py, line 14", name: "<module>", source: "" },
      { where: "… 3 more", file: "", name: "", source: "" },
    ],
    [{ where: "a, b.py:1", file: "a, b.py, line 1", name: "g", source: "" }],
  ]);
});

test("a dtype is judged by a sign and in words", () => {
  const values = { positive: [[16, 1], [0, 7]], negative: [[-30, 2]], zero: 90, nan: 5, posinf: 0, neginf: 0 } as Parameters<typeof verdictOf>[0];
  assert.deepEqual(verdictOf(values, [-24, 15, 65504]), { sign: "✕", words: "10.0 % over, 20.0 % under" });
  assert.deepEqual(verdictOf(values, [-24, 127, 3e38]), { sign: "↓", words: "20.0 % under" });
  assert.deepEqual(verdictOf(values, [-133, 127, 3e38]), { sign: "✓", words: "fits" });
});

function sites(rows: Partial<Site>[]): Data {
  return new Data(new Sites(rows.map((each) => site(each))), status(), emptyFrame());
}

test("the copied expression tells a module from the functions in it, and names what is outside of all", () => {
  const all = sites([{ module: "fc", role: "input" }, { module: "fc, Functional.linear", api: "Functional.linear", path: "fc", role: "input" }, { module: "Torch.relu", api: "Torch.relu", path: "", type: "" }]);
  const said = [0, 1, 2].map((row) => expression(all, row));
  assert.equal(said[0], `run.df.query('model == "model" and module == "fc" and api == "" and direction == "forward" and role == "input" and leaf == "0"')`);
  assert.equal(said[1], `run.df.query('model == "model" and module == "fc" and api == "Functional.linear" and direction == "forward" and role == "input" and leaf == "0"')`);
  assert.match(said[2] as string, /module == "" and api == "Torch.relu"/);
});

test("two classes under one name are told apart", () => {
  const all = sites([{ type: "Linear" }, { type: "Identity" }]);
  assert.match(expression(all, 1), / and type == "Identity"'/);
});

test("a stack of a row is the text that its number stands for", () => {
  const [first, second] = parseSites(JSON.stringify({ rows: [{ module: "a", stack: 1 }, { module: "b" }], stacks: ["x", "y"] }));
  assert.equal(first?.stack, "y");
  assert.equal(second?.stack, undefined);
  assert.ok(new Sites([first as Site]).stacks);
  assert.ok(!new Sites([second as Site]).stacks);
});

test("shares are told by lightness alone, one way on a light page and the other on a dark one", () => {
  const at = [0, 0.25, 0.5, 0.75, 1];
  const light = at.map((part) => lightness(shade(part, "light")));
  const dark = at.map((part) => lightness(shade(part, "dark")));
  assert.deepEqual([...light].sort((a, b) => b - a), light);
  assert.deepEqual([...dark].sort((a, b) => a - b), dark);
  assert.ok(light[0]! - light[4]! > 0.7 && dark[4]! - dark[0]! > 0.6);
});

test("signed colours are neutral in the middle and far from it on both sides, for every eye", () => {
  for (const theme of ["light", "dark"] as const) {
    const [red, green, blue] = signed(0, theme);
    assert.ok(Math.max(red, green, blue) - Math.min(red, green, blue) <= 12);
    for (const end of [-1, 1]) assert.ok(Math.abs(lightness(signed(end, theme)) - lightness(signed(0, theme))) > 0.3);
    // who sees no red or no green still sees purple and green apart by their blue
    const [purple, leaf]: Colour[] = [signed(-1, theme), signed(1, theme)];
    assert.ok((purple as Colour)[2] - (leaf as Colour)[2] > 60);
  }
  assert.equal(css([1, 2, 3]), "rgb(1 2 3)");
});
