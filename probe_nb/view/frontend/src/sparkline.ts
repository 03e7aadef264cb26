/** The trend over steps as plain geometry: a line on a log scale, with marks where values were not finite. */
import { number } from "./format";

export interface Trend {
  line: string;
  /** Ticks over the full height at steps with non-finite elements. */
  marks: string;
  /** The newest finite value, to be drawn as a dot. */
  last: [x: number, y: number] | null;
  low: number;
  high: number;
  nonfinite: number;
  steps: number;
}

/** A line of less than two octaves is drawn flat: noise must not look like a trend. */
const LEAST_OCTAVES = 2;

/** Lay out values (oldest first; NaN: no record, Infinity: non-finite elements) in a box, on the scale of others if given. */
export function trend(
  values: ArrayLike<number>,
  width: number,
  height: number,
  inset = 2,
  scale: ArrayLike<number> = values,
): Trend {
  const finite = Array.from(values).filter((value) => Number.isFinite(value));
  const inScale = Array.from(scale).filter((value) => Number.isFinite(value));
  const sizes = inScale.map(Math.abs).filter((size) => size > 0).map(Math.log2);
  const least = sizes.length ? sizes.reduce((a, b) => Math.min(a, b)) : 0;
  const most = sizes.length ? sizes.reduce((a, b) => Math.max(a, b)) : 0;
  const spread = Math.max(LEAST_OCTAVES, most - least);
  const bottom = (least + most - spread) / 2;
  const y = (value: number): number => {
    const level = value === 0 ? 0 : (Math.log2(Math.abs(value)) - bottom) / spread;
    return height - inset - Math.max(0, level) * (height - 2 * inset);
  };
  const pitch = values.length > 1 ? (width - 2 * inset) / (values.length - 1) : 0;
  const x = (index: number): number => (values.length > 1 ? inset + index * pitch : width - inset);
  return {
    ...paths(values, x, y, height),
    low: finite.length ? finite.reduce((a, b) => Math.min(a, b)) : NaN,
    high: finite.length ? finite.reduce((a, b) => Math.max(a, b)) : NaN,
    steps: Array.from(values).filter((value) => !Number.isNaN(value)).length,
  };
}

type Place = (value: number) => number;

function paths(values: ArrayLike<number>, x: Place, y: Place, height: number) {
  const parts: string[] = [];
  const marks: string[] = [];
  let last: [number, number] | null = null;
  let pen = "M";
  for (let index = 0; index < values.length; index++) {
    const value = values[index] ?? NaN;
    const at = round(x(index));
    if (Number.isFinite(value)) {
      last = [at, round(y(value))];
      parts.push(`${pen}${last[0]} ${last[1]}`);
      pen = "L";
    } else {
      pen = "M"; // a gap, not a bridge over what was not measured
      if (!Number.isNaN(value)) marks.push(`M${at} 0v${height}`);
    }
  }
  return { line: parts.join(""), marks: marks.join(""), last, nonfinite: marks.length };
}

function round(value: number): number {
  return Math.round(value * 100) / 100;
}

/** The trend in words. */
export function describeTrend(found: Trend, statistic: string): string {
  if (!found.steps) return "no trend: nothing recorded";
  const range = Number.isNaN(found.low) ? "" : `, from ${number(found.low)} to ${number(found.high)}`;
  const marks = found.nonfinite ? `, non-finite in ${found.nonfinite}` : "";
  return `${statistic} over ${found.steps} recorded step${found.steps === 1 ? "" : "s"}${range}${marks}`;
}
