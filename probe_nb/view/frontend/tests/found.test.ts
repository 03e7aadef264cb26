import assert from "node:assert/strict";
import { test } from "vitest";
import { Data, visibleRows } from "../src/data";
import { decodeFrame, parseStatus } from "../src/decode";
import { headsOf, MODULES } from "../src/modules";
import { Sites } from "../src/sites";
import { ancestors, marksOf, treeOf } from "../src/tree";
import type { Found, History } from "../src/types";
import { encode, site, status, type Row } from "./fake";

const [NAN, ZEROS, ABSENT] = [1, 16, 128];

function row(module: string, role: string, order: number, badges = 0): Row {
  return { site: site({ module, role }), values: { order, badges, status: badges & ABSENT ? 5 : 0 }, spark: [], histogram: [] };
}

const ROWS = [
  row("a", "output", 0),
  row("a", "param", 1),
  row("b", "output", 2, ZEROS),
  row("b", "param", 3),
  row("c", "output", 4, NAN),
  row("c", "param", 5, ABSENT),
];

function found(given: Partial<Found>): Found {
  return { severity: "warning", sign: "!", word: "update size", text: "too large", advice: "lower it", step: 3, row: null, others: [], ...given };
}

const FINDINGS = [
  found({ severity: "error", sign: "✕", word: "growing", text: "it grows", row: 1 }),
  found({ row: 3, others: [1, 2] }),
  found({ word: "all zeros", row: 2 }),
  found({ severity: "note", sign: "·", word: "no gradient", row: 5, others: [0] }),
];

const sites = new Sites(ROWS.map((each) => each.site));
const frame = decodeFrame(encode(ROWS, 0));
const data = new Data(sites, status({ findings: FINDINGS }), frame);
const words = (of: Data): string[][] => ROWS.map((_, at) => of.badges(at).map(({ glyph, word, tone }) => `${glyph} ${word} ${tone}`));
const choice = (given = {}) => ({ query: "", role: "", anomalies: false, verdicts: new Set<string>(), order: { by: "worst", descending: false }, ...given });

test("what was found of a row is a badge, unless its own say it", () => {
  assert.deepEqual(words(data), [
    ["· no gradient mute"],
    ["✕ growing bad", "! update size warn"],
    ["~ all zeros warn", "! update size warn"],
    ["! update size warn"],
    ["✕ NaN bad"],
    ["· no gradient mute"], // says more than that it is absent
  ]);
});

test("at an earlier moment only what was known by then is said", () => {
  const moments = [{ step: 2, frame }, { step: 3, frame }];
  const at = (moment: number): Data => new Data(sites, data.status, frame, { moments, why: "" } as History, moment);
  assert.deepEqual(words(at(0)), [[], [], ["~ all zeros warn"], [], ["✕ NaN bad"], ["– passthrough mute"]]);
  assert.deepEqual(words(at(1)), words(data));
});

test("warnings and errors are anomalies, notes are not; the worst of them come first, those named before others", () => {
  assert.deepEqual(visibleRows(data, choice({ anomalies: true, order: { by: "execution", descending: false } })), [1, 2, 3, 4]);
  assert.deepEqual(visibleRows(data, choice()), [4, 1, 2, 3, 5, 0]);
  const many = found({ row: 3, others: [0] });
  const one = new Data(sites, status({ findings: [many, found({ row: 1 })] }), decodeFrame(encode(ROWS.map((each) => ({ ...each, values: { ...each.values, badges: 0 } })), 0)));
  assert.deepEqual(visibleRows(one, choice()).slice(0, 3), [3, 1, 0]);
});

test("modules and groups of the tree say what was found inside", () => {
  const sort = MODULES.find(({ key }) => key === "health")?.sort;
  const order = { by: "health", descending: true };
  assert.deepEqual(headsOf(sites, visibleRows(data, choice({ order }), sort)), [4, 0, 2]);
  assert.deepEqual(marksOf(data, [0, 1, 2, 3, 4, 5]).map(({ glyph, word, tone, count }) => [glyph, word, tone, count]), [
    ["✕", "NaN", "bad", 1],
    ["✕", "growing", "bad", 1],
    ["~", "all zeros", "warn", 1],
    ["!", "update size", "warn", 3],
  ]);
  assert.deepEqual(marksOf(data, [0, 5]), []);
});

test("a status without findings, or with halves of them, is read", () => {
  assert.deepEqual([parseStatus("{}").findings, parseStatus("{}").further, parseStatus("{}").left], [[], [], 0]);
  const { findings } = parseStatus('{"findings":[{"text":"x"}]}');
  assert.deepEqual(findings, [found({ severity: "note", sign: "", word: "", text: "x", advice: "", step: -1 })]);
});

test("in the tree a number is told with the modules around it", () => {
  const paths = ["stem", "body.0", "body.1.0", "body.1.1", "blocks.0.mlp.3", "blocks.0.norm", "0.1", "0.2"];
  const rows = paths.map((path, order) => row(path, "output", order));
  const nested = new Data(new Sites(rows.map((each) => each.site)), status(), decodeFrame(encode(rows, 0)));
  const open = new Set(rows.flatMap((_, at) => ancestors(nested, at)));
  const names = treeOf(nested, rows.map((_, at) => at), open).groups.map(({ name }) => name);
  assert.deepEqual(names, [
    ...["stem", "body", "body.0", "body.1", "body.1.0", "body.1.1"],
    ...["blocks.0", "mlp.3", "norm", "0", "0.1", "0.2"],
  ]);
});
