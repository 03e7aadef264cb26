/**
 * The log2 histogram: reading it from a frame, and its drawing as plain geometry.
 *
 * Values are mirrored about zero: large negative ones far left, small ones next to the bar of zeros in the middle,
 * large positive ones far right. What has no exponent stands outside: -Inf left, +Inf and NaN right.
 */
import type { Frame, Limits } from "./types";
import { count, power } from "./format";

/** The exponents of the outermost bins: all that is not 0 and smaller, and all that is finite and larger. */
export const LOWEST = -127;
export const HIGHEST = 128;
const NEGATIVE = 256;

export interface Histogram {
  /** Exponent and count of each bin that is not empty. */
  positive: [exponent: number, count: number][];
  negative: [exponent: number, count: number][];
  zero: number;
  nan: number;
  posinf: number;
  neginf: number;
}

/** Exponents from `low` to `high`, both included. */
export interface Axis {
  low: number;
  high: number;
}

export function histogramOf(frame: Frame, row: number): Histogram {
  const at = (name: "zero_count" | "nan_count" | "posinf_count" | "neginf_count"): number =>
    Math.max(0, frame.columns[name][row] || 0);
  const found: Histogram = {
    positive: [],
    negative: [],
    zero: at("zero_count"),
    nan: at("nan_count"),
    posinf: at("posinf_count"),
    neginf: at("neginf_count"),
  };
  const end = frame.offsets[row + 1] ?? 0;
  for (let k = frame.offsets[row] ?? 0; k < end; k++) {
    const bin = frame.bins[k] ?? 0;
    const side = bin >= NEGATIVE ? found.negative : found.positive;
    side.push([(bin % NEGATIVE) + LOWEST, frame.counts[k] ?? 0]);
  }
  return found;
}

/** The part of the exponents that a table cell can resolve; what lies beyond is piled up at its ends. */
const WIDEST: Axis = { low: -40, high: 24 };
const START: Axis = { low: -16, high: 4 };

/**
 * One axis for all rows, so that a drift from row to row is a drift in the picture.
 *
 * It only ever grows: an axis that followed the data would make every row move at every update.
 */
export function sharedAxis(frame: Frame, before: Axis = START): Axis {
  let { low, high } = before;
  const { bins } = frame; // half a million of them in a large run
  for (let k = 0; k < bins.length; k++) {
    const exponent = ((bins[k] as number) % NEGATIVE) + LOWEST;
    if (exponent < low) low = exponent;
    else if (exponent > high) high = exponent;
  }
  return {
    low: Math.max(WIDEST.low, Math.floor(low / 4) * 4),
    high: Math.min(WIDEST.high, Math.ceil(high / 4) * 4),
  };
}

/** The axis of one row alone (or of a pair), a little wider than its values. */
export function ownAxis(histogram: Histogram, before?: Histogram): Axis {
  const bins = [histogram, ...(before ? [before] : [])].flatMap(({ positive, negative }) => [...positive, ...negative]);
  const exponents = bins.map(([exponent]) => exponent);
  if (!exponents.length) return { low: -8, high: 8 };
  const low = Math.min(...exponents) - 2;
  const high = Math.max(...exponents) + 2;
  const missing = Math.max(0, 16 - (high - low));
  return { low: low - Math.ceil(missing / 2), high: high + Math.floor(missing / 2) };
}

/** Where things stand in a drawing of a given width. */
export interface Geometry {
  axis: Axis;
  /** Height of the bars; the baseline lies at its foot. */
  height: number;
  binWidth: number;
  cap: number;
  zeroX: number;
  neginfX: number;
  posinfX: number;
  nanX: number;
  /** Left edge of the bin of an exponent, on either side. */
  x(exponent: number, negative: boolean): number;
}

export function geometry(axis: Axis, width: number, height: number, cap: number): Geometry {
  const gap = Math.max(1, cap / 2);
  const side = (width - 3 * cap - 3 * gap - (cap + 2)) / 2;
  const binWidth = side / (axis.high - axis.low + 1);
  const centre = cap + gap + side + 1 + cap / 2;
  const inner = cap / 2 + 1;
  const nanX = width - cap;
  return {
    axis,
    height,
    binWidth,
    cap,
    zeroX: centre - cap / 2,
    neginfX: 0,
    posinfX: nanX - gap - cap,
    nanX,
    x: (exponent, negative) => {
      const step = (exponent - axis.low) * binWidth;
      return negative ? centre - inner - step - binWidth : centre + inner + step;
    },
  };
}

/** Path data of the parts of a drawing; an empty string draws nothing. */
export interface Drawing {
  bars: string;
  /** Bars whose values lie beyond the axis. */
  beyond: string;
  zero: string;
  nonfinite: string;
}

/** The largest count of a bin as it is drawn; two histograms on one scale are drawn against the larger one. */
export function highest(histogram: Histogram, axis: Axis): number {
  const sides = [clamped(histogram.negative, axis), clamped(histogram.positive, axis)];
  return Math.max(1, ...sides.flatMap((side) => [...side.inside.values(), ...side.beyond.values()]));
}

// a single non-finite element must be seen among millions, so its cap never shrinks to nothing
function tall(n: number, least: number, most: number, height: number): number {
  return n > 0 ? Math.max(least, Math.min(1, Math.sqrt(n / most)) * height) : 0;
}

/** Draw on a square-root scale, on which one element in a thousand can still be seen. */
export function draw(histogram: Histogram, where: Geometry, most = highest(histogram, where.axis)): Drawing {
  const sides = [clamped(histogram.negative, where.axis), clamped(histogram.positive, where.axis)];
  const bars = (part: "inside" | "beyond"): string =>
    sides
      .map((side, index) =>
        [...side[part]]
          .map(([exponent, n]) =>
            bar(where.x(exponent, index === 0), where.binWidth, tall(n, 1, most, where.height), where.height),
          )
          .join(""),
      )
      .join("");
  return {
    bars: bars("inside"),
    beyond: bars("beyond"),
    zero: caps(histogram, where, most).zero,
    nonfinite: caps(histogram, where, most).nonfinite,
  };
}

function caps(histogram: Histogram, where: Geometry, most: number): { zero: string; nonfinite: string } {
  const capped = (x: number, n: number, least: number): string =>
    n > 0 ? bar(x, where.cap, tall(n, least, most, where.height), where.height) : "";
  const least = where.height / 3;
  return {
    zero: capped(where.zeroX, histogram.zero, 1),
    nonfinite:
      capped(where.neginfX, histogram.neginf, least) +
      capped(where.posinfX, histogram.posinf, least) +
      capped(where.nanX, histogram.nan, least),
  };
}

/** The contour of a histogram, to lie over the bars of another one. */
export function outline(histogram: Histogram, where: Geometry, most: number): string {
  const { zero, nonfinite } = caps(histogram, where, most);
  const sides: [[number, number][], boolean][] = [[histogram.negative, true], [histogram.positive, false]];
  const steps = sides.map(([bins, negative]) => {
    const side = clamped(bins, where.axis);
    const heights = new Map([...side.inside, ...[...side.beyond].map(([e, n]) => [e, n + (side.inside.get(e) ?? 0)] as const)]);
    const found = [...heights].sort(([a], [b]) => (negative ? b - a : a - b));
    let path = "";
    let before = NaN;
    for (const [exponent, n] of found) {
      const left = round(where.x(exponent, negative));
      const top = round(where.height - tall(n, 1, most, where.height));
      const next = negative ? before - 1 : before + 1;
      path += exponent === next ? `V${top}` : `${path ? `V${where.height}` : ""}M${left} ${where.height}V${top}`;
      path += `H${round(left + where.binWidth)}`;
      before = exponent;
    }
    return path ? `${path}V${where.height}` : "";
  });
  return steps.join("") + zero + nonfinite;
}

type Side = Map<number, number>;

function clamped(bins: [number, number][], axis: Axis): { inside: Side; beyond: Side } {
  const inside: Side = new Map();
  const beyond: Side = new Map();
  for (const [exponent, n] of bins) {
    const shown = Math.min(axis.high, Math.max(axis.low, exponent));
    const side = shown === exponent ? inside : beyond;
    side.set(shown, (side.get(shown) ?? 0) + n);
  }
  return { inside, beyond };
}

function bar(x: number, width: number, height: number, foot: number): string {
  return `M${round(x)} ${round(foot)}v${round(-height)}h${round(width)}v${round(height)}z`;
}

function round(x: number): number {
  return Math.round(x * 100) / 100;
}

/** Exponents to label, at most `most` of them, at round steps. */
export function ticks(axis: Axis, most: number): number[] {
  const step = [1, 2, 4, 8, 16, 32, 64].find((size) => (axis.high - axis.low) / size <= most) ?? 128;
  const first = Math.ceil(axis.low / step) * step;
  return Array.from({ length: Math.floor((axis.high - first) / step) + 1 }, (_, k) => first + k * step);
}

/** Shares of the non-zero finite elements that a dtype could not hold. */
export function fit(histogram: Histogram, [low, high]: Limits): { under: number; over: number; total: number } {
  const result = { under: 0, over: 0, total: 0 };
  for (const [exponent, n] of [...histogram.positive, ...histogram.negative]) {
    result.total += n;
    if (exponent < low) result.under += n;
    if (exponent > high) result.over += n;
  }
  return result;
}

/** The drawing in words, for those who cannot see it. */
export function describe(histogram: Histogram): string {
  const range = (bins: [number, number][], sign: string): string[] => {
    if (!bins.length) return [];
    const exponents = bins.map(([exponent]) => exponent);
    const least = `${sign}${power(Math.min(...exponents))}`;
    return [`${sign ? "negative" : "positive"} from ${least} to ${sign}${power(Math.max(...exponents))}`];
  };
  const counted = (n: number, name: string): string[] => (n > 0 ? [`${count(n)} ${name}`] : []);
  const parts = [
    ...range(histogram.negative, "-"),
    ...range(histogram.positive, ""),
    ...counted(histogram.zero, "zero"),
    ...counted(histogram.nan, "NaN"),
    ...counted(histogram.posinf, "+Inf"),
    ...counted(histogram.neginf, "-Inf"),
  ];
  return parts.length ? `values: ${parts.join(", ")}` : "no values";
}
