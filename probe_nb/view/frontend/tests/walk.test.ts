import assert from "node:assert/strict";
import { test } from "vitest";
import { flat, type Group, type Listed } from "../src/tree";
import { stepOf } from "../src/walk";

const FLAT = flat([7, 3, 9, 1]);

function group(name: string, depth: number, open: boolean): Group {
  return { key: name, name, depth, size: 1, open, marks: [] };
}

/** a (open) > b (open) > 5, 6; c (closed) */
const TREE: Listed = {
  rows: [-1, -2, 5, 6, -3],
  groups: [group("a", 0, true), group("b", 1, true), group("c", 0, false)],
  depths: [0, 1, 2, 2, 0],
  tree: true,
};

test("arrows, pages and ends go through the list and stop at its ends", () => {
  const to = (key: string, at: number): unknown => stepOf(key, FLAT, at, 2);
  assert.deepEqual(to("ArrowDown", 0), { to: 3 });
  assert.deepEqual(to("ArrowUp", 2), { to: 3 });
  assert.deepEqual(to("ArrowUp", 0), { to: 7 });
  assert.deepEqual(to("PageDown", 0), { to: 9 });
  assert.deepEqual(to("PageDown", 3), { to: 1 });
  assert.deepEqual(to("PageUp", 3), { to: 3 });
  assert.deepEqual(to("Home", 3), { to: 7 });
  assert.deepEqual(to("End", 0), { to: 1 });
});

test("with nothing selected any of them begins at the first row", () => {
  assert.deepEqual(stepOf("ArrowDown", FLAT, -1, 2), { to: 7 });
  assert.deepEqual(stepOf("ArrowUp", FLAT, -1, 2), { to: 7 });
});

test("other keys, and any key over an empty list, are none of ours", () => {
  for (const key of ["a", "Enter", " ", "ArrowLeft", "ArrowRight", "Tab"]) assert.equal(stepOf(key, FLAT, 1, 2), null);
  for (const key of ["ArrowDown", "Home", "Enter"]) assert.equal(stepOf(key, flat([]), -1, 2), null);
  for (const key of ["Enter", "ArrowLeft"]) assert.equal(stepOf(key, TREE, -1, 2), null);
});

test("right opens what is closed, left closes what is open, Enter and space do either", () => {
  const [a, , c] = TREE.groups;
  assert.deepEqual(stepOf("ArrowRight", TREE, 4, 2), { fold: c });
  assert.equal(stepOf("ArrowRight", TREE, 0, 2), null);
  assert.deepEqual(stepOf("ArrowLeft", TREE, 0, 2), { fold: a });
  for (const key of ["Enter", " "]) {
    assert.deepEqual(stepOf(key, TREE, 0, 2), { fold: a });
    assert.deepEqual(stepOf(key, TREE, 4, 2), { fold: c });
  }
});

test("left leads from a row to the group around it, and from a closed outermost one nowhere else", () => {
  assert.deepEqual(stepOf("ArrowLeft", TREE, 3, 2), { to: -2 });
  assert.deepEqual(stepOf("ArrowLeft", TREE, 4, 2), { to: -3 });
});
