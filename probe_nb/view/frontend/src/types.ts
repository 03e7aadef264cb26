/** The words shared with the Python side: what `sites`, `status` and `frame` carry. */

/** All that the inspector asks of a model, so that a saved report can mount it on a plain object. */
export interface Model {
  get(key: string): unknown;
  on(event: string, callback: () => void): void;
  off(event: string, callback: () => void): void;
  /** Missing in a report: there is nobody to ask. */
  send?(message: Record<string, unknown>): void;
  /** Given by some front ends; not a promise. */
  widget_manager?: { kernel?: Kernel | null } | null;
}

interface Signal {
  connect?(slot: (sender: unknown, status: unknown) => void): unknown;
  disconnect?(slot: (sender: unknown, status: unknown) => void): unknown;
}

/** What a notebook knows of its kernel, as far as we use it. */
export interface Kernel {
  interrupt?(): Promise<void>;
  /** "idle", "busy" and others. */
  status?: string;
  statusChanged?: Signal;
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
  /** Of a function: its name, and the module that called it, which `module` has both of. */
  api?: string;
  path?: string;
  /** Where it was called from, as Python writes it; ways that differ are parted by an empty line. */
  stack?: string;
  /** Of a comparison: what is said of the baseline's where it is not the same. */
  baseline?: Partial<Site>;
  /** Of a comparison: why it cannot be compared, or what differs beyond numbers. */
  why?: string;
}

export type Kind = "bad" | "warn" | "ok" | "empty";

export interface Headline {
  kind: Kind;
  text: string;
  detail: string;
  row: number | null;
}

/** What was found, with the rows that it is about. */
export interface Found {
  severity: "error" | "warning" | "note";
  sign: string;
  /** What a row says of it; empty where badges of the frame do. */
  word: string;
  text: string;
  advice: string;
  /** The step from which it holds. */
  step: number;
  /** The row that is named; null where it is left out. */
  row: number | null;
  /** Further rows of which the same holds. */
  others: number[];
}

/** Lowest exponent, highest exponent and largest value of a dtype. */
export type Limits = [low: number, high: number, max: number];

export interface Status {
  title: string;
  open: boolean;
  ended: string;
  headline: Headline;
  /** Worst first; of many the first ones. */
  findings: Found[];
  /** Places in `findings` of those said under the headline, and how many more there are. */
  further: number[];
  left: number;
  step: number | null;
  steps: number;
  records: number;
  modules: number;
  facts: Facts | null;
  /** How many modules were not seen, of how many, and why; empty if none. */
  missed_text: string;
  unobserved: { module: string; reason: string }[];
  notices: string[];
  truncated: string | null;
  spark: string;
  /** The steps of the spark, oldest first; none if nobody said. */
  spark_steps: number[];
  /** Whether any tensor was kept. */
  keeps: boolean;
  /** Of a report: of each row why no tensor of it is kept; empty where one is. */
  unkept: string[];
  dtype_limits: Record<string, Limits>;
  comparison: Comparison | null;
}

/** What a run is about, and what its records take. */
export interface Facts {
  rows: number;
  devices: string[];
  dtypes: string[];
  /** With its unit. */
  memory: string;
  /** Records that are on disk. */
  spilled: number;
}

/** What was found of two runs. */
export interface Comparison {
  /** What the numbers in the columns `verdict` and `measure` mean. */
  verdicts: string[];
  measures: string[];
  fed: boolean | null;
  fed_text: string;
  baseline: string;
  candidate: string;
  /** Where the runs part, in execution order; the columns `origin` and `follows` count them from 1. */
  divergences: { text: string; detail: string; row: number | null }[];
}

/** The numbers: the latest record of every site, column by column, in views on the bytes received. */
export interface Frame {
  rows: number;
  columns: Record<ColumnName, Float64Array>;
  /** `rows` times `sparkLength` values, oldest first; NaN absent, Infinity a non-finite step. */
  spark: Float64Array;
  sparkLength: number;
  /** The steps of the spark where it came by itself; else the status has them. */
  sparkSteps?: ArrayLike<number> | undefined;
  /** Histogram of row i: entries `offsets[i]` to `offsets[i + 1]`. */
  offsets: Uint32Array;
  bins: Uint16Array;
  counts: Float32Array;
  /** Of a comparison: the frame itself is the candidate's. */
  compared: Compared | null;
}

export interface Compared {
  baseline: Frame;
  columns: Record<PairName, Float64Array>;
}

/** The numbers as a live view showed them at the end of a step. */
export interface Moment {
  step: number;
  /** Without a spark of its own: the trend is that of the whole run. */
  frame: Frame;
  /** What a row was made of then, as far as that is known to have been another thing than now. */
  made?: ((row: number) => Made | undefined) | undefined;
}

export type Made = Pick<Site, "dtype" | "device">;

/** What can be gone back to. */
export interface History {
  /** Oldest first; the last one is the newest. */
  readonly moments: readonly Moment[];
  /** In words, why there are few or none; empty if there is nothing to say. */
  readonly why: string;
}

/** A picture of a kept tensor. */
export interface Picture {
  row: number;
  /** The step that was asked about; null where none was. */
  asked: number | null;
  height: number;
  width: number;
  /** Row by row; NaN where an element of the cell is NaN. */
  cells: Float64Array;
  about: About;
}

export interface About {
  /** Why there is no picture; absent where there is one. */
  why?: string;
  step?: number;
  call?: number;
  shape?: number[];
  dtype?: string;
  /** In words: which slice, how many elements share a cell, what of complex numbers is drawn. */
  slice?: string;
  pooled?: string;
  part?: string;
  nan?: number;
  posinf?: number;
  neginf?: number;
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

export const PAIRS = [
  "verdict",
  "difference",
  "explained",
  "came_in",
  "beyond",
  "measure",
  "origin",
  "follows",
  "pairs",
  "diverged",
  "one_sided",
  "histogram_distance",
  "checksum_same",
  "cosine",
  "euclidean",
  "relative",
  "max_abs",
  "max_rel",
  "within_1e3",
  "within_5e3",
  "max_ulp",
  "mismatched",
] as const;

export type PairName = (typeof PAIRS)[number];
