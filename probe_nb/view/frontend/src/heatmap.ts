/**
 * The histograms of a row over steps as plain geometry.
 *
 * Steps go along, powers of two up: large positive values on top, the row of zeros in the middle, large negative values
 * at the foot. Where one sign has no values, its half is left out. A strip on top says by signs what is not finite.
 */
import type { Data } from "./data";
import { power } from "./format";
import { histogramOf, type Histogram } from "./histogram";
import { badOf } from "./series";
import type { Frame, Limits } from "./types";

export interface HeatColumn {
  step: number;
  histogram: Histogram;
  /** The sum of all counts, and the number of elements: of very many the counts, float32, are only near. */
  total: number;
  elements: number;
  /** What was not finite, in words. */
  bad: string;
}

export interface Heat {
  columns: HeatColumn[];
  /** The exponents of the lowest and of the highest cell of a half. */
  low: number;
  high: number;
  /** Exponents that share a cell. */
  size: number;
  /** Cells of a half. */
  cells: number;
  halves: { positive: boolean; negative: boolean; zero: boolean };
  /** By column and cell (positive ones from the top down, then negative ones) the share of its elements. */
  shares: Float64Array;
  /** The largest share of any cell, and the smallest that is not 0. */
  most: number;
  least: number;
}

/** Cells of a half, and columns, at most: more could not be told apart. */
const CELLS = 48;
const COLUMNS = 96;
/** A limit of the dtype is shown if it is so near to the values. */
const NEAR = 4;

/** The steps of which the histogram of a row is known, oldest first. */
export function columnsOf(data: Data, row: number): HeatColumn[] {
  const found = new Map<number, HeatColumn>();
  for (const frame of [...data.history.moments.map((moment) => moment.frame), data.frame]) {
    const step = frame.columns.step[row] ?? NaN;
    if (step >= 0) found.set(step, columnOf(frame, row, step)); // of one step the newest counts
  }
  return thinned([...found.values()].sort((a, b) => a.step - b.step));
}

/** What was read of a frame for the row that was looked at last: earlier moments do not change. */
const read = new WeakMap<Frame, { row: number; column: HeatColumn }>();

function columnOf(frame: Frame, row: number, step: number): HeatColumn {
  const known = read.get(frame);
  if (known?.row === row) return known.column;
  const column = made(frame, row, step);
  read.set(frame, { row, column });
  return column;
}

function made(frame: Frame, row: number, step: number): HeatColumn {
  const histogram = histogramOf(frame, row);
  const { positive, negative, zero, nan, posinf, neginf } = histogram;
  const total = [...positive, ...negative].reduce((sum, [, n]) => sum + n, zero + nan + posinf + neginf);
  const numel = frame.columns.numel[row] ?? -1;
  const elements = Math.abs(total - numel) < 1e-5 * total ? numel : total;
  return { step, histogram, total, elements, bad: badOf(frame, row) };
}

/** Of many columns some, evenly, with the first one that is not finite and the last. */
function thinned(columns: HeatColumn[]): HeatColumn[] {
  if (columns.length <= COLUMNS) return columns;
  const last = columns.length - 1;
  const places = Array.from({ length: COLUMNS - 1 }, (_, k) => Math.round((k * last) / (COLUMNS - 2)));
  const bad = columns.findIndex((column) => column.bad);
  const kept = new Set(bad < 0 ? places : [...places, bad]);
  return columns.filter((_, at) => kept.has(at));
}

export function heatOf(columns: HeatColumn[], limits?: Limits): Heat {
  const [up, down] = [spanOf(columns, "positive"), spanOf(columns, "negative")];
  const { low, high } = range(Math.min(up.low, down.low), Math.max(up.high, down.high), limits);
  const size = Math.ceil((high - low + 1) / CELLS);
  const cells = Math.ceil((high - low + 1) / size);
  const shares = new Float64Array(columns.length * 2 * cells);
  columns.forEach(({ histogram, total }, column) => {
    const begin = column * 2 * cells;
    const add = (at: number, n: number): void => {
      shares[begin + at] = (shares[begin + at] as number) + n / total;
    };
    for (const [exponent, n] of histogram.positive) add(cells - 1 - Math.floor((exponent - low) / size), n);
    for (const [exponent, n] of histogram.negative) add(cells + Math.floor((exponent - low) / size), n);
  });
  let [most, least, zero] = [0, Infinity, false];
  const weigh = (share: number): void => {
    if (share > most) most = share;
    if (share > 0 && share < least) least = share;
  };
  shares.forEach(weigh);
  for (const { histogram, total } of columns) {
    if (histogram.zero > 0) {
      weigh(histogram.zero / total);
      zero = true;
    }
  }
  const halves = { positive: up.low <= up.high || down.low > down.high, negative: down.low <= down.high, zero };
  return { columns, low, high: low + cells * size - 1, size, cells, halves, shares, most, least: Math.min(least, most) };
}

interface Span {
  low: number;
  high: number;
}

/** The exponents on one side of zero; `low` is above `high` where there are none. */
function spanOf(columns: readonly HeatColumn[], side: "positive" | "negative"): Span {
  let [low, high] = [Infinity, -Infinity];
  for (const { histogram } of columns) {
    for (const [exponent] of histogram[side]) {
      if (exponent < low) low = exponent;
      if (exponent > high) high = exponent;
    }
  }
  return { low, high };
}

/** The exponents to show: those of the values, and limits of the dtype that are near to them. */
function range(low: number, high: number, limits?: Limits): Span {
  if (low > high) return { low: -8, high: 8 };
  if (limits && limits[0] < low && low - limits[0] <= NEAR) low = limits[0];
  if (limits && limits[1] > high && limits[1] - high <= NEAR) high = limits[1];
  const missing = Math.max(0, 7 - (high - low));
  return { low: low - Math.ceil(missing / 2), high: high + Math.floor(missing / 2) };
}

/** How strong a share is drawn, from 0 (none) to 1 (the largest): on a log scale over four decades. */
export function strength(share: number, most: number): number {
  if (!(share > 0)) return 0;
  return Math.max(0.04, 1 + Math.log10(share / most) / 4);
}

// -- where things stand ----------------------------------------------------------------------------

export interface Place {
  left: number;
  right: number;
  /** The strip of signs. */
  strip: number;
  top: number;
  bottom: number;
  cellHeight: number;
  columnWidth: number;
  /** The row of zeros; without zeros a rule that parts the halves. */
  zero: { top: number; height: number };
  /** The upper edge of a half's first cell. */
  positive: number;
  negative: number;
}

const STRIP = 12;
const ZERO = 6;

/** The sign over a column; "" where all is well. */
export function signOf({ bad, histogram, total }: HeatColumn): string {
  if (bad.includes("NaN")) return "✕";
  if (bad) return "∞";
  return histogram.zero > 0 && histogram.zero === total ? "0" : "";
}

export function placeOf(heat: Heat, width: number, height: number, gutter: number): Place {
  const { positive, negative, zero } = heat.halves;
  const strip = heat.columns.some(signOf) ? STRIP : 0;
  const gap = zero ? ZERO : positive && negative ? 1 : 0;
  const body = height - strip - gap;
  const cellHeight = body / (heat.cells * (Number(positive) + Number(negative)));
  const zeroTop = strip + (positive ? heat.cells * cellHeight : 0);
  return {
    left: gutter,
    right: width,
    strip,
    top: strip,
    bottom: height,
    cellHeight,
    columnWidth: (width - gutter) / heat.columns.length,
    zero: { top: zeroTop, height: gap },
    positive: strip,
    negative: zeroTop + gap,
  };
}

/** The edge above the cell of an exponent: where 2 to the next power begins. */
export function edgeOf(exponent: number, negative: boolean, heat: Heat, place: Place): number {
  const cells = (exponent + 1 - heat.low) / heat.size;
  return negative ? place.negative + cells * place.cellHeight : place.zero.top - cells * place.cellHeight;
}

/** Where lines of the dtype go: the exponent below whose edge the last value lies, on both sides. */
export function limitLines(heat: Heat, place: Place, limits?: Limits): { y: number; top: boolean }[] {
  if (!limits) return [];
  const sides = [...(heat.halves.positive ? [false] : []), ...(heat.halves.negative ? [true] : [])];
  return sides.flatMap((negative) => [
    ...(limits[1] >= heat.low && limits[1] <= heat.high ? [{ y: edgeOf(limits[1], negative, heat, place), top: true }] : []),
    ...(limits[0] > heat.low && limits[0] <= heat.high ? [{ y: edgeOf(limits[0] - 1, negative, heat, place), top: false }] : []),
  ]);
}

/** Exponents to write beside the cells, with their heights; on each side about as many as there is room for. */
export function heatTicks(heat: Heat, place: Place, room: number): { y: number; words: string }[] {
  const halves = [...(heat.halves.positive ? [false] : []), ...(heat.halves.negative ? [true] : [])];
  const most = Math.max(1, Math.floor((place.cellHeight * heat.cells) / room));
  const span = heat.high - heat.low + 1;
  const step = [1, 2, 4, 8, 16, 32, 64].find((each) => span / each <= most) ?? 128;
  const first = Math.ceil(heat.low / step) * step;
  const ticks = halves.flatMap((negative) =>
    Array.from({ length: Math.floor((heat.high + 1 - first) / step) + 1 }, (_, k) => first + k * step).map((exponent) => ({
      y: edgeOf(exponent - 1, negative, heat, place),
      words: `${negative ? "-" : ""}${power(exponent)}`,
    })),
  );
  const zero = place.zero.top + place.zero.height / 2;
  const parted = heat.halves.zero || halves.length > 1;
  const apart = ticks.filter(({ y }) => !parted || Math.abs(y - zero) >= room * 0.8);
  return parted ? [...apart, { y: zero, words: "0" }] : apart;
}

export interface Cell {
  column: number;
  /** Its place among the cells; -1 for the row of zeros, -2 for the strip of signs. */
  cell: number;
}

export const OF_ZERO = -1;
export const OF_STRIP = -2;

export function cellAt(heat: Heat, place: Place, x: number, y: number): Cell | null {
  if (x < place.left || x > place.right || !heat.columns.length) return null;
  const column = Math.min(heat.columns.length - 1, Math.floor((x - place.left) / place.columnWidth));
  if (y < place.top) return { column, cell: OF_STRIP };
  const { zero, cellHeight } = place;
  if (y >= zero.top && y < zero.top + zero.height) return { column, cell: OF_ZERO };
  const inHalf = (from: number): number => Math.min(heat.cells - 1, Math.max(0, Math.floor((y - from) / cellHeight)));
  return { column, cell: y < zero.top ? inHalf(place.positive) : heat.cells + inHalf(place.negative) };
}
