/** All that is known about the selected row. */
import { histogramChart, trendChart } from "./chart";
import { bothOf } from "./compared";
import { copying, expression } from "./copy";
import type { Data } from "./data";
import { h } from "./dom";
import { ABSENT, count, exact, number, percent, plural } from "./format";
import { histogramOf } from "./histogram";
import { legend, pairFindings, pairNumbers } from "./pairdetail";
import type { ColumnName } from "./types";
import { ANOMALY, statusReason, VERDICTS, type Badge } from "./words";

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
    const { frame, status } = data;
    const compared = frame.compared;
    const before = compared?.baseline;
    const trend = trendChart(data.spark(row), status.spark, before && data.spark(row, before));
    const histogram = histogramChart(histogramOf(frame, row), limits(data, row), before && histogramOf(before, row));
    this.element.replaceChildren(
      h("div", { class: "who" }, ...this.who(data, row)),
      h(
        "div",
        { class: "charts" },
        // the trend first: it is small, and what one looks for in a training
        ...(frame.sparkLength ? [figure("trend", `${status.spark} over steps, log scale`, trend)] : []),
        figure("values", "log2 scale, √ counts", histogram),
        ...(compared ? [legend()] : []),
      ),
      h("div", { class: "numbers" }, ...(compared ? pairNumbers(data, row) : [statistics(data, row), counts(data, row)])),
    );
    this.element.scrollTop = kept;
  }

  private who(data: Data, row: number): HTMLElement[] {
    const site = data.site(row);
    const compared = data.status.comparison !== null;
    const both = (name: "type" | "shape" | "dtype" | "device"): string => bothOf(data, row, name);
    const facts = [`${data.role(row)} ${site.leaf}`.trim(), both("type"), both("shape"), both("dtype"), both("device")];
    const now = data.value("step", row);
    const step = count(Number.isNaN(now) ? data.before("step", row) : now);
    const when = [
      step === ABSENT ? "" : `numbers of step ${step}`,
      data.value("calls", row) > 1 ? plural(data.value("calls", row), "call") : "",
      data.value("numel", row) >= 0 ? plural(data.value("numel", row), "element") : "",
    ];
    const line = (words: string[]): HTMLElement => h("p", { class: "facts" }, words.filter(Boolean).join(" · "));
    return [
      h("h3", {}, data.sites.paths[row] ?? ""),
      line(facts),
      line(when),
      ...(compared ? pairFindings(data, row, this.onSelect) : findings(data, row)),
      this.siblings(data, row),
      this.neighbours(data, row),
      copying(expression(data, row)),
    ];
  }

  /** The same module's other tensors: from a bad output one step leads to its input. */
  private siblings(data: Data, row: number): HTMLElement {
    const buttons = data.sites.siblings(row).map((other) => {
      const { leaf } = data.site(other);
      const mark = markOf(data, other);
      const name = `${mark ? `${mark.glyph} ` : ""}${data.role(other)} ${leaf}`.trim();
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

  /** What ran before and after: who fed this row and what it feeds. */
  private neighbours(data: Data, row: number): HTMLElement {
    const [before, after] = data.neighbours(row);
    const link = (at: number, glyph: string, name: string): HTMLElement[] => {
      if (at < 0) return [];
      const { leaf } = data.site(at);
      const words = `${data.sites.paths[at]} · ${`${data.role(at)} ${leaf}`.trim()}`;
      const button = h(
        "button",
        { type: "button", class: `neighbour ${markOf(data, at)?.tone ?? ""}`, title: `${name}: ${words}` },
        h("span", { class: "glyph" }, glyph),
        h("span", { class: "words" }, `${markOf(data, at)?.glyph ?? ""} ${words}`.trim()),
      );
      button.addEventListener("click", () => this.onSelect(at));
      return [button];
    };
    return h(
      "div",
      { class: "neighbours", role: "group", "aria-label": "Neighbours in execution order" },
      ...link(before, "↑", "ran before"),
      ...link(after, "↓", "ran after"),
    );
  }
}

function markOf(data: Data, row: number): { glyph: string; tone: string } | undefined {
  const verdict = VERDICTS[data.verdict(row)];
  if (verdict && data.follows(row)) return { glyph: verdict.glyph, tone: "" }; // its cause is loud enough
  if (verdict) return verdict.tone === "bad" || verdict.tone === "warn" ? verdict : undefined;
  return data.badges(row).find((badge) => badge.bit & ANOMALY);
}

function findings(data: Data, row: number): HTMLElement[] {
  const first = data.value("first_bad_step", row);
  const notes = data.badges(row).map((badge) => {
    const mark = h("span", { class: `badge ${badge.tone}` }, `${badge.glyph} ${badge.word}`);
    return h("p", { class: "finding" }, mark, evidence(data, row, badge));
  });
  const more = [
    ...(first >= 0 ? [`first non-finite at step ${count(first)}${later(data, row, first)}`] : []),
    ...(data.inherited(row) ? ["inherited from an earlier module"] : []),
  ];
  if (more.length) notes.push(h("p", { class: "finding facts" }, more.join("; ")));
  return notes;
}

/** Where the numbers shown are not those of the first bad step: that they are not. */
function later(data: Data, row: number, first: number): string {
  const step = data.value("step", row);
  return step > first ? ` (the numbers here are of step ${count(step)})` : "";
}

/** What speaks for a badge, in this row's own numbers where they say it best. */
function evidence(data: Data, row: number, badge: Badge): string {
  const of = ` of ${plural(data.value("numel", row), "element")}`;
  const largest = data.status.dtype_limits[data.site(row).dtype]?.[2];
  const absmax = data.value("absmax", row);
  if (badge.word === "NaN" && data.value("nan_count", row) > 0) return count(data.value("nan_count", row)) + of;
  if (badge.word === "Inf") {
    const signs = [["posinf_count", "+"], ["neginf_count", "-"]] as const;
    const found = signs.filter(([name]) => data.value(name, row) > 0);
    if (found.length) return found.map(([name, sign]) => `${count(data.value(name, row))} ${sign}Inf`).join(", ");
  }
  if (badge.word === "saturated" && data.value("at_max_count", row) > 0) {
    return `${count(data.value("at_max_count", row))}${of} at the largest value`;
  }
  if (badge.word === "overflow risk" && largest && absmax >= 0) {
    return `|x| reaches ${percent(absmax, largest)} % of the largest ${data.site(row).dtype}`;
  }
  return badge.why;
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

type Entry = [name: string, value: string, note: string, alarm: boolean];

function list(name: string, entries: Entry[]): HTMLElement {
  const cells = entries.flatMap(([term, value, note, alarm]) => [
    h("dt", {}, term),
    h("dd", { title: note, class: alarm ? "alarm" : "" }, value),
    ...(name === "counts" ? [h("dd", { class: "share" }, note.endsWith("%") ? note : "")] : []),
  ]);
  return h("dl", { class: name }, ...cells);
}
