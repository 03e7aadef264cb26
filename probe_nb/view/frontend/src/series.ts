/** One statistic of a row over the steps that are known. */
import type { Data } from "./data";
import type { ColumnName, Frame } from "./types";

export interface Point {
  step: number;
  /** NaN where it is absent. */
  value: number;
  /** What was not finite in this step, as it is written: "NaN", "Inf", both, or "". */
  bad: string;
}

export interface Statistic {
  key: string;
  name: string;
  /** A share in per cent instead of a number. */
  share?: boolean;
  of(frame: Frame, row: number): number;
}

function column(name: ColumnName): Statistic {
  return { key: name, name, of: (frame, row) => frame.columns[name][row] ?? NaN };
}

function share(key: string, name: string, ...columns: ColumnName[]): Statistic {
  const of = (frame: Frame, row: number): number => {
    const total = frame.columns.numel[row] ?? -1;
    const counts = columns.map((each) => frame.columns[each][row] ?? -1);
    if (!(total > 0) || counts.some((n) => !(n >= 0))) return NaN;
    return (100 * counts.reduce((a, b) => a + b, 0)) / total;
  };
  return { key, name, share: true, of };
}

export const STATISTICS: readonly Statistic[] = [
  column("absmax"),
  column("l2"),
  column("std"),
  column("mean"),
  column("min"),
  column("max"),
  share("nan", "NaN share", "nan_count"),
  share("inf", "Inf share", "posinf_count", "neginf_count"),
  share("zero", "zero share", "zero_count"),
  share("subnormal", "subnormal share", "subnormal_count"),
  share("at_max", "at dtype max share", "at_max_count"),
];

/** What of a row's record is not finite, in words. */
export function badOf(frame: Frame, row: number): string {
  const some = (name: ColumnName): boolean => (frame.columns[name][row] ?? 0) > 0;
  const infinite = some("posinf_count") || some("neginf_count");
  return [some("nan_count") ? "NaN" : "", infinite ? "Inf" : ""].filter(Boolean).join(", ");
}

type Side = "now" | "before";

/** The statistic of a row in every step that is known, oldest first; of the largest magnitude the spark knows most. */
export function series(data: Data, row: number, statistic: Statistic, side: Side = "now"): Point[] {
  const found = new Map<number, Point>();
  if (statistic.key === data.status.spark) {
    for (const point of sparkPoints(data, row, side)) found.set(point.step, point);
  }
  for (const whole of frames(data)) {
    const frame = side === "before" ? whole.compared?.baseline : whole;
    if (!frame) continue;
    const step = frame.columns.step[row] ?? NaN;
    if (!(step >= 0)) continue;
    const [value, bad] = [statistic.of(frame, row), badOf(frame, row)];
    const known = found.get(step);
    // the spark has the largest of all calls; where it was not finite it has no number
    if (!known || Number.isNaN(known.value)) found.set(step, { step, value, bad: bad || (known?.bad ?? "") });
  }
  return [...found.values()].sort((a, b) => a.step - b.step);
}

/** The frames of all moments, the shown one last: of one step the newest counts. */
function frames(data: Data): Frame[] {
  return [data.frame, ...data.history.moments.map(({ frame }) => frame).reverse()];
}

function sparkPoints(data: Data, row: number, side: Side): Point[] {
  const frame = side === "before" ? data.frame.compared?.baseline : data.frame;
  if (!frame) return [];
  const values = data.spark(row, frame);
  const steps = frame.sparkSteps ?? data.status.spark_steps;
  const last = data.status.step ?? values.length - 1;
  return Array.from(values, (value, at) => {
    const step = steps.length === values.length ? (steps[at] as number) : last - (values.length - 1 - at);
    return { step, value: Number.isFinite(value) ? value : NaN, bad: Math.abs(value) === Infinity ? "NaN or Inf" : "" };
  });
}
