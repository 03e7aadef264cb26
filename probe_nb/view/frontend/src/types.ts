/** The words shared with the Python side: what `sites`, `status` and `frame` carry. */

/** All that the inspector asks of a model, so that a saved report can mount it on a plain object. */
export interface Model {
  get(key: string): unknown;
  on(event: string, callback: () => void): void;
  off(event: string, callback: () => void): void;
}

/** Where a record was taken; row i of `sites` is row i of the frame. */
export interface Site {
  model: string;
  module: string;
  type: string;
  role: string;
  direction: string;
  leaf: string;
  dtype: string;
  shape: number[];
  device: string;
}

export type Kind = "bad" | "warn" | "ok" | "empty";

export interface Headline {
  kind: Kind;
  text: string;
  detail: string;
  row: number | null;
}

/** Lowest exponent, highest exponent and largest value of a dtype. */
export type Limits = [low: number, high: number, max: number];

export interface Status {
  title: string;
  open: boolean;
  ended: string;
  headline: Headline;
  step: number | null;
  steps: number;
  records: number;
  modules: number;
  /** How many modules were not seen, of how many, and why; empty if none. */
  missed_text: string;
  unobserved: { module: string; reason: string }[];
  notices: string[];
  truncated: string | null;
  spark: string;
  dtype_limits: Record<string, Limits>;
}

/** The numbers: the latest record of every site, column by column, in views on the bytes received. */
export interface Frame {
  rows: number;
  columns: Record<ColumnName, Float64Array>;
  /** `rows` times `sparkLength` values, oldest first; NaN absent, Infinity a non-finite step. */
  spark: Float64Array;
  sparkLength: number;
  /** Histogram of row i: entries `offsets[i]` to `offsets[i + 1]`. */
  offsets: Uint32Array;
  bins: Uint16Array;
  counts: Float32Array;
}

export const COLUMNS = [
  "order",
  "step",
  "calls",
  "numel",
  "min",
  "max",
  "mean",
  "std",
  "l2",
  "absmax",
  "nan_count",
  "posinf_count",
  "neginf_count",
  "zero_count",
  "subnormal_count",
  "at_max_count",
  "status",
  "badges",
  "first_bad_step",
] as const;

export type ColumnName = (typeof COLUMNS)[number];
