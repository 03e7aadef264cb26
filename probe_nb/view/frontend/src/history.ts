/**
 * Earlier moments of a run: what the table showed at the end of steps before.
 *
 * While a run goes on the frames that were received are kept here, which costs the kernel nothing. Of a run that has
 * ended a report brings some, and the kernel is asked for the others.
 */
import { COLUMNS, type ColumnName, type Frame, type History, type Moment, type Site } from "./types";
import { NOT_KEPT } from "./words";

export const NO_HISTORY: History = { moments: [], why: "" };

/** Bytes that are kept of a run that goes on. */
export const BUDGET = 32e6;

/** The frames that were received, one for each step; where there are too many, evenly spread ones. */
export class Received {
  private kept: Moment[] = [];
  private bytes = 0;
  /** The step that is looked at, which stays. */
  held: number | null = null;

  constructor(private readonly budget = BUDGET) {}

  get moments(): readonly Moment[] {
    return this.kept;
  }

  /** Keep a frame; a later one of the same step takes its place. */
  add(step: number, frame: Frame, sites: readonly Site[]): void {
    const last = this.kept.at(-1);
    if (last && step < last.step) this.clear(); // the run was begun anew
    else if (last?.step === step) this.drop(this.kept.length - 1);
    // others hold the list of before
    this.kept = [...this.kept, { step, frame: lean(frame), made: (row) => sites[row] }];
    this.bytes += bytesOf(frame);
    while (this.bytes > this.budget && this.kept.length > 2) this.drop(this.least());
  }

  private clear(): void {
    this.kept = [];
    this.bytes = 0;
  }

  private drop(place: number): void {
    this.bytes -= bytesOf((this.kept[place] as Moment).frame);
    this.kept = this.kept.filter((_, at) => at !== place);
  }

  /** The one that leaves the smallest gap; the ends, where all began to go wrong and what is looked at stay. */
  private least(): number {
    const bad = this.kept.findIndex(({ frame }) => frame.columns.first_bad_step.some((step) => step >= 0));
    let [place, smallest] = [1, Infinity];
    for (let at = 1; at < this.kept.length - 1; at++) {
      if (bad > 0 && (at === bad || at === bad - 1)) continue;
      if (this.kept[at]?.step === this.held) continue;
      const gap = (this.kept[at + 1] as Moment).step - (this.kept[at - 1] as Moment).step;
      if (gap < smallest) [place, smallest] = [at, gap];
    }
    return place;
  }
}

/** Bytes that a frame keeps in memory: all that it was received with. */
export function bytesOf({ columns }: Frame): number {
  return columns.order.buffer.byteLength;
}

/** Without the trend: that of the whole run is shown at every step. */
function lean(frame: Frame): Frame {
  return { ...frame, spark: new Float64Array(0), sparkLength: 0, sparkSteps: undefined };
}

/** Moments of some rows as moments of all: what is not known of a row says that it was not kept. */
export function widened(moments: readonly Moment[], rows: Uint32Array, size: number): Moment[] {
  if (rows.length === size) return [...moments];
  const places = new Map([...rows].map((row, at) => [row, at]));
  return moments.map(({ step, frame, made }) => ({
    step,
    frame: wide(frame, rows, size),
    made: made && ((row) => made(places.get(row) ?? -1)),
  }));
}

function wide(frame: Frame, rows: Uint32Array, size: number): Frame {
  const columns = each((name) => new Float64Array(size).fill(name === "status" ? NOT_KEPT : NaN));
  const lengths = new Uint32Array(size);
  rows.forEach((row, at) => {
    if (row >= size) throw new RangeError(`the history is of row ${row}, there are ${size}`);
    for (const name of COLUMNS) columns[name][row] = frame.columns[name][at] as number;
    lengths[row] = (frame.offsets[at + 1] as number) - (frame.offsets[at] as number);
  });
  const offsets = new Uint32Array(size + 1);
  lengths.forEach((length, row) => (offsets[row + 1] = (offsets[row] as number) + length));
  return { ...frame, rows: size, columns, offsets };
}

/** A moment to be shown: rows stand where they do now, and the trend is that of the whole run. */
export function shown({ frame }: Moment, latest: Frame): Frame {
  const { spark, sparkLength, sparkSteps, columns } = latest;
  return { ...frame, spark, sparkLength, sparkSteps, columns: { ...frame.columns, order: columns.order } };
}

function each(column: (name: ColumnName) => Float64Array): Record<ColumnName, Float64Array> {
  return Object.fromEntries(COLUMNS.map((name) => [name, column(name)])) as Record<ColumnName, Float64Array>;
}
