import assert from "node:assert/strict";
import { test } from "vitest";
import { arranged } from "../src/cells";
import { COMPARED, TABLE } from "../src/columns";
import { compare, Data, visibleRows, type Choice } from "../src/data";
import { Sites } from "../src/sites";
import { decodeFrame } from "../src/decode";
import type { Site } from "../src/types";
import { encode, site, status, type Row } from "./fake";
import { marksOf } from "../src/tree";
import { badgesOf, severity } from "../src/words";

function row(module: string, role: string, values: Row["values"]): Row {
  return { site: site({ module, role }), values, spark: [], histogram: [] };
}

// written out of execution order, as sites are numbered by when they were first seen
const ROWS = [
  row("layers.10", "output", { order: 4, mean: -2, badges: 1 | 256, nan_count: 9 }),
  row("layers.2", "output", { order: 2, mean: 7, badges: 1, nan_count: 3 }),
  row("layers.2", "input", { order: 1, mean: NaN, badges: 128, status: 5 }),
  row("layers.10", "input", { order: 3, mean: Infinity, badges: 8 }),
  row("", "param", { order: NaN, mean: 0.5, badges: 16 }),
  row("x<b>", "grad_output", { order: 5, mean: 1e-30 }),
];

function data(given = {}): Data {
  return new Data(new Sites(ROWS.map((each) => each.site)), status(given), decodeFrame(encode(ROWS, 0)));
}

function choice(given: Partial<Choice> = {}): Choice {
  return { query: "", role: "", anomalies: false, verdicts: new Set(), order: { by: "execution", descending: false }, ...given };
}

function sorted(by: string, descending: boolean): number[] {
  const column = TABLE.find(({ key }) => key === by);
  return visibleRows(data(), choice({ order: { by, descending } }), column?.sort);
}

test("what a row is inside of is told by its names, whatever these hold", () => {
  const parts = (...given: Partial<Site>[]): string[][] => new Sites(given.map(site)).parts;
  const called = { module: "fc.1, Functional.linear", api: "Functional.linear", path: "fc.1" };
  const outside = { model: "", module: "Torch.randn", api: "Torch.randn", path: "" };
  const optimizer = { module: "AdamW.1", api: "AdamW.1", path: "" };
  assert.deepEqual(parts({ module: "" }, { module: "a: b.c" }, called, outside, optimizer), [
    ["(root)"], ["a: b", "c"], ["fc", "1", "Functional.linear"], ["Torch.randn"], ["AdamW.1"],
  ]);
  assert.deepEqual(parts({ model: "x: y", module: "a.b" }, { ...called, model: "z" }, outside), [
    ["x: y", "a", "b"], ["z", "fc", "1", "Functional.linear"], ["Torch.randn"],
  ]);
  // what belongs to no model makes no second one
  assert.deepEqual(new Sites([site({ module: "a" }), site(outside)]).paths, ["a", "Torch.randn"]);
});

test("rows stand in execution order, those never reached at the end", () => {
  assert.deepEqual(visibleRows(data(), choice()), [2, 1, 3, 0, 5, 4]);
});

test("worst first: births, then risks, then victims, then the rest; what the headline names leads", () => {
  const order = { by: "worst", descending: false };
  assert.deepEqual(visibleRows(data(), choice({ order })), [1, 3, 0, 4, 2, 5]);
  const headline = { kind: "bad" as const, text: "", detail: "", row: 4 };
  assert.deepEqual(visibleRows(data({ headline }), choice({ order }))[0], 4);
});

test("a column sorts both ways with the absent last", () => {
  assert.deepEqual(sorted("mean", true), [3, 1, 4, 5, 0, 2]);
  assert.deepEqual(sorted("mean", false), [0, 5, 4, 1, 3, 2]);
});

test("names sort by the numbers in them", () => {
  assert.deepEqual(sorted("module", false), [4, 2, 1, 3, 0, 5]);
});

test("search takes every word, wherever it stands", () => {
  assert.deepEqual(visibleRows(data(), choice({ query: "LAYERS.10 out" })), [0]);
  assert.deepEqual(visibleRows(data(), choice({ query: "<b>" })), [5]);
  assert.deepEqual(visibleRows(data(), choice({ query: "(root)" })), [4]);
  assert.deepEqual(visibleRows(data(), choice({ query: "nowhere" })), []);
});

test("filters narrow together", () => {
  assert.deepEqual(visibleRows(data(), choice({ role: "input" })), [2, 3]);
  assert.deepEqual(visibleRows(data(), choice({ role: "input", anomalies: true })), [3]);
  assert.deepEqual(visibleRows(data(), choice({ anomalies: true })), [1, 3, 0, 4]);
});

test("roles are offered in the order of the flow, only those there are", () => {
  assert.deepEqual(data().sites.roles, ["input", "output", "param", "grad_output"]);
});

test("a site is found by name, whatever its number", () => {
  const { sites } = data();
  const reversed = new Sites([...sites.rows].reverse());
  sites.keys.forEach((key, index) => assert.equal(reversed.find(key), sites.rows.length - 1 - index));
  assert.equal(sites.find(null), -1);
  assert.equal(sites.find("gone"), -1);
  assert.deepEqual(sites.siblings(1), [2, 1]);
});

test("several models are told apart in the paths, one is not named", () => {
  assert.equal(data().sites.paths[4], "(root)");
  const two = new Sites([site({ model: "gen", module: "a" }), site({ model: "disc", module: "" })]);
  assert.deepEqual(two.paths, ["gen: a", "disc: (root)"]);
});

test("a frame with fewer rows than sites leaves the rest absent, not healthy", () => {
  const early = new Data(data().sites, status(), decodeFrame(encode(ROWS.slice(0, 2), 0)));
  assert.equal(visibleRows(early, choice()).length, ROWS.length);
  assert.ok(Number.isNaN(early.value("mean", 5)));
  assert.deepEqual(early.badges(5).map((badge) => badge.word), ["no record"]);
});

test("badges come most severe first; a status stands for what is absent", () => {
  assert.deepEqual(badgesOf(1 | 2 | 8 | 64, 0).map((badge) => badge.word), ["NaN", "Inf", "overflow risk", "exploding"]);
  assert.deepEqual(badgesOf(128, 5).map((badge) => badge.word), ["passthrough"]);
  assert.deepEqual(badgesOf(1 | 128, 2).map((badge) => badge.word), ["NaN"]);
  assert.deepEqual(badgesOf(0, 0), []);
  assert.ok(severity(1, 0) > severity(8, 0) && severity(8, 0) > severity(1 | 256, 0));
  assert.ok(severity(1 | 256, 0) > severity(16, 0) && severity(16, 0) > severity(128, 10));
});

test("absent values are last in either direction", () => {
  assert.ok(compare(NaN, 1, false) > 0 && compare(NaN, 1, true) > 0);
  assert.ok(compare("", "a", false) > 0 && compare("", "a", true) > 0);
  assert.equal(compare(NaN, NaN, true), 0);
});

test("what an optimizer sees again of a parameter is told from what came before", () => {
  const rows = ["forward", "optimizer"].flatMap((direction) =>
    ["param", "update"].map((role) => ({ site: site({ direction, role }), values: {}, spark: [], histogram: [] })),
  );
  const told = new Data(new Sites(rows.map((each) => each.site)), status({}), decodeFrame(encode(rows, 0)));
  assert.deepEqual(rows.map((_, row) => told.role(row)), ["param", "update", "param (optimizer)", "update"]);
});

test("what is inside a module is counted gravest first, and what is only inherited is quiet", () => {
  const marks = marksOf(data(), [0, 1, 2, 3, 4, 5]);
  assert.deepEqual(marks.map(({ word, count, tone }) => [word, count, tone]), [
    ["NaN", 2, "bad"],
    ["overflow risk", 1, "warn"],
    ["all zeros", 1, "warn"],
  ]);
  assert.deepEqual(marksOf(data(), [0]).map(({ tone }) => tone), ["mute"]);
  assert.deepEqual(marksOf(data(), [2, 5]), []);
});

test("columns stand by what is read first: counts of NaN where there are any, the judgement where there is no room", () => {
  const names = (...given: [nonfinite: boolean, narrow: boolean]): string[] => arranged(TABLE, ...given).map((at) => TABLE[at]?.key ?? "");
  assert.deepEqual(names(false, false), TABLE.map(({ key }) => key));
  assert.deepEqual(names(true, false).slice(0, 6), ["module", "role", "health", "values", "nan", "inf"]);
  assert.deepEqual(names(true, true).slice(0, 5), ["module", "health", "role", "values", "nan"]);
  assert.deepEqual(arranged(COMPARED, true, true).slice(0, 3).map((at) => COMPARED[at]?.key), ["module", "verdict", "role"]);
});

test("no column has the name of another one", () => {
  for (const table of [TABLE, COMPARED]) assert.equal(new Set(table.map(({ key }) => key)).size, table.length);
});
