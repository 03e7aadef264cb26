/** One line per module: what it gave and the gradient that came back, side by side. */
import { numberColumn, type Column, type Value } from "./cells";
import { TABLE } from "./columns";
import type { Data } from "./data";
import type { Sites } from "./sites";
import { setAttribute } from "./dom";
import { ABSENT, count } from "./format";
import { statusReason } from "./words";

/** The rows of a module; -1 where it has no such row. */
interface Line {
  rows: number[];
  output: number;
  gradient: number;
  /** The row that stands for the module: it is the one that is selected. */
  head: number;
}

const known = new WeakMap<Sites, Line[]>();
const worsts = new WeakMap<Data, Map<Line, number>>();

/** The line of each row. */
function linesOf(sites: Sites): Line[] {
  const found = known.get(sites);
  if (found) return found;
  const byModule = new Map<string, Line>();
  const lines = sites.rows.map(({ role }, row) => {
    const path = sites.paths[row] ?? "";
    const line = byModule.get(path) ?? { rows: [], output: -1, gradient: -1, head: row };
    byModule.set(path, line);
    line.rows.push(row);
    if (role === "output" && line.output < 0) line.output = line.head = row;
    if (role === "grad_output" && line.gradient < 0) line.gradient = row;
    return line;
  });
  known.set(sites, lines);
  return lines;
}

function lineOf(data: Data, row: number): Line {
  return linesOf(data.sites)[row] as Line;
}

/** The row that stands for the module of a row; -1 for none. */
export function headOf(sites: Sites, row: number): number {
  return linesOf(sites)[row]?.head ?? -1;
}

/** The modules of some rows, in the order in which these come. */
export function headsOf(sites: Sites, rows: readonly number[]): number[] {
  const lines = linesOf(sites);
  return [...new Set(rows.map((row) => (lines[row] as Line).head))];
}

/** How many modules there are. */
export function modulesOf(sites: Sites): number {
  return new Set(linesOf(sites)).size;
}

/** The row of a module that is worst. */
function worst(data: Data, row: number): number {
  const line = lineOf(data, row);
  const found = worsts.get(data) ?? new Map<Line, number>();
  worsts.set(data, found);
  let at = found.get(line);
  if (at === undefined) {
    at = line.rows.reduce((most, each) => (data.severity(each) > data.severity(most) ? each : most), line.head);
    found.set(line, at);
  }
  return at;
}

const output: Value = (data, row) => lineOf(data, row).output;
const gradient: Value = (data, row) => lineOf(data, row).gradient;

/** A column that shows another row of the same module. */
function of(column: Column, to: Value, given: Partial<Column>, absent: string): Column {
  const { length } = column;
  return {
    ...column,
    ...given,
    sort: (data, row) => (to(data, row) < 0 ? NaN : column.sort(data, to(data, row))),
    ...(length ? { length: (data: Data, row: number) => length(data, Math.max(0, to(data, row))) } : {}),
    fill: (cell, data, row, axis) => {
      const other = to(data, row);
      if (other >= 0) column.fill(cell, data, other, axis);
      else {
        cell.replaceChildren(...(column.align === "right" ? [ABSENT] : []));
        delete cell.dataset.state;
        setAttribute(cell, "title", absent);
      }
    },
  };
}

const listed = new Map(TABLE.map((column) => [column.key, column]));
const column = (key: string): Column => listed.get(key) as Column;
const absmax = numberColumn(
  ...(["absmax", "absmax", "largest magnitude", 70] as const),
  (data, row) => data.value("absmax", row),
  (data, row) => statusReason(data.value("status", row)),
);

function side(to: Value, name: string, key: string, what: string): Column[] {
  const absent = `no ${name} of this module was recorded`;
  const named = (label: string, title: string): Partial<Column> => ({ label, title: `${title} of ${what}` });
  return [
    of(column("values"), to, { key, ...named(name, "log2 histogram") }, absent),
    of(absmax, to, { key: `${key} absmax`, ...named("absmax", "largest magnitude") }, absent),
    of(column("trend"), to, { key: `${key} trend`, ...named("trend", "largest magnitude over steps") }, absent),
  ];
}

const inside: Value = (data, row) => lineOf(data, row).rows.length;

export const MODULES: readonly Column[] = [
  column("module"),
  of(column("health"), worst, { title: "the worst of all rows of the module" }, ""),
  ...side(output, "output", "values", "what the module gave"),
  ...side(gradient, "grad_output", "gradients", "the gradient that came back to it"),
  {
    ...numberColumn("rows", "rows", "how many rows the module has", 52, inside, () => ""),
    fill: (cell, data, row) => cell.replaceChildren(count(inside(data, row))),
  },
  column("type"),
];
