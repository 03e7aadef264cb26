/** What the columns of all tables are made of. */
import type { Data, SortValue } from "./data";
import { h, s, setAttribute, setText } from "./dom";
import type { Axis } from "./histogram";

export interface Column {
  key: string;
  label: string;
  title: string;
  width: number;
  align: "left" | "right" | "drawn";
  sort: SortValue;
  /** Characters in the cell, where the column is as wide as its contents; then `width` is the most it takes. */
  length?(data: Data, row: number): number;
  /** The least it then takes. */
  least?: number;
  /** The first click on the head sorts this way. */
  descendingFirst: boolean;
  fill(cell: HTMLElement, data: Data, row: number, axis: Axis): void;
}

export const HEIGHT = 18;
export const HISTOGRAM_WIDTH = 108;
export const TREND_WIDTH = 72;

export type Text = (data: Data, row: number) => string;

export function textColumn(key: string, label: string, title: string, width: number, text: Text, name = text): Column {
  const fill: Column["fill"] = (cell, data, row) => {
    setText(cell, text(data, row));
    setAttribute(cell, "title", name(data, row));
  };
  return { key, label, title, width, align: "left", sort: text, descendingFirst: false, fill };
}

function fillModule(cell: HTMLElement, data: Data, row: number): void {
  const path = data.sites.paths[row] ?? "";
  setAttribute(cell, "title", path);
  let parts = cell.firstElementChild;
  if (!parts) {
    // the cell runs right to left so that the ellipsis eats the head of the path; bdi keeps the text itself intact
    parts = h("bdi", { dir: "ltr" }, h("span", { class: "parents" }), h("span", { class: "name" }));
    cell.append(parts);
  }
  const cut = path.lastIndexOf(".") + 1;
  setText(parts.firstElementChild as Element, path.slice(0, cut));
  setText(parts.lastElementChild as Element, path.slice(cut));
}

function fillRole(cell: HTMLElement, data: Data, row: number): void {
  const { role, leaf, direction } = data.site(row);
  const older = data.olderStep(row);
  if (!cell.firstChild) cell.append(h("span"), h("span", { class: "leaf" }));
  setText(cell.firstElementChild as Element, data.role(row));
  setText(cell.lastElementChild as Element, older < 0 ? leaf : `${leaf} · step ${older}`);
  setAttribute(cell, "title", `${direction} ${role} ${leaf}${older < 0 ? "" : `, last seen in step ${older}`}`);
}

/** A row's drawing: its paths stay in place and only get new data. */
export function drawing(cell: HTMLElement, width: number, parts: readonly string[]): SVGElement {
  if (!cell.firstChild) {
    const paths = parts.map((name) => s("path", { class: name }));
    cell.append(s("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img" }, ...paths));
  }
  return cell.firstChild as SVGElement;
}

export function label(picture: SVGElement, cell: HTMLElement, words: string): void {
  setAttribute(picture, "aria-label", words);
  setAttribute(cell, "title", words);
}

export function drawnColumn(key: string, title: string, width: number, sort: SortValue, fill: Column["fill"]): Column {
  return { key, label: key, title, width, align: "drawn", sort, descendingFirst: true, fill };
}

export const module: Column = {
  ...textColumn("module", "module", "path of the module", 208, (data, row) => data.sites.paths[row] ?? ""),
  fill: fillModule,
  length: (data, row) => data.sites.paths[row]?.length ?? 0,
};
export const role: Column = {
  ...textColumn("role", "role", "what the tensor is to the module", 150, (data, row) => `${data.role(row)} ${data.site(row).leaf}`),
  fill: fillRole,
  length: (data, row) => data.role(row).length + data.site(row).leaf.length + 2,
};
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

/** The columns from left to right: once there are NaN or Inf, their counts stand before the other numbers. */
export function arranged(table: readonly Column[], nonfinite: boolean): number[] {
  const rank = ({ key }: Column): number => {
    if (!nonfinite) return 0;
    return FRONT.has(key) ? 0 : ALARMS.has(key) ? 1 : 2;
  };
  return table.map((_, at) => at).sort((a, b) => rank(table[a] as Column) - rank(table[b] as Column) || a - b);
}

const FRONT = new Set(["module", "role", "health", "verdict", "times", "values"]);
const ALARMS = new Set(["nan", "inf"]);
