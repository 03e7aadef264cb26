/** A row of the table that is a group: its name, how much is inside, and what of it is unusual. */
import { h } from "./dom";
import { count, plural } from "./format";
import type { Group } from "./tree";

export function fillGroup(element: HTMLElement, { name, size, open, marks }: Group): void {
  const shown = marks.map(({ glyph, word, tone, count: n }) =>
    glyph
      ? h("span", { class: `badge ${tone}` }, `${glyph} ${count(n)} ${word}`)
      : h("span", { class: "fine" }, word),
  );
  element.replaceChildren(
    h("span", { class: "twist", "aria-hidden": "true" }, open ? "▾" : "▸"),
    h("span", { class: "name" }, name),
    ...(marks.some(({ glyph }) => !glyph) ? [] : [h("span", { class: "fine" }, plural(size, "row"))]),
    ...shown,
  );
}
