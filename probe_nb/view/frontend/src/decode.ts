/**
 * From the traits to typed values.
 *
 * Numbers travel as bytes because JSON has no NaN: in a debugger for NaN that would be fatal.
 */
import {
  COLUMNS, PAIRS,
  type About, type Comparison, type Found, type Frame, type Headline, type Made, type Moment, type Picture, type Site, type Status,
} from "./types";

const MAGIC = 0x31424e50;
const RUN = 1;
const COMPARISON = 2;
const MOMENTS = 3;
const PICTURE = 4;
const TREND = 5;
const HEADER_BYTES = 32;

const EMPTY_HEADLINE: Headline = {
  kind: "empty",
  text: "Nothing recorded yet",
  detail: "",
  row: null,
};

const NOTHING_COMPARED: Comparison = {
  verdicts: [],
  measures: [],
  fed: null,
  fed_text: "",
  baseline: "",
  candidate: "",
  divergences: [],
};

/** Bytes as the various front ends hand them over: DataView (Jupyter), Uint8Array or ArrayBuffer. */
export function asBytes(value: unknown): Uint8Array {
  if (value instanceof ArrayBuffer) return new Uint8Array(value);
  if (ArrayBuffer.isView(value)) {
    return new Uint8Array(value.buffer as ArrayBuffer, value.byteOffset, value.byteLength);
  }
  if (value === null || value === undefined || value === "") return new Uint8Array(0);
  throw new TypeError(`frame is ${typeof value}, not bytes`);
}

/** Decode a frame of a run or of a comparison; no bytes at all are a frame without rows. */
export function decodeFrame(value: unknown): Frame {
  const bytes = asBytes(value);
  if (bytes.byteLength === 0) return emptyFrame();
  const reader = new Reader(bytes);
  const [version, rows, columns] = header(reader);
  if (version === RUN) return frameOf(reader, rows, columns, reader.head);
  const found = table(reader, PAIRS, rows, columns);
  const [candidate, baseline] = [frameAt(reader), frameAt(reader)];
  if (candidate.rows !== rows || baseline.rows !== rows) throw new Error("the two runs have not the same rows");
  return { ...candidate, compared: { baseline, columns: found } };
}

function header(reader: Reader): [version: number, rows: number, columns: number] {
  const [magic = 0, version = 0, rows = 0, columns = 0] = reader.begin();
  if (magic !== MAGIC) throw new Error("frame does not start with PNB1");
  if (version !== RUN && version !== COMPARISON) {
    throw new Error(`frame has version ${version}, this inspector reads ${RUN} and ${COMPARISON}`);
  }
  return [version, rows, columns];
}

/** Moments, and the rows that they are of; null where there are none yet. */
export function decodeMoments(value: unknown): { moments: Moment[]; rows: Uint32Array } | null {
  const bytes = asBytes(value);
  if (bytes.byteLength === 0) return null;
  const reader = new Reader(bytes);
  const [magic = 0, version = 0, number = 0, size = 0, words = 0] = reader.begin();
  if (magic !== MAGIC || version !== MOMENTS) throw new Error(`the history has version ${version}, ${MOMENTS} expected`);
  const steps = reader.take(Float64Array, number);
  const rows = reader.take(Uint32Array, size);
  const moments: Moment[] = [...steps].map((step) => ({ step, frame: frameAt(reader) }));
  if (words) {
    const all = JSON.parse(new TextDecoder().decode(reader.take(Uint8Array, words))) as Record<number, [string, string]>[];
    moments.forEach((moment, at) => (moment.made = (row) => madeOf(all[at]?.[row])));
  }
  if (moments.some(({ frame }) => frame.rows !== size)) throw new Error("a moment has not the rows of the others");
  return { moments, rows };
}

function madeOf(given: [dtype: string, device: string] | undefined): Made | undefined {
  return given && { dtype: text(given[0]), device: text(given[1]) };
}

/** The trend of a run that goes on, as parts of its frame; null where there is none. */
export function decodeTrend(value: unknown): Pick<Frame, "spark" | "sparkLength" | "sparkSteps"> | null {
  const bytes = asBytes(value);
  if (bytes.byteLength === 0) return null;
  const reader = new Reader(bytes);
  const [magic = 0, version = 0, rows = 0, sparkLength = 0] = reader.begin();
  if (magic !== MAGIC || version !== TREND) throw new Error(`the trend has version ${version}, ${TREND} expected`);
  const sparkSteps = reader.take(Float64Array, sparkLength);
  return { spark: reader.take(Float64Array, rows * sparkLength), sparkLength, sparkSteps };
}

/** Pictures of kept tensors, one after the other. */
export function decodePictures(value: unknown): Picture[] {
  const reader = new Reader(asBytes(value));
  const found: Picture[] = [];
  while (reader.left) {
    const [magic, version, height = 0, width = 0, size = 0] = reader.begin();
    if (magic !== MAGIC || version !== PICTURE) throw new Error(`a picture has version ${version}, ${PICTURE} expected`);
    const words = new TextDecoder().decode(reader.take(Uint8Array, size));
    const { row, asked = null, ...about } = JSON.parse(words) as About & { row: number; asked?: number | null };
    found.push({ row, asked, height, width, cells: reader.take(Float64Array, height * width), about });
  }
  return found;
}

function frameAt(reader: Reader): Frame {
  const [version, rows, columns] = header(reader);
  if (version !== RUN) throw new Error(`a frame inside has version ${version}, ${RUN} expected`);
  return frameOf(reader, rows, columns, reader.head);
}

function frameOf(reader: Reader, rows: number, columns: number, head: Uint32Array): Frame {
  const [, , , , sparkLength = 0, entries = 0] = head;
  return {
    rows,
    columns: table(reader, COLUMNS, rows, columns),
    spark: reader.take(Float64Array, rows * sparkLength),
    sparkLength,
    offsets: rising(reader.take(Uint32Array, rows + 1), entries),
    bins: reader.take(Uint16Array, entries),
    counts: reader.take(Float32Array, entries),
    compared: null,
  };
}

/** Histograms lie one after the other: a row whose bins end beyond them would be read for minutes. */
function rising(offsets: Uint32Array, entries: number): Uint32Array {
  let before = 0;
  for (const each of offsets) {
    if (each < before || each > entries) throw new Error("a histogram lies outside of the frame");
    before = each;
  }
  return offsets;
}

function table<N extends string>(
  reader: Reader,
  names: readonly N[],
  rows: number,
  columns: number,
): Record<N, Float64Array> {
  if (columns < names.length) throw new Error(`frame has ${columns} columns, ${names.length} expected`);
  const block = reader.take(Float64Array, columns * rows);
  return named(names, (index) => block.subarray(index * rows, (index + 1) * rows));
}

export function emptyFrame(): Frame {
  return {
    rows: 0,
    columns: named(COLUMNS, () => new Float64Array(0)),
    spark: new Float64Array(0),
    sparkLength: 0,
    offsets: new Uint32Array(1),
    bins: new Uint16Array(0),
    counts: new Float32Array(0),
    compared: null,
  };
}

function named<N extends string>(names: readonly N[], column: (index: number) => Float64Array): Record<N, Float64Array> {
  const pairs = names.map((name, index) => [name, column(index)] as const);
  return Object.fromEntries(pairs) as Record<N, Float64Array>;
}

type ArrayType<T> = { new (buffer: ArrayBuffer, offset: number, length: number): T; BYTES_PER_ELEMENT: number };

/** Takes one block after the other, each from the next multiple of 8 bytes on. */
class Reader {
  private readonly buffer: ArrayBuffer;
  private readonly start: number;
  private readonly size: number;
  private position = 0;
  /** The header that was read last. */
  head = new Uint32Array(0);

  constructor(bytes: Uint8Array) {
    // typed views need an aligned start, which a message does not promise
    const aligned = bytes.byteOffset % 8 === 0 ? bytes : bytes.slice();
    this.buffer = aligned.buffer as ArrayBuffer;
    this.start = aligned.byteOffset;
    this.size = aligned.byteLength;
  }

  /** Whether more follows. */
  get left(): boolean {
    return this.position < this.size;
  }

  begin(): Uint32Array {
    return (this.head = this.take(Uint32Array, HEADER_BYTES / 4));
  }

  take<T>(type: ArrayType<T>, length: number): T {
    const bytes = length * type.BYTES_PER_ELEMENT;
    if (this.position + bytes > this.size) {
      throw new Error(`it ends after ${this.size} bytes, ${this.position + bytes} expected`);
    }
    const view = new type(this.buffer, this.start + this.position, length);
    this.position += Math.ceil(bytes / 8) * 8;
    return view;
  }
}

/** Parse `sites`; what is missing becomes empty text, so that no row is lost. */
export function parseSites(value: unknown): Site[] {
  if (typeof value !== "string" || value === "") return [];
  const parsed = JSON.parse(value) as { rows?: (Partial<Omit<Site, "stack">> & { stack?: number })[]; stacks?: string[] };
  return (parsed.rows ?? []).map((row) => ({
    model: text(row.model),
    module: text(row.module),
    type: text(row.type),
    role: text(row.role),
    direction: text(row.direction),
    leaf: text(row.leaf),
    dtype: text(row.dtype),
    shape: Array.isArray(row.shape) ? row.shape : [],
    device: text(row.device),
    ...(row.baseline ? { baseline: row.baseline } : {}),
    ...(row.api ? { api: text(row.api), path: text(row.path) } : {}),
    ...(row.stack === undefined ? {} : { stack: text(parsed.stacks?.[row.stack]) }),
    ...(row.why ? { why: text(row.why) } : {}),
  }));
}

/** Parse `status`; a run without one has nothing to say yet. */
export function parseStatus(value: unknown): Status {
  const parsed = typeof value === "string" && value !== "" ? JSON.parse(value) : {};
  const given = parsed as Partial<Status>;
  return {
    title: text(given.title),
    open: given.open === true,
    ended: text(given.ended),
    headline: { ...EMPTY_HEADLINE, ...given.headline },
    findings: (given.findings ?? []).map(foundOf),
    further: given.further ?? [],
    left: given.left ?? 0,
    step: given.step === undefined || given.step === null || given.step < 0 ? null : given.step,
    steps: given.steps ?? 0,
    records: given.records ?? 0,
    modules: given.modules ?? 0,
    facts: given.facts ?? null,
    missed_text: text(given.missed_text),
    unobserved: given.unobserved ?? [],
    notices: given.notices ?? [],
    truncated: sentence(given.truncated),
    spark: given.spark || "absmax",
    spark_steps: given.spark_steps ?? [],
    keeps: given.keeps === true,
    unkept: given.unkept ?? [],
    dtype_limits: given.dtype_limits ?? {},
    comparison: given.comparison ? { ...NOTHING_COMPARED, ...given.comparison } : null,
  };
}

function foundOf(given: Partial<Found>): Found {
  return {
    severity: given.severity ?? "note",
    sign: text(given.sign),
    word: text(given.word),
    text: text(given.text),
    advice: text(given.advice),
    step: given.step ?? -1,
    row: given.row ?? null,
    others: given.others ?? [],
  };
}

function text(value: unknown): string {
  return value === null || value === undefined ? "" : String(value);
}

/** What was left out, in words; counts of rows are put into a sentence. */
function sentence(value: unknown): string | null {
  if (value === null || value === undefined || value === false || value === "") return null;
  if (typeof value === "string") return value;
  if (typeof value === "object") {
    const { shown, total } = value as { shown?: number; total?: number };
    if (shown !== undefined && total !== undefined) return `Only ${shown} of ${total} rows are shown.`;
  }
  return "Not all rows are shown.";
}
