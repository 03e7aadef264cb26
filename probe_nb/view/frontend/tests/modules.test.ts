import assert from "node:assert/strict";
import { test } from "vitest";
import { Data, visibleRows } from "../src/data";
import { Sites } from "../src/sites";
import { decodeFrame } from "../src/decode";
import { headOf, headsOf, MODULES, modulesOf } from "../src/modules";
import { encode, site, status, type Row } from "./fake";

const NAN = 1;

function row(module: string, role: string, order: number, badges = 0, absmax = order): Row {
  const direction = role.startsWith("grad") ? "backward" : "forward";
  return { site: site({ module, role, direction }), values: { order, badges, absmax, status: 0 }, spark: [], histogram: [] };
}

const ROWS = [
  row("a", "input", 0),
  row("a", "output", 1),
  row("b", "input", 2),
  row("b", "output", 3),
  row("loss", "value", 4),
  row("b", "grad_output", 5, NAN, 70),
  row("a", "grad_output", 6, 0, 60),
];
const data = new Data(new Sites(ROWS.map((each) => each.site)), status(), decodeFrame(encode(ROWS, 0)));
const everything = { query: "", role: "", anomalies: false, verdicts: new Set<string>() };
const heads = (by: string, change = {}, descending = true): number[] => {
  const sort = MODULES.find(({ key }) => key === by)?.sort;
  return headsOf(data.sites, visibleRows(data, { ...everything, ...change, order: { by, descending } }, sort));
};

test("a module is one line, its output stands for it, and what matches brings its module", () => {
  assert.equal(modulesOf(data.sites), 3);
  assert.deepEqual(heads("execution"), [1, 3, 4]);
  assert.deepEqual(heads("execution", { anomalies: true }), [3]);
  assert.deepEqual(heads("execution", { role: "grad_output" }), [3, 1]); // as the gradients came
  assert.deepEqual([0, 5, 4].map((each) => headOf(data.sites, each)), [1, 3, 4]);
  assert.equal(headOf(data.sites, -1), -1);
});

test("modules are sorted by their worst row, by the output or by the gradient, and what has none is last", () => {
  assert.deepEqual(heads("health"), [3, 1, 4]);
  assert.deepEqual(heads("worst"), [3, 1, 4]);
  assert.deepEqual(heads("values absmax"), [3, 1, 4]);
  assert.deepEqual(heads("gradients absmax"), [3, 1, 4]);
  assert.deepEqual(heads("gradients absmax", {}, false), [1, 3, 4]);
});

test("every column has a name of its own", () => {
  const keys = MODULES.map(({ key }) => key);
  assert.equal(new Set(keys).size, keys.length);
  assert.deepEqual(MODULES.filter(({ label }) => label === "absmax").map(({ title }) => title), [
    "largest magnitude of what the module gave",
    "largest magnitude of the gradient that came back to it",
  ]);
});
