/** The columns of a run: what each is called, how it sorts and how it fills a cell. */
import {
  drawing,
  drawnColumn,
  HEIGHT,
  HISTOGRAM_WIDTH,
  label,
  module,
  role,
  textColumn,
  TREND_WIDTH,
  type Column,
  type Text,
} from "./cells";
import type { Data, SortValue } from "./data";
import { h, setAttribute, setText } from "./dom";
import { ABSENT, compact, count, exact, number, percent, shape, shortDtype } from "./format";
import { describe, draw, geometry, histogramOf, type Axis } from "./histogram";
import { describeTrend, trend } from "./sparkline";
import type { ColumnName } from "./types";
import { INF, severity, statusReason } from "./words";

/** A statistic; NaN in the frame means absent, never that the value is NaN. */
function statColumn(key: ColumnName, label: string, title: string): Column {
  const fill: Column["fill"] = (cell, data, row) => {
    const value = data.value(key, row);
    const absent = Number.isNaN(value);
    setText(cell, absent ? ABSENT : number(value));
    setAttribute(cell, "title", absent ? statusReason(data.value("status", row)) : exact(value));
  };
  return {
    key,
    label,
    title,
    width: 70,
    align: "right",
    sort: (data, row) => data.value(key, row),
    descendingFirst: true,
    fill,
  };
}

function countColumn(
  key: string,
  label: string,
  title: string,
  width: number,
  amount: (data: Data, row: number) => number,
  text: Text,
): Column {
  const fill: Column["fill"] = (cell, data, row) => {
    const n = amount(data, row);
    const absent = !(n >= 0);
    setText(cell, absent ? ABSENT : text(data, row));
    setAttribute(cell, "title", absent ? statusReason(data.value("status", row)) : `${count(n)} ${title}`);
    cell.classList.toggle("none", n === 0);
    cell.classList.toggle("alarm", n > 0 && key !== "zero");
  };
  const sort: SortValue = (data, row) => (amount(data, row) >= 0 ? amount(data, row) : NaN);
  return { key, label, title, width, align: "right", sort, descendingFirst: true, fill };
}

function infinities(data: Data, row: number): string {
  const plus = data.value("posinf_count", row);
  const minus = data.value("neginf_count", row);
  const parts = [plus > 0 ? `+${compact(plus)}` : "", minus > 0 ? `-${compact(minus)}` : ""];
  return parts.filter(Boolean).join(" ") || "0";
}

function fillHealth(cell: HTMLElement, data: Data, row: number): void {
  const badges = data.badges(row);
  const inherited = data.inherited(row);
  const state = `${data.bits(row)}/${data.value("status", row)}`;
  if (cell.dataset.state === state) return;
  cell.dataset.state = state;
  const reasons = badges.map((badge) => badge.why);
  if (inherited) reasons.push("inherited from an earlier module");
  cell.title = reasons.join("; ") || "nothing unusual";
  const shown = badges.slice(0, badges[1] && badges[1].bit === INF ? 2 : 1); // two long badges do not fit
  const marks: HTMLElement[] = shown.map((badge) =>
    h("span", { class: `badge ${badge.tone}` }, `${badge.glyph} ${badge.word}`),
  );
  const rest = badges.length - shown.length;
  if (rest > 0) marks.push(h("span", { class: "more" }, `+${rest}`));
  cell.replaceChildren(...(marks.length ? marks : [h("span", { class: "fine" }, "ok")]));
}

function fillHistogram(cell: HTMLElement, data: Data, row: number, axis: Axis): void {
  const picture = drawing(cell, HISTOGRAM_WIDTH, ["ground", "bars", "beyond", "zero", "nonfinite"]);
  const histogram = histogramOf(data.frame, row);
  const where = geometry(axis, HISTOGRAM_WIDTH, HEIGHT - 1, 4);
  const parts = draw(histogram, where);
  const left = where.x(axis.high, true);
  const right = where.x(axis.high, false) + where.binWidth;
  const ground = `M${left} ${HEIGHT - 0.5}H${right}`;
  const paths = [ground, parts.bars, parts.beyond, parts.zero, parts.nonfinite];
  paths.forEach((d, index) => setAttribute(picture.children[index] as Element, "d", d));
  label(picture, cell, describe(histogram));
}

function fillTrend(cell: HTMLElement, data: Data, row: number): void {
  const picture = drawing(cell, TREND_WIDTH, ["marks", "line", "dot"]);
  const found = trend(data.spark(row), TREND_WIDTH, HEIGHT, 3);
  const dot = found.last ? `M${found.last[0]} ${found.last[1]}h0` : "";
  [found.marks, found.line, dot].forEach((d, index) => setAttribute(picture.children[index] as Element, "d", d));
  label(picture, cell, describeTrend(found, data.status.spark));
}

const health: Column = {
  ...drawnColumn(
    "health",
    "what is unusual, most severe first",
    126,
    (data, row) => severity(data.bits(row), data.value("status", row)),
    fillHealth,
  ),
  align: "left",
  length: (data, row) => {
    const [first, ...rest] = data.badges(row);
    return (first?.word.length ?? 0) + 3 * Math.sign(rest.length) + 2;
  },
};

function infinite(data: Data, row: number): number {
  return data.value("posinf_count", row) + data.value("neginf_count", row);
}

/** What is read first stands first; the module's column stays in view while the others scroll. */
export const TABLE: readonly Column[] = [
  module,
  role,
  health,
  drawnColumn(
    "values",
    "log2 histogram: negative left, positive right, large outside; zeros in the middle; -Inf, +Inf and NaN at the ends",
    HISTOGRAM_WIDTH + 12,
    (data, row) => data.value("absmax", row),
    fillHistogram,
  ),
  statColumn("mean", "mean", "mean of the finite elements"),
  statColumn("std", "std", "standard deviation of the finite elements"),
  statColumn("min", "min", "smallest finite element"),
  statColumn("max", "max", "largest finite element"),
  statColumn("l2", "l2", "Euclidean norm of the finite elements"),
  {
    ...countColumn(
      "nan",
      "nan",
      "NaN",
      62,
      (data, row) => data.value("nan_count", row),
      (data, row) => compact(data.value("nan_count", row)),
    ),
    length: (data, row) => compact(data.value("nan_count", row)).length,
    least: 46,
  },
  {
    ...countColumn("inf", "inf", "infinite (+ and -)", 112, infinite, infinities),
    length: (data, row) => infinities(data, row).length,
    least: 46,
  },
  {
    ...countColumn(
      "zero",
      "zero %",
      "elements exactly 0",
      58,
      (data, row) => data.value("zero_count", row),
      (data, row) => percent(data.value("zero_count", row), data.value("numel", row)),
    ),
    sort: (data, row) => data.value("zero_count", row) / data.value("numel", row),
  },
  {
    ...drawnColumn(
      "trend",
      "largest magnitude over steps, log scale; marks: steps with non-finite elements (sorts by the first of them)",
      TREND_WIDTH + 16,
      (data, row) => (data.value("first_bad_step", row) >= 0 ? data.value("first_bad_step", row) : NaN),
      fillTrend,
    ),
    descendingFirst: false,
  },
  textColumn("type", "type", "class of the module", 116, (data, row) => data.site(row).type),
  {
    ...textColumn("shape", "shape", "shape of the tensor", 104, (data, row) => shape(data.site(row).shape)),
    sort: (data, row) => data.value("numel", row),
  },
  textColumn("dtype", "dtype", "element type", 84, (data, row) => shortDtype(data.site(row).dtype)),
];
