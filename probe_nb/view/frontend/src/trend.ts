/** The large trend as plain geometry: a scale that fits the values, a line with gaps, marks where values were not finite. */
import { number, percent, plural } from "./format";
import type { Point, Statistic } from "./series";

export interface Scale {
  kind: "log" | "symmetric log" | "linear";
  low: number;
  high: number;
  /** The height of a value, from 0 to 1. */
  at(value: number): number;
}

/** A line of less than two octaves is drawn flat: noise must not look like a trend. */
const LEAST = 4;
/** From this ratio on a linear scale hides the small values. */
const WIDE = 100;
/** Below the size of the smallest tenth of the values a scale for both signs is linear. */
const TOLD = 0.1;

export function scaleOf(values: readonly number[]): Scale {
  const there = values.filter(Number.isFinite);
  const low = there.reduce((a, b) => Math.min(a, b), Infinity);
  const high = there.reduce((a, b) => Math.max(a, b), -Infinity);
  if (!there.length) return { kind: "linear", low: 0, high: 1, at: () => 0.5 };
  if (low > 0) return logarithmic(low, high);
  const sizes = there.map(Math.abs).filter((size) => size > 0).sort((a, b) => a - b);
  const told = sizes[Math.floor(TOLD * (sizes.length - 1))] ?? 1;
  if ((sizes.at(-1) ?? 0) > WIDE * told) return symmetric(low, high, told);
  return linear(low, high);
}

function logarithmic(low: number, high: number): Scale {
  const spread = Math.max(Math.log(LEAST), Math.log(high) - Math.log(low));
  const foot = (Math.log(low) + Math.log(high) - spread) / 2;
  return { kind: "log", low, high, at: (value) => (Math.log(value) - foot) / spread };
}

function symmetric(low: number, high: number, told: number): Scale {
  const place = (value: number): number => Math.sign(value) * Math.log1p(Math.abs(value) / told);
  const [foot, top] = [place(low), place(high)];
  return { kind: "symmetric log", low, high, at: (value) => (place(value) - foot) / (top - foot) };
}

function linear(low: number, high: number): Scale {
  const size = Math.max(Math.abs(low), Math.abs(high));
  // a constant lies in the middle, a change of its last digits does not fill the height
  const spread = Math.max(high - low, size / 10) || 1;
  const foot = (low + high - spread) / 2;
  return { kind: "linear", low, high, at: (value) => (value - foot) / spread };
}

export interface Box {
  left: number;
  right: number;
  top: number;
  bottom: number;
}

export interface Line {
  path: string;
  /** Points that no line leads to or from. */
  dots: string;
  /** Where something was not finite, and what. */
  marks: { x: number; bad: string }[];
  /** Where each point stands; y is NaN where its value is absent. */
  places: { x: number; y: number; point: Point }[];
}

/** Where a step stands between the first and the last one. */
export function along(first: number, last: number, { left, right }: Box): (step: number) => number {
  return (step) => (last > first ? left + ((step - first) / (last - first)) * (right - left) : (left + right) / 2);
}

export function layLine(points: readonly Point[], x: (step: number) => number, scale: Scale, { top, bottom }: Box): Line {
  const places = points.map((point) => {
    const y = Number.isFinite(point.value) ? bottom - scale.at(point.value) * (bottom - top) : NaN;
    return { x: round(x(point.step)), y: round(y), point };
  });
  const drawn = (at: number): boolean => !Number.isNaN(places[at]?.y ?? NaN);
  let [path, dots] = ["", ""];
  places.forEach((place, at) => {
    if (!drawn(at)) return;
    if (drawn(at - 1)) path += `L${place.x} ${place.y}`;
    else if (drawn(at + 1)) path += `M${place.x} ${place.y}`;
    if (!drawn(at - 1) && !drawn(at + 1)) dots += `M${place.x} ${place.y}h0`;
  });
  // an infinite number is marked even if no count tells why
  const bad = (point: Point): string => point.bad || (Math.abs(point.value) === Infinity ? number(point.value) : "");
  const marks = places.flatMap(({ x: at, point }) => (bad(point) ? [{ x: at, bad: bad(point) }] : []));
  return { path, dots, marks, places };
}

/** The point nearest to a place along the steps, -1 without points. */
export function nearest(places: readonly { x: number }[], x: number): number {
  let found = -1;
  places.forEach((place, at) => {
    if (found < 0 || Math.abs(place.x - x) < Math.abs((places[found]?.x ?? 0) - x)) found = at;
  });
  return found;
}

/** A value as it is written beside the drawing. */
export function written(value: number, statistic: Statistic): string {
  return statistic.share ? `${percent(value, 100)} %` : number(value);
}

export function said(point: Point, statistic: Statistic): string {
  const value = Number.isNaN(point.value) ? "" : written(point.value, statistic);
  return `step ${point.step}: ${[value, point.bad].filter(Boolean).join(", ") || "absent"}`;
}

/** The trend in words. */
export function describe(points: readonly Point[], statistic: Statistic, scale: Scale): string {
  const there = points.map(({ value }) => value).filter(Number.isFinite);
  const bad = points.filter((point) => point.bad).length;
  if (!points.length) return `${statistic.name}: nothing recorded`;
  const steps = `${statistic.name} over ${plural(points.length, "step")}, ${points[0]?.step} to ${points.at(-1)?.step}`;
  const range = there.length
    ? `, from ${written(Math.min(...there), statistic)} to ${written(Math.max(...there), statistic)}, ${scale.kind} scale`
    : ", no finite value";
  return steps + range + (bad ? `, not finite in ${bad} of them` : "");
}

function round(value: number): number {
  return Math.round(value * 100) / 100;
}
