/** All that is known about the selected row. */
import { histogramChart, trendChart } from "./chart";
import type { Data } from "./data";
import { h } from "./dom";
import { ABSENT, count, exact, percent, plural, shape } from "./format";
import { histogramOf } from "./histogram";
import type { ColumnName } from "./types";
import { ANOMALY, statusReason } from "./words";

const STATISTICS: readonly ColumnName[] = ["min", "max", "mean", "std", "l2", "absmax"];
const COUNTS: readonly (readonly [column: ColumnName, name: string])[] = [
  ["nan_count", "NaN"],
  ["posinf_count", "+Inf"],
  ["neginf_count", "-Inf"],
  ["zero_count", "zero"],
  ["subnormal_count", "subnormal"],
  ["at_max_count", "at dtype max"],
];
const HARMLESS = new Set(["zero", "subnormal"]);

export class Detail {
  readonly element = h("section", { class: "detail", "aria-label": "Selected tensor" });

  constructor(private readonly onSelect: (row: number) => void) {}

  show(data: Data, row: number): void {
    const kept = this.element.scrollTop;
    if (row < 0 || row >= data.size) {
      this.element.replaceChildren(h("p", { class: "hint" }, "Select a row to see all its numbers."));
      return;
    }
    this.element.replaceChildren(
      h("div", { class: "who" }, ...this.who(data, row)),
      figure("values", "log2 scale, √ counts", histogramChart(histogramOf(data.frame, row), limits(data, row))),
      ...(data.frame.sparkLength
        ? [figure("trend", `${data.status.spark} over steps`, trendChart(data.spark(row), data.status.spark))]
        : []),
      h("div", { class: "numbers" }, statistics(data, row), counts(data, row)),
    );
    this.element.scrollTop = kept;
  }

  private who(data: Data, row: number): HTMLElement[] {
    const site = data.site(row);
    const facts = [`${site.role} ${site.leaf}`.trim(), site.type, shape(site.shape), site.dtype, site.device];
    const when = [
      count(data.value("step", row)) === ABSENT ? "" : `step ${count(data.value("step", row))}`,
      data.value("calls", row) > 1 ? plural(data.value("calls", row), "call") : "",
      data.value("numel", row) >= 0 ? plural(data.value("numel", row), "element") : "",
    ];
    const line = (words: string[]): HTMLElement => h("p", { class: "facts" }, words.filter(Boolean).join(" · "));
    return [
      h("h3", {}, data.sites.paths[row] ?? ""),
      line(facts),
      line(when),
      ...findings(data, row),
      this.siblings(data, row),
    ];
  }

  /** The same module's other tensors: from a bad output one step leads to its input. */
  private siblings(data: Data, row: number): HTMLElement {
    const buttons = data.sites.siblings(row).map((other) => {
      const { role, leaf } = data.site(other);
      const mark = data.badges(other).find((badge) => badge.bit & ANOMALY);
      const name = `${mark ? `${mark.glyph} ` : ""}${role} ${leaf}`.trim();
      const button = h(
        "button",
        { type: "button", class: `sibling ${mark?.tone ?? ""}`, "aria-pressed": String(other === row) },
        name,
      );
      button.addEventListener("click", () => this.onSelect(other));
      return button;
    });
    return h("div", { class: "siblings", role: "group", "aria-label": "Tensors of this module" }, ...buttons);
  }
}

function findings(data: Data, row: number): HTMLElement[] {
  const first = data.value("first_bad_step", row);
  const notes = data.badges(row).map((badge) =>
    h("p", { class: "finding" }, h("span", { class: `badge ${badge.tone}` }, `${badge.glyph} ${badge.word}`), badge.why),
  );
  const more = [
    ...(first >= 0 ? [`first non-finite at step ${count(first)}`] : []),
    ...(data.inherited(row) ? ["inherited from an earlier module"] : []),
  ];
  if (more.length) notes.push(h("p", { class: "finding more" }, more.join("; ")));
  return notes;
}

/** Ranges of dtypes are drawn for what could be stored in them: not for integers. */
function limits(data: Data, row: number) {
  return /float|complex/.test(data.site(row).dtype) ? data.status.dtype_limits : {};
}

function figure(title: string, caption: string, picture: SVGElement): HTMLElement {
  return h("figure", {}, h("figcaption", {}, h("b", {}, title), ` ${caption}`), picture);
}

function statistics(data: Data, row: number): HTMLElement {
  const why = statusReason(data.value("status", row));
  return list(
    STATISTICS.map((name) => {
      const value = data.value(name, row);
      const absent = Number.isNaN(value);
      return [name, absent ? ABSENT : exact(value), absent ? why : "", false];
    }),
  );
}

function counts(data: Data, row: number): HTMLElement {
  const why = statusReason(data.value("status", row));
  const total = data.value("numel", row);
  return list(
    COUNTS.map(([column, name]) => {
      const n = data.value(column, row);
      const share = n > 0 ? `${percent(n, total)} %` : "";
      return [name, count(n), n >= 0 ? share : why, n > 0 && !HARMLESS.has(name)];
    }),
  );
}

type Entry = [name: string, value: string, note: string, alarm: boolean];

function list(entries: Entry[]): HTMLElement {
  const rows = entries.flatMap(([name, value, note, alarm]) => [
    h("dt", {}, name),
    h("dd", { title: note, class: alarm ? "alarm" : "" }, value, ...(note.endsWith("%") ? [h("small", {}, note)] : [])),
  ]);
  return h("dl", {}, ...rows);
}
