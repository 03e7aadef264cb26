/** The numbers of a row: its statistics, and what was counted. */
import type { Data } from "./data";
import { h } from "./dom";
import { ABSENT, count, exact, number, percent } from "./format";
import type { ColumnName } from "./types";
import { statusReason } from "./words";

export const STATISTICS: readonly ColumnName[] = ["min", "max", "mean", "std", "l2", "absmax"];
export const COUNTS: readonly (readonly [column: ColumnName, name: string])[] = [
  ["nan_count", "NaN"],
  ["posinf_count", "+Inf"],
  ["neginf_count", "-Inf"],
  ["zero_count", "zero"],
  ["subnormal_count", "subnormal"],
  ["at_max_count", "at dtype max"],
];
const HARMLESS = new Set(["zero", "subnormal"]);

type Entry = [name: string, value: string, note: string, alarm: boolean];

/** The numbers of a row; of one that is a single number that alone. */
export function numbers(data: Data, row: number): HTMLElement[] {
  const value = data.value("mean", row);
  if (data.setting(row) && !Number.isNaN(value)) return [list("statistics", [["value", exact(value), "", false]])];
  return [statistics(data, row), counts(data, row)];
}

function statistics(data: Data, row: number): HTMLElement {
  const why = statusReason(data.value("status", row));
  return list(
    "statistics",
    STATISTICS.map((name) => {
      const value = data.value(name, row);
      const absent = Number.isNaN(value);
      return [name, absent ? ABSENT : number(value, 6), absent ? why : exact(value), false];
    }),
  );
}

function counts(data: Data, row: number): HTMLElement {
  const why = statusReason(data.value("status", row));
  const total = data.value("numel", row);
  return list(
    "counts",
    COUNTS.map(([column, name]) => {
      const n = data.value(column, row);
      const share = n > 0 ? `${percent(n, total)} %` : "";
      return [name, count(n), n >= 0 ? share : why, n > 0 && !HARMLESS.has(name)];
    }),
  );
}

function list(name: string, entries: Entry[]): HTMLElement {
  const cells = entries.flatMap(([term, value, note, alarm]) => [
    h("dt", {}, term),
    h("dd", { title: note, class: alarm ? "alarm" : "" }, value),
    ...(name === "counts" ? [h("dd", { class: "share" }, note.endsWith("%") ? note : "")] : []),
  ]);
  return h("dl", { class: name }, ...cells);
}
