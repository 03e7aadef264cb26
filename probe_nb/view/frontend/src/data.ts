/** What is shown now: sites, status and numbers together, and which rows of them in which order. */
import { NO_HISTORY } from "./history";
import { FLOWS, type Sites } from "./sites";
import type { ColumnName, Found, Frame, History, PairName, Site, Status } from "./types";
import { ABSENT_BIT, badgesOf, DOWNSTREAM, isAnomaly, severity, severityOf, withFound, type Badge } from "./words";

const NOTHING: readonly Found[] = [];

/** One consistent picture; where the traits disagree about the rows, the shorter one counts. */
export class Data {
  private ranksMade: Uint32Array | null = null;
  private executedMade: Uint32Array | null = null;
  private foundMade: Map<number, Found[]> | null = null;

  constructor(
    readonly sites: Sites,
    readonly status: Status,
    /** The latest numbers, or those of the chosen moment. */
    readonly frame: Frame,
    readonly history: History = NO_HISTORY,
    /** The place in the history that was chosen; null for the latest. */
    readonly moment: number | null = null,
    /** The numbers that came last, whatever is shown: what follows them does not jump to and fro. */
    readonly latest: Frame = frame,
  ) {}

  /** The step whose end is shown. */
  get step(): number | null {
    return (this.moment === null ? undefined : this.history.moments[this.moment]?.step) ?? this.status.step;
  }

  get size(): number {
    return this.sites.rows.length;
  }

  /** The row that something is wrong with, says the headline; -1 if all is well. */
  get culprit(): number {
    const { kind, row } = this.status.headline;
    return kind === "bad" || kind === "warn" ? (row ?? -1) : -1;
  }

  /** The place in the history where something first was not finite; -1 if nothing is, or if that is not known. */
  get began(): number {
    const { status, history } = this;
    if (status.headline.kind !== "bad") return -1;
    let first = Infinity;
    for (const step of this.latest.columns.first_bad_step) if (step >= 0 && step < first) first = step;
    return history.moments.findIndex((moment) => moment.step >= first);
  }

  /** All rows in execution order; those that never ran come last. */
  get executed(): Uint32Array {
    if (this.executedMade) return this.executedMade;
    const orders = this.frame.columns.order;
    const rows = Uint32Array.from({ length: this.size }, (_, row) => row);
    const last = (row: number): number => {
      const order = orders[row] ?? NaN;
      return Number.isNaN(order) ? Infinity : order;
    };
    let sorted = true;
    for (let row = 1; row < this.size && sorted; row++) sorted = last(row - 1) <= last(row);
    // Infinity - Infinity is NaN, which falls through to the row number
    if (!sorted) rows.sort((a, b) => last(a) - last(b) || a - b);
    return (this.executedMade = rows);
  }

  /** The place of each row in execution order. */
  get ranks(): Uint32Array {
    if (this.ranksMade) return this.ranksMade;
    const ranks = new Uint32Array(this.size);
    this.executed.forEach((row, rank) => (ranks[row] = rank));
    return (this.ranksMade = ranks);
  }

  /** The rows of other modules that ran just before and after, in the same direction; -1 where there is none. */
  neighbours(row: number): [before: number, after: number] {
    const { module, model, direction } = this.site(row);
    const rank = this.ranks[row] ?? 0;
    let [before, after] = [-1, -1];
    for (let other = 0; other < this.size; other++) {
      const site = this.site(other);
      if (site.direction !== direction || (site.module === module && site.model === model)) continue;
      if (!FLOWS.has(site.role)) continue;
      const at = this.ranks[other] ?? 0;
      if (at < rank && (before < 0 || at > (this.ranks[before] ?? 0))) before = other;
      if (at > rank && (after < 0 || at < (this.ranks[after] ?? 0))) after = other;
    }
    return [before, after];
  }

  /** A number of a row; NaN where nothing is recorded. */
  value(name: ColumnName, row: number): number {
    const value = this.frame.columns[name][row];
    return value === undefined ? NaN : value;
  }

  /** What a row is; at an earlier moment of the dtype and on the device of then. */
  site(row: number): Site {
    const site = this.sites.rows[row];
    if (!site) throw new RangeError(`there is no row ${row}`);
    const made = this.moment === null ? undefined : this.history.moments[this.moment]?.made?.(row);
    if (!made || (made.dtype === site.dtype && made.device === site.device)) return site;
    return { ...site, dtype: made.dtype, device: made.device };
  }

  /** The role of a row; what an optimizer sees again of a parameter is told from what came before. */
  role(row: number): string {
    const { role, direction } = this.site(row);
    return direction === "optimizer" && role.startsWith("param") ? `${role} (optimizer)` : role;
  }

  /** Whether a row is one number that an optimizer was given: a learning rate and the like. */
  setting(row: number): boolean {
    const { direction, role, api } = this.site(row);
    const numel = this.value("numel", row) > 0 ? this.value("numel", row) : this.before("numel", row);
    return direction === "optimizer" && role === "state" && api !== undefined && numel === 1;
  }

  /** The badges of a row as bits; a row without a record is absent, not healthy. */
  bits(row: number): number {
    const bits = this.value("badges", row);
    return Number.isNaN(bits) ? ABSENT_BIT : bits;
  }

  badges(row: number): readonly Badge[] {
    return withFound(badgesOf(this.bits(row), this.value("status", row)), this.found(row));
  }

  /** What was found of a row by the step that is shown: first what names it, else worst first. */
  found(row: number): readonly Found[] {
    return (this.foundMade ??= this.foundByRow()).get(row) ?? NOTHING;
  }

  private foundByRow(): Map<number, Found[]> {
    const by = new Map<number, Found[]>();
    const until = this.moment === null ? Infinity : (this.step ?? Infinity);
    const known = this.status.findings.filter(({ step }) => step <= until);
    const put = (row: number, each: Found): void => {
      const mine = by.get(row);
      if (mine) mine.push(each);
      else by.set(row, [each]);
    };
    for (const each of known) if (each.row !== null) put(each.row, each);
    for (const each of known) for (const row of each.others) put(row, each);
    return by;
  }

  /** How bad a row is: by its badges, and by what was found of it. */
  severity(row: number): number {
    const found = this.found(row).map((each) => severityOf(each, this.status.findings.indexOf(each), each.row === row));
    return Math.max(severity(this.bits(row), this.value("status", row)), ...found);
  }

  anomalous(row: number): boolean {
    return this.badges(row).some(isAnomaly);
  }

  /** The step of a row that is not from the latest one, and says so; else -1. */
  olderStep(row: number): number {
    const step = this.value("step", row);
    const now = this.step;
    return now !== null && step >= 0 && step < now ? step : -1;
  }

  inherited(row: number): boolean {
    return (this.bits(row) & DOWNSTREAM) !== 0;
  }

  spark(row: number, frame: Frame = this.frame): Float64Array {
    const length = frame.sparkLength;
    return frame.spark.subarray(row * length, (row + 1) * length);
  }

  /** A number of a pair; NaN where there is none, or nothing is compared. */
  pair(name: PairName, row: number): number {
    return this.frame.compared?.columns[name][row] ?? NaN;
  }

  /** The same of the baseline; NaN where it has nothing. */
  before(name: ColumnName, row: number): number {
    return this.frame.compared?.baseline.columns[name][row] ?? NaN;
  }

  /** The name of a row's verdict; "" where nothing is compared. */
  verdict(row: number): string {
    return this.status.comparison?.verdicts[this.pair("verdict", row)] ?? "";
  }

  /** Whether a row only follows from a divergence before it. */
  follows(row: number): boolean {
    return this.pair("follows", row) > 0 && !(this.pair("origin", row) > 0);
  }

  /** How many rows have which verdict. */
  get verdicts(): Map<string, number> {
    const found = new Map<string, number>();
    for (let row = 0; row < this.size; row++) {
      const name = this.verdict(row);
      found.set(name, (found.get(name) ?? 0) + 1);
    }
    return found;
  }
}

/** A column head the reader clicked, or one of the two orders of the toolbar. */
export interface Order {
  /** "execution", "worst" or the key of a column. */
  by: string;
  descending: boolean;
}

export interface Choice {
  query: string;
  role: string;
  anomalies: boolean;
  /** Verdicts to show; all if empty. */
  verdicts: ReadonlySet<string>;
  order: Order;
}

/** All rows, as they ran. */
export const EXECUTION: Order = { by: "execution", descending: false };
export const EVERYTHING: Omit<Choice, "order"> = { query: "", role: "", anomalies: false, verdicts: new Set() };

/** Whether a choice leaves rows out. */
export function narrows({ query, role, anomalies, verdicts }: Choice): boolean {
  return Boolean(query || role || anomalies || verdicts.size);
}

/** By what a column sorts; NaN and "" are absent and stay last in either direction. */
export type SortValue = (data: Data, row: number) => number | string;

/** The rows to show, in order. */
export function visibleRows(data: Data, choice: Choice, sortValue?: SortValue): number[] {
  const words = choice.query.toLowerCase().split(/\s+/).filter(Boolean);
  const rows: number[] = [];
  for (const row of data.executed) {
    if (choice.role && data.sites.rows[row]?.role !== choice.role) continue;
    if (choice.verdicts.size && !choice.verdicts.has(data.verdict(row))) continue;
    if (choice.anomalies && !data.anomalous(row)) continue;
    if (words.length && !data.sites.matches(row, words)) continue;
    rows.push(row);
  }
  return sorted(rows, data, choice.order, sortValue);
}

function sorted(rows: number[], data: Data, order: Order, sortValue?: SortValue): number[] {
  if (order.by === "execution") return rows;
  const { ranks } = data;
  const execution = (a: number, b: number): number => (ranks[a] ?? 0) - (ranks[b] ?? 0);
  if (order.by === "worst") {
    const { culprit } = data;
    const badness = Float64Array.from({ length: data.size }, (_, row) => (row === culprit ? 1000 : gravity(data, row)));
    return rows.sort((a, b) => (badness[b] ?? 0) - (badness[a] ?? 0) || execution(a, b));
  }
  if (!sortValue) return rows.sort(execution);
  const values: (number | string)[] = [];
  for (const row of rows) values[row] = sortValue(data, row);
  return rows.sort(
    (a, b) => compare(values[a] ?? NaN, values[b] ?? NaN, order.descending) || execution(a, b),
  );
}

const GRAVE = ["same", "close", "not_comparable", "only_in_candidate", "only_in_baseline", "diverged"];

/** How bad a row is: of a comparison by its verdict, those that only follow from others after the rest. */
export function gravity(data: Data, row: number): number {
  if (!data.status.comparison) return data.severity(row);
  const rank = 10 * GRAVE.indexOf(data.verdict(row));
  return rank + (data.pair("origin", row) > 0 ? 20 : 0) - (data.follows(row) ? 5 : 0);
}

/** Compare two values of one column; absent ones come last whatever the direction. */
export function compare(a: number | string, b: number | string, descending: boolean): number {
  const noA = a === "" || Number.isNaN(a);
  const noB = b === "" || Number.isNaN(b);
  if (noA || noB) return Number(noA) - Number(noB);
  if (a === b) return 0;
  const larger = typeof a === "string" || typeof b === "string" ? natural(String(a), String(b)) > 0 : a > b;
  return larger === descending ? -1 : 1;
}

const collator = new Intl.Collator("en", { numeric: true });

/** layers.2 comes before layers.10. */
function natural(a: string, b: string): number {
  return collator.compare(a, b);
}
