/** The drawings in the rows: the values of a tensor and its trend, of one run or of two over each other. */
import type { Data } from "./data";
import { s, setAttribute } from "./dom";
import { describe, draw, geometry, highest, histogramOf, outline, type Axis } from "./histogram";
import { describeTrend, trend } from "./sparkline";

const HEIGHT = 18;
export const HISTOGRAM_WIDTH = 108;
export const TREND_WIDTH = 72;

const VALUES = ["ground", "bars", "beyond", "zero", "nonfinite", "outline"];
const TREND = ["marks", "line before", "line", "dot"];

/** A row's drawing: its paths stay in place and only get new data. */
function paint(cell: HTMLElement, width: number, names: readonly string[], paths: readonly string[], words: string): void {
  if (!cell.firstChild) {
    const parts = names.map((name) => s("path", { class: name }));
    cell.append(s("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img" }, ...parts));
  }
  const picture = cell.firstChild as SVGElement;
  paths.forEach((d, index) => setAttribute(picture.children[index] as Element, "d", d));
  setAttribute(picture, "aria-label", words);
  setAttribute(cell, "title", words);
}

/** The histogram of a row: the candidate's as bars, a baseline's as an outline over them. */
export function fillValues(cell: HTMLElement, data: Data, row: number, axis: Axis): void {
  const { compared } = data.frame;
  const now = histogramOf(data.frame, row);
  const before = compared ? histogramOf(compared.baseline, row) : null;
  const where = geometry(axis, HISTOGRAM_WIDTH, HEIGHT - 1, 4);
  const most = before ? Math.max(highest(now, axis), highest(before, axis)) : undefined;
  const { bars, beyond, zero, nonfinite } = draw(now, where, most);
  const ground = `M${where.x(axis.high, true)} ${HEIGHT - 0.5}H${where.x(axis.high, false) + where.binWidth}`;
  const around = before && most !== undefined ? outline(before, where, most) : "";
  const words = before ? `candidate (filled): ${describe(now)}; baseline (outline): ${describe(before)}` : describe(now);
  paint(cell, HISTOGRAM_WIDTH, VALUES, [ground, bars, beyond, zero, nonfinite, around], words);
}

/** The trend of a row: the candidate's as a line, a baseline's dashed, on one scale. */
export function fillTrend(cell: HTMLElement, data: Data, row: number): void {
  const { compared } = data.frame;
  const now = data.spark(row);
  const before = compared ? data.spark(row, compared.baseline) : null;
  const scale = before ? [...now, ...before] : undefined;
  const found = trend(now, TREND_WIDTH, HEIGHT, 3, scale);
  const other = before ? trend(before, TREND_WIDTH, HEIGHT, 3, scale) : null;
  const dot = found.last ? `M${found.last[0]} ${found.last[1]}h0` : "";
  const said = (each: typeof found): string => describeTrend(each, data.status.spark);
  const words = other ? `candidate: ${said(found)}; baseline (dashed): ${said(other)}` : said(found);
  paint(cell, TREND_WIDTH, TREND, [found.marks + (other?.marks ?? ""), other?.line ?? "", found.line, dot], words);
}
