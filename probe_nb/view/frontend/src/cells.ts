/** What the columns of the table are made of. */
import type { Data, SortValue } from "./data";
import { h, setAttribute, setText } from "./dom";
import { ABSENT, exact, number } from "./format";
import type { Axis } from "./histogram";

export interface Column {
  key: string;
  label: string;
  title: string;
  width: number;
  align: "left" | "right" | "drawn";
  sort: SortValue;
  /** Where it is shown: for one run, for two that are compared, or (absent) for both. */
  of?: "run" | "comparison";
  /** Characters in the cell, where the column is as wide as its contents; then `width` is the most it takes. */
  length?(data: Data, row: number): number;
  /** The least it then takes. */
  least?: number;
  /** The first click on the head sorts this way. */
  descendingFirst: boolean;
  fill(cell: HTMLElement, data: Data, row: number, axis: Axis): void;
}

export type Text = (data: Data, row: number) => string;
export type Value = (data: Data, row: number) => number;

export function textColumn(key: string, label: string, title: string, width: number, text: Text): Column {
  const fill: Column["fill"] = (cell, data, row) => {
    const words = text(data, row);
    setText(cell, words);
    setAttribute(cell, "title", words);
  };
  return { key, label, title, width, align: "left", sort: text, descendingFirst: false, fill };
}

/**
 * A column of numbers; NaN means absent, never that the value is NaN.
 *
 * @param why Says why a number is absent.
 * @param quiet Tells which numbers are worth no attention.
 */
export function numberColumn(
  key: string,
  label: string,
  title: string,
  width: number,
  value: Value,
  why: Text,
  quiet: (data: Data, row: number) => boolean = () => false,
): Column {
  const fill: Column["fill"] = (cell, data, row) => {
    const found = value(data, row);
    const absent = Number.isNaN(found);
    setText(cell, absent ? ABSENT : number(found));
    setAttribute(cell, "title", absent ? why(data, row) : exact(found));
    cell.classList.toggle("none", !absent && quiet(data, row));
  };
  return { key, label, title, width, align: "right", sort: value, descendingFirst: true, fill };
}

export function drawnColumn(key: string, title: string, width: number, sort: SortValue, fill: Column["fill"]): Column {
  return { key, label: key, title, width, align: "drawn", sort, descendingFirst: true, fill };
}

/** Say something by a glyph and a word, unless this is what the cell says already. */
export function say(cell: HTMLElement, state: string, title: string, marks: () => HTMLElement[]): void {
  if (cell.dataset.state === state) return;
  cell.dataset.state = state;
  cell.title = title;
  cell.replaceChildren(...marks());
}

export function badge(tone: string, glyph: string, word: string): HTMLElement {
  return h("span", { class: `badge ${tone}` }, `${glyph} ${word}`);
}

const CHARACTER = 6.8;
const LEAST = 76;

/** Widths in pixels: some columns are as wide as what they hold, within limits. */
export function widths(table: readonly Column[], data: Data): number[] {
  return table.map((column) => {
    if (!column.length) return column.width;
    let most = 0;
    for (let row = 0; row < data.size; row++) most = Math.max(most, column.length(data, row));
    return Math.min(column.width, Math.max(column.least ?? LEAST, Math.ceil(most * CHARACTER) + 22));
  });
}

/**
 * The columns from left to right.
 *
 * Once there are NaN or Inf, their counts stand before the other numbers; where there is little room, what is wrong
 * stands right behind the name.
 */
export function arranged(table: readonly Column[], nonfinite: boolean, narrow: boolean): number[] {
  const rank = ({ key }: Column): number => {
    if (key === "module") return 0;
    if (narrow && JUDGED.has(key)) return 1;
    if (!nonfinite) return 2;
    return FRONT.has(key) ? 2 : ALARMS.has(key) ? 3 : 4;
  };
  return table.map((_, at) => at).sort((a, b) => rank(table[a] as Column) - rank(table[b] as Column) || a - b);
}

const JUDGED = new Set(["health", "verdict"]);
const FRONT = new Set(["role", "health", "verdict", "values"]);
const ALARMS = new Set(["nan", "inf"]);
