/** Where the moments come from: what was received, what a report brings, what the kernel is asked for. */
import type { Asks } from "./asks";
import { decodeMoments } from "./decode";
import { count, plural } from "./format";
import { Received, widened } from "./history";
import { reason } from "./trouble";
import type { Frame, History, Model, Moment, Site, Status } from "./types";

/** Records of a run that the kernel is asked about without further ado: it takes it about a second. */
const QUICK = 500_000;
/** A step takes as long as so many of its records, besides them. */
const OF_STEP = 100;

export class Past {
  private readonly received = new Received();
  private given: unknown;
  private brought: { moments: readonly Moment[]; rows: number } | null = null;
  private fault = "";
  private asked = false;

  constructor(
    private readonly model: Model,
    private readonly asks: Asks,
  ) {}

  /** Take in what there is now. */
  update(status: Status, latest: Frame, sites: readonly Site[]): void {
    if (status.comparison) return;
    if (status.open && status.step !== null && latest.rows) this.received.add(status.step, latest, sites);
    const given = this.model.get("history");
    if (given === this.given) return;
    this.given = given;
    this.brought = null;
    this.fault = "";
    try {
      const found = decodeMoments(given);
      if (found) this.brought = { moments: widened(found.moments, found.rows, latest.rows), rows: found.rows.length };
    } catch (error) {
      this.fault = reason(error); // the newest numbers are shown all the same
    }
  }

  /** Stay with a step that is looked at. */
  hold(step: number | null): void {
    this.received.held = step;
  }

  history(status: Status, rows: number): History {
    const moments = this.brought?.moments ?? this.received.moments;
    return { moments, why: this.why(status, rows, moments.length) };
  }

  private why(status: Status, rows: number, moments: number): string {
    if (status.comparison) return ""; // each row shows the step in which the two runs part
    if (this.fault) return `the earlier steps cannot be read: ${this.fault}`;
    if (this.brought && moments > 1) {
      const fewer = this.brought.rows < rows;
      return fewer ? `earlier steps of ${plural(this.brought.rows, "row")}, the worst; ${this.elsewhere}` : "";
    }
    if (moments > 1) return "";
    if (!status.steps && !status.open) return "";
    if (status.steps <= 1) return status.open ? "steps can be chosen as soon as there are two" : "there is one step only";
    if (status.open) return "the steps from now on can be chosen";
    const refusal = this.asks.refusal("history");
    if (refusal) return `the kernel has no earlier steps: ${refusal}`;
    if (this.asked) return "asking the kernel for the earlier steps …";
    return this.asks.possible ? `${count(status.records)} records` : `no earlier steps here: ${this.elsewhere}`;
  }

  private get elsewhere(): string {
    return this.model.send ? "there is no room for more" : "run.inspect() has all";
  }

  /** Whether the kernel can be asked for the steps, and was not yet. */
  missing(status: Status): boolean {
    if (status.comparison || status.open || this.brought || this.asked || status.steps <= 1) return false;
    return this.asks.possible && this.asks.refusal("history") === "";
  }

  /** Ask for them; unasked for only where that is quick. */
  ask(status: Status, wanted: boolean): void {
    if (this.missing(status) && (wanted || status.records + OF_STEP * status.steps <= QUICK)) this.asked = this.asks.ask({ ask: "history" });
  }
}
