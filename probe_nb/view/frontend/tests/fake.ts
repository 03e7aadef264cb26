/** Made-up runs in the wire format, written here independently of the decoder. */
import { COLUMNS, PAIRS, type ColumnName, type PairName, type Site, type Status } from "../src/types";

export interface Row {
  site: Site;
  values: Partial<Record<ColumnName, number>>;
  spark: number[];
  histogram: [bin: number, count: number][];
}

export function site(given: Partial<Site>): Site {
  return {
    model: "model",
    module: "layer",
    type: "Linear",
    role: "output",
    direction: "forward",
    leaf: "0",
    dtype: "float32",
    shape: [8, 16],
    device: "cpu",
    ...given,
  };
}

export function status(given: Partial<Status> = {}): Status {
  return {
    title: "model · Net",
    open: false,
    ended: "finished",
    headline: { kind: "ok", text: "No NaN, no Inf", detail: "", row: null },
    findings: [],
    further: [],
    left: 0,
    step: 59,
    steps: 60,
    records: 100,
    modules: 9,
    facts: null,
    missed_text: "",
    unobserved: [],
    notices: [],
    truncated: null,
    spark: "absmax",
    spark_steps: [],
    keeps: false,
    unkept: [],
    dtype_limits: {
      float16: [-24, 15, 65504],
      bfloat16: [-133, 127, 3.3895313892515355e38],
      float8_e4m3fn: [-9, 8, 448],
      float8_e5m2: [-16, 15, 57344],
    },
    comparison: null,
    ...given,
  };
}

/** Absent statistics are NaN and absent counts -1, as in a record that was never reduced. */
function absent(name: ColumnName): number {
  if (name === "badges" || name === "status") return 0;
  return name.endsWith("_count") || name === "numel" || name === "first_bad_step" ? -1 : NaN;
}

export function encode(rows: readonly Row[], sparkLength: number): Uint8Array {
  const entries = rows.reduce((sum, row) => sum + row.histogram.length, 0);
  const padded = (bytes: number): number => Math.ceil(bytes / 8) * 8;
  const sizes = [
    32,
    8 * COLUMNS.length * rows.length,
    8 * rows.length * sparkLength,
    4 * (rows.length + 1),
    2 * entries,
    4 * entries,
  ].map(padded);
  const view = new DataView(new ArrayBuffer(sizes.reduce((a, b) => a + b, 0)));
  const starts = sizes.map((_, index) => sizes.slice(0, index).reduce((a, b) => a + b, 0));
  const [, columns = 0, spark = 0, offsets = 0, bins = 0, counts = 0] = starts;
  const header = [0x31424e50, 1, rows.length, COLUMNS.length, sparkLength, entries];
  header.forEach((value, index) => view.setUint32(4 * index, value, true));
  let entry = 0;
  rows.forEach((row, r) => {
    COLUMNS.forEach((name, c) =>
      view.setFloat64(columns + 8 * (c * rows.length + r), row.values[name] ?? absent(name), true),
    );
    for (let k = 0; k < sparkLength; k++) {
      view.setFloat64(spark + 8 * (r * sparkLength + k), row.spark[k] ?? NaN, true);
    }
    for (const [bin, count] of row.histogram) {
      view.setUint16(bins + 2 * entry, bin, true);
      view.setFloat32(counts + 4 * entry, count, true);
      entry++;
    }
    view.setUint32(offsets + 4 * (r + 1), entry, true);
  });
  return new Uint8Array(view.buffer);
}

export function sitesJson(rows: readonly Row[]): string {
  return JSON.stringify({ version: 1, rows: rows.map((row) => row.site) });
}

/** A seeded generator: a picture must look the same every time. */
export function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state * 1664525 + 1013904223) % 4294967296;
    return state / 4294967296;
  };
}

export type Pair = Partial<Record<PairName, number>>;

/** A comparison: its own header and columns before the frames of the candidate and of the baseline. */
export function encodePairs(pairs: readonly Pair[], candidate: Uint8Array, baseline: Uint8Array): Uint8Array {
  const begin = 32 + 8 * PAIRS.length * pairs.length;
  const bytes = new Uint8Array(begin + candidate.byteLength + baseline.byteLength);
  const view = new DataView(bytes.buffer);
  [0x31424e50, 2, pairs.length, PAIRS.length].forEach((value, index) => view.setUint32(4 * index, value, true));
  PAIRS.forEach((name, c) =>
    pairs.forEach((pair, r) => view.setFloat64(32 + 8 * (c * pairs.length + r), pair[name] ?? NaN, true)),
  );
  bytes.set(candidate, begin);
  bytes.set(baseline, begin + candidate.byteLength);
  return bytes;
}
