import assert from "node:assert/strict";
import { test } from "vitest";
import { COMPARED } from "../src/columns";
import { expression, python } from "../src/copy";
import { Data, visibleRows, type Choice } from "../src/data";
import { Sites } from "../src/sites";
import { decodeFrame } from "../src/decode";
import { geometry, highest, histogramOf, outline, type Histogram } from "../src/histogram";
import { trend } from "../src/sparkline";
import { ancestors, folded, groupOf, marksOf, treeOf } from "../src/tree";
import { encode, encodePairs, site, status, type Pair, type Row } from "./fake";

const VERDICTS = ["same", "close", "diverged", "only_in_baseline", "only_in_candidate", "not_comparable"];
const SAME = 0;
const DIVERGED = 2;
const CANDIDATE = 4;

function row(module: string, order: number, l2: number, spark: number[] = []): Row {
  return { site: site({ module }), values: { order, l2, absmax: l2 }, spark, histogram: [[127, l2]] };
}

const PATHS = ["a", "net.b", "net.c", "net.c.x", "net.c.y", "net.d", "e"];
const NOW = PATHS.map((path, at) => row(path, at, at + 1, [1, at]));
const BEFORE = PATHS.map((path, at) => row(path, at, 2 * at + 1, [2, at]));
const FOUND: Pair[] = [
  { verdict: SAME, difference: 0, beyond: 0 },
  { verdict: DIVERGED, difference: 0.5, beyond: 30, origin: 1 },
  { verdict: DIVERGED, difference: 0.4, beyond: 0.5, follows: 1 },
  { verdict: DIVERGED, difference: 0.3, beyond: 0.5, follows: 1 },
  { verdict: DIVERGED, difference: 0.2, beyond: 0.5, follows: 1 },
  { verdict: DIVERGED, difference: 0.1, beyond: 0.5, follows: 1 },
  { verdict: CANDIDATE },
];

function data(found: Pair[] = FOUND): Data {
  const comparison = {
    verdicts: VERDICTS,
    measures: ["max", "l2"],
    fed: true,
    fed_text: "",
    baseline: "",
    candidate: "",
    divergences: [{ text: "first diverges at net.b", detail: "", row: 1 }],
  };
  const frame = decodeFrame(encodePairs(found, encode(NOW, 2), encode(BEFORE, 2)));
  return new Data(new Sites(NOW.map((each) => each.site)), status({ comparison }), frame);
}

function choice(given: Partial<Choice> = {}): Choice {
  const order = { by: "execution", descending: false };
  return { query: "", role: "", anomalies: false, verdicts: new Set(), order, ...given };
}

const ROWS = [0, 1, 2, 3, 4, 5, 6];

test("both runs and what was found of each pair arrive", () => {
  const all = data();
  assert.deepEqual(ROWS.map((at) => all.value("l2", at)), [1, 2, 3, 4, 5, 6, 7]);
  assert.deepEqual(ROWS.map((at) => all.before("l2", at)), [1, 3, 5, 7, 9, 11, 13]);
  assert.deepEqual(ROWS.map((at) => all.verdict(at)), [
    "same",
    "diverged",
    "diverged",
    "diverged",
    "diverged",
    "diverged",
    "only_in_candidate",
  ]);
  assert.deepEqual([...all.spark(3)], [1, 3]);
  assert.deepEqual([...all.spark(3, all.frame.compared?.baseline)], [2, 3]);
  assert.ok(Number.isNaN(all.pair("difference", 6)));
});

test("a run that is not compared has no verdicts", () => {
  const plain = new Data(new Sites(NOW.map((each) => each.site)), status(), decodeFrame(encode(NOW, 2)));
  assert.equal(plain.verdict(0), "");
  assert.ok(Number.isNaN(plain.before("l2", 0)));
  assert.equal(plain.follows(0), false);
});

test("a comparison whose runs have other rows, or that is cut off, is refused", () => {
  assert.throws(() => decodeFrame(encodePairs(FOUND, encode(NOW, 2), encode(BEFORE.slice(1), 2))), /same rows/);
  assert.throws(() => decodeFrame(encodePairs(FOUND, encode(NOW, 2), new Uint8Array(0))), /it ends/);
});

test("rows are filtered by verdict and counted", () => {
  const all = data();
  assert.deepEqual([...all.verdicts], [["same", 1], ["diverged", 5], ["only_in_candidate", 1]]);
  assert.deepEqual(visibleRows(all, choice({ verdicts: new Set(["same", "only_in_candidate"]) })), [0, 6]);
});

test("worst first: where it begins, what diverged, what only one has, what follows, the rest", () => {
  const order = { by: "worst", descending: false };
  assert.deepEqual(visibleRows(data(), choice({ order })), [1, 2, 3, 4, 5, 6, 0]);
});

test("a column sorts by its numbers with what cannot be compared last", () => {
  const column = COMPARED.find(({ key }) => key === "difference");
  const order = { by: "difference", descending: true };
  assert.deepEqual(visibleRows(data(), choice({ order }), column?.sort), [1, 2, 3, 4, 5, 0, 6]);
});

test("rows that only follow are one group until it is opened", () => {
  const all = data();
  const closed = folded(all, ROWS, new Set());
  assert.deepEqual(closed.rows, [0, 1, -1, 6]);
  assert.deepEqual([closed.groups[0]?.size, closed.groups[0]?.open], [4, false]);
  for (const at of [2, 3, 5]) assert.equal(groupOf(all, ROWS, at), closed.groups[0]?.key);
  const open = folded(all, ROWS, new Set([groupOf(all, ROWS, 4)]));
  assert.deepEqual(open.rows, [0, 1, -1, 2, 3, 4, 5, 6]);
});

test("few rows that follow are no group, and those of another divergence are another one", () => {
  assert.deepEqual(folded(data(), [0, 1, 2, 3, 4], new Set()).rows, [0, 1, 2, 3, 4]);
  const two = FOUND.map((pair, at) => (at === 5 ? { ...pair, follows: 2 } : pair));
  assert.deepEqual(folded(data(two), ROWS, new Set()).rows, ROWS);
});

test("the tree folds by path, opens where asked, and counts what is inside", () => {
  const all = data();
  const closed = treeOf(all, ROWS, new Set());
  assert.deepEqual(closed.groups.map(({ name, size, depth }) => [name, size, depth]), [["a", 1, 0], ["net", 5, 0], ["e", 1, 0]]);
  assert.deepEqual(closed.rows, [-1, -2, -3]);
  assert.deepEqual(closed.groups[1]?.marks.map(({ word, count }) => [word, count]), [["diverged", 5]]);
  const open = treeOf(all, ROWS, new Set(ancestors(all, 3)));
  assert.deepEqual(open.groups.map(({ name }) => name), ["a", "net", "b", "c", "x", "y", "d", "e"]);
  assert.deepEqual(open.rows, [-1, -2, -3, -4, 2, -5, 3, -6, -7, -8]);
  assert.deepEqual(open.depths, [0, 0, 1, 1, 2, 2, 3, 2, 1, 0]);
  assert.equal(open.tree, true);
});

test("a module that only holds another one is no step of its own in the tree", () => {
  const sites = ["m.layers.0", "m.layers.1"].map((module) => site({ module }));
  const frame = decodeFrame(encode(NOW.slice(0, 2), 2));
  const tree = treeOf(new Data(new Sites(sites), status(), frame), [0, 1], new Set());
  assert.deepEqual(tree.groups.map(({ name }) => name), ["m.layers"]);
});

test("what only follows makes a quiet mark, what begins a loud one", () => {
  assert.deepEqual(marksOf(data(), [2, 3]).map(({ tone }) => tone), ["mute"]);
  assert.deepEqual(marksOf(data(), [2, 1, 3]).map(({ tone, count }) => [tone, count]), [["bad", 3]]);
  assert.deepEqual(marksOf(data(), [0]), []);
});

test("the outline goes over the tops of neighbouring bins and down between others", () => {
  const histogram: Histogram = { positive: [[0, 4], [1, 1], [3, 1]], negative: [], zero: 0, nan: 0, posinf: 0, neginf: 0 };
  const where = { ...geometry({ low: 0, high: 3 }, 100, 20, 4), x: (exponent: number) => 10 * exponent, binWidth: 10 };
  assert.equal(highest(histogram, where.axis), 4);
  assert.equal(outline(histogram, where, 4), "M0 20V0H10V10H20V20M30 20V10H40V20");
  assert.equal(outline(histogramOf(decodeFrame(encode([], 0)), 0), where, 1), "");
});

test("two trends share one scale", () => {
  const [low, high] = [[1, 1], [16, 16]];
  const alone = trend(low, 10, 20, 0);
  const together = trend(low, 10, 20, 0, [...low, ...high]);
  assert.equal(alone.last?.[1], 10);
  assert.equal(together.last?.[1], 20);
});

test("the expression that is copied names one site, whatever its name holds", () => {
  const all = data();
  assert.equal(
    expression(all, 1),
    `comparison.df.query('model == "model" and module == "net.b" and api == "" and direction == "forward" and role == "output" and leaf == "0"')`,
  );
  assert.equal(python(`it's "x" \\ y`), `'it\\'s "x" \\\\ y'`);
});

test("what ran just before and after is of other modules and of the same direction", () => {
  assert.deepEqual(data().neighbours(3), [2, 4]);
  assert.deepEqual(data().neighbours(0), [-1, 1]);
});
