import assert from "node:assert/strict";
import { test } from "vitest";
import { forNotebook } from "../src/keys";

const NONE = { shiftKey: false, ctrlKey: false, metaKey: false, altKey: false };

test("bare keys stay here: over a table dd must not delete a cell", () => {
  for (const key of ["d", "a", "b", "x", "/", "Escape", "ArrowDown", "Enter", " "]) {
    assert.equal(forNotebook({ ...NONE, key }, false), false);
    assert.equal(forNotebook({ ...NONE, key }, true), false);
  }
});

test("running a cell and saving go to the notebook from everywhere", () => {
  for (const inText of [true, false]) {
    assert.equal(forNotebook({ ...NONE, key: "Enter", shiftKey: true }, inText), true);
    assert.equal(forNotebook({ ...NONE, key: "Enter", ctrlKey: true }, inText), true);
    assert.equal(forNotebook({ ...NONE, key: "s", metaKey: true }, inText), true);
  }
});

test("while text is edited, its own chords are not the notebook's", () => {
  assert.equal(forNotebook({ ...NONE, key: "a", ctrlKey: true }, true), false);
  assert.equal(forNotebook({ ...NONE, key: "a", ctrlKey: true }, false), true);
});
