/** The columns of a comparison: what both runs have, side by side. */
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
} from "./cells";
import { gravity, type Data } from "./data";
import { h, setAttribute, setText } from "./dom";
import { ABSENT, count, exact, number, shape, shortDtype } from "./format";
import { describe, draw, geometry, highest, histogramOf, outline, type Axis } from "./histogram";
import { describeTrend, trend } from "./sparkline";
import type { ColumnName, PairName } from "./types";
import { VERDICTS } from "./words";

function fillVerdict(cell: HTMLElement, data: Data, row: number): void {
  const name = data.verdict(row);
  const origin = data.pair("origin", row) > 0;
  const follows = data.follows(row);
  const state = `${name}/${origin}/${follows}`;
  if (cell.dataset.state === state) return;
  cell.dataset.state = state;
  const { glyph, word, tone, why } = VERDICTS[name] ?? { glyph: "–", word: name, tone: "mute", why: "" };
  const more = origin ? " (here it begins)" : follows ? " (follows from an earlier divergence)" : "";
  cell.title = `${why}${more}`;
  const mark = h("span", { class: `badge ${tone}` }, `${glyph} ${origin ? "diverges here" : word}`);
  cell.replaceChildren(...(follows ? [mark, h("span", { class: "more" }, "follows")] : [mark]));
}

/** What is said of both sides: one word where they agree, both where not. */
export function bothOf(data: Data, row: number, name: "dtype" | "shape" | "device" | "type" | "module"): string {
  const site = data.site(row);
  const written = (value: unknown): string => (name === "shape" ? shape((value as number[]) ?? []) : shortDtype(String(value)));
  const before = site.baseline?.[name];
  return before === undefined ? written(site[name]) : `${written(before)} → ${written(site[name])}`;
}

function pairColumn(key: PairName, label: string, title: string, width = 76): Column {
  return {
    key,
    label,
    title,
    width,
    align: "right",
    descendingFirst: true,
    sort: (data, row) => data.pair(key, row),
    fill: (cell, data, row) => {
      const value = data.pair(key, row);
      setText(cell, Number.isNaN(value) ? ABSENT : number(value));
      setAttribute(cell, "title", Number.isNaN(value) ? data.site(row).why || "nothing to compare" : exact(value));
      cell.classList.toggle("none", value === 0);
    },
  };
}

/** A statistic of both runs: two columns that stand beside each other. */
function sides(name: ColumnName, label: string, width = 78): Column[] {
  const column = (side: "baseline" | "candidate"): Column => {
    const value = (data: Data, row: number): number => (side === "baseline" ? data.before(name, row) : data.value(name, row));
    return {
      key: `${side} ${name}`,
      label: `${label} ${side === "baseline" ? "base" : "cand"}`,
      title: `${label} of the ${side}`,
      width,
      align: "right",
      descendingFirst: true,
      sort: value,
      fill: (cell, data, row) => {
        const found = value(data, row);
        const absent = Number.isNaN(found);
        setText(cell, absent ? ABSENT : number(found));
        setAttribute(cell, "title", absent ? `the ${side} has no number here` : exact(found));
        const same = data.before(name, row) === data.value(name, row);
        cell.classList.toggle("none", side === "candidate" && same);
      },
    };
  };
  return [column("baseline"), column("candidate")];
}

function fillTimes(cell: HTMLElement, data: Data, row: number): void {
  const times = data.pair("beyond", row);
  const shown = times >= 0 && data.pair("difference", row) > 0;
  setText(cell, shown ? `${times > 0 && times < 0.001 ? "<0.001" : number(times, 2)}×` : ABSENT);
  setAttribute(cell, "title", shown ? `${exact(times)} times what rounding and what came in explain` : "no difference");
  cell.classList.toggle("alarm", times > 1 && !data.follows(row));
}

function fillValues(cell: HTMLElement, data: Data, row: number, axis: Axis): void {
  const picture = drawing(cell, HISTOGRAM_WIDTH, ["ground", "bars", "beyond", "zero", "nonfinite", "outline"]);
  const now = histogramOf(data.frame, row);
  const before = data.frame.compared ? histogramOf(data.frame.compared.baseline, row) : now;
  const where = geometry(axis, HISTOGRAM_WIDTH, HEIGHT - 1, 4);
  const most = Math.max(highest(now, axis), highest(before, axis));
  const parts = draw(now, where, most);
  const ground = `M${where.x(axis.high, true)} ${HEIGHT - 0.5}H${where.x(axis.high, false) + where.binWidth}`;
  const paths = [ground, parts.bars, parts.beyond, parts.zero, parts.nonfinite, outline(before, where, most)];
  paths.forEach((d, index) => setAttribute(picture.children[index] as Element, "d", d));
  label(picture, cell, `candidate (filled): ${describe(now)}; baseline (outline): ${describe(before)}`);
}

function fillTrends(cell: HTMLElement, data: Data, row: number): void {
  const picture = drawing(cell, TREND_WIDTH, ["marks", "line before", "line", "dot"]);
  const compared = data.frame.compared;
  const now = data.spark(row);
  const before = compared ? data.spark(row, compared.baseline) : now;
  const scale = [...now, ...before];
  const [found, other] = [now, before].map((values) => trend(values, TREND_WIDTH, HEIGHT, 3, scale));
  if (!found || !other) return;
  const dot = found.last ? `M${found.last[0]} ${found.last[1]}h0` : "";
  [found.marks + other.marks, other.line, found.line, dot].forEach((d, index) =>
    setAttribute(picture.children[index] as Element, "d", d),
  );
  const words = (each: typeof found): string => describeTrend(each, data.status.spark);
  label(picture, cell, `candidate: ${words(found)}; baseline (dashed): ${words(other)}`);
}

const verdict: Column = {
  ...drawnColumn("verdict", "what is said of this pair", 150, gravity, fillVerdict),
  align: "left",
  length: (data, row) => {
    const word = VERDICTS[data.verdict(row)]?.word ?? "";
    return data.pair("origin", row) > 0 ? 15 : word.length + (data.follows(row) ? 9 : 2);
  },
  least: 92,
};

const seen = (data: Data, row: number): string =>
  data.pair("difference", row) > 0 ? (data.status.comparison?.measures[data.pair("measure", row)] ?? "") : "";

export const COMPARED: readonly Column[] = [
  module,
  role,
  verdict,
  drawnColumn(
    "values",
    "log2 histogram: candidate filled, baseline as an outline over it",
    HISTOGRAM_WIDTH + 12,
    (data, row) => data.pair("histogram_distance", row),
    fillValues,
  ),
  pairColumn("difference", "difference", "largest relative difference of a statistic, or of the elements"),
  {
    ...pairColumn("beyond", "beyond", "how many times the difference is larger than rounding and what came in explain", 68),
    fill: fillTimes,
  },
  textColumn("measure", "seen in", "what differs most: a statistic, the histogram, kept tensors", 76, seen),
  pairColumn("explained", "explained", "what rounding of this one call explains"),
  pairColumn("came_in", "came in", "largest difference of what the call was given"),
  ...sides("l2", "l2"),
  ...sides("absmax", "absmax", 92),
  ...sides("mean", "mean"),
  ...sides("std", "std"),
  drawnColumn(
    "trend",
    "largest magnitude over steps, log scale: candidate solid, baseline dashed",
    TREND_WIDTH + 16,
    (data, row) => data.value("absmax", row),
    fillTrends,
  ),
  {
    ...textColumn("step", "step", "step that is shown: where it diverges first, else where it differs most", 56, (data, row) => {
      const step = data.value("step", row);
      return count(Number.isNaN(step) ? data.before("step", row) : step);
    }),
    align: "right",
    sort: (data, row) => data.value("step", row),
  },
  textColumn("type", "type", "class of the module", 116, (data, row) => bothOf(data, row, "type")),
  textColumn("shape", "shape", "shape of the tensor", 104, (data, row) => bothOf(data, row, "shape")),
  textColumn("dtype", "dtype", "element type", 84, (data, row) => bothOf(data, row, "dtype")),
  textColumn("device", "device", "where it is", 84, (data, row) => bothOf(data, row, "device")),
];
