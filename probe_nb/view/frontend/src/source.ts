/** What the model has, read once whenever it changes: sites, status, the newest numbers and those of before. */
import type { Asks } from "./asks";
import { Data } from "./data";
import { Sites } from "./sites";
import { decodeFrame, decodeTrend, emptyFrame, parseSites, parseStatus } from "./decode";
import { shown } from "./history";
import { Past } from "./past";
import type { Model, Status } from "./types";

export class Source {
  /** The step that was chosen; null follows the newest. */
  private step: number | null = null;
  private readonly past: Past;
  private readonly taken = new Map<string, unknown>();
  private sites = new Sites([]);
  private parsed = parseStatus("");
  private latest = emptyFrame();
  private trend: ReturnType<typeof decodeTrend> = null;

  constructor(
    private readonly model: Model,
    private readonly asks: Asks,
  ) {
    this.past = new Past(model, asks);
  }

  /** The newest status, which a frozen view does not show. */
  get status(): Status {
    this.take("status", (text) => (this.parsed = parseStatus(text)));
    this.asks.update(this.parsed);
    return this.parsed;
  }

  private get newest(): Sites {
    this.take("sites", (text) => (this.sites = new Sites(parseSites(text))));
    return this.sites;
  }

  /** Take in the numbers that came, shown or not: each step may be gone back to. */
  receive(): void {
    this.take("trend", (bytes) => (this.trend = decodeTrend(bytes)));
    this.take("frame", (bytes) => (this.latest = decodeFrame(bytes)));
    // what comes less often stands beside the newest numbers
    if (this.trend) this.latest = { ...this.latest, ...this.trend };
    this.past.update(this.status, this.latest, this.newest.rows);
    this.past.ask(this.status, false);
  }

  /** What there is without numbers, should these be unreadable. */
  bare(): Data {
    return new Data(this.newest, this.status, emptyFrame());
  }

  /** The chosen moment, or else the newest numbers. */
  now({ sites, status }: Data): Data {
    const { step, latest } = this;
    const history = this.past.history(status, latest.rows);
    const place = step === null ? -1 : history.moments.filter((moment) => moment.step <= step).length - 1;
    const moment = history.moments[place];
    return new Data(sites, status, moment ? shown(moment, latest) : latest, history, moment ? place : null, latest);
  }

  /** Choose a step; null for the newest. */
  choose(step: number | null): void {
    this.step = step;
    this.past.hold(step);
  }

  /** Whether the kernel can be asked for the steps, and was not yet. */
  get missing(): boolean {
    return this.past.missing(this.status);
  }

  /** Ask for them. */
  load(): void {
    this.past.ask(this.status, true);
  }

  /** Read a trait if it is another one than before; one that cannot be read is tried again. */
  private take(key: string, read: (value: unknown) => void): void {
    const value = this.model.get(key);
    if (this.taken.has(key) && this.taken.get(key) === value) return;
    this.taken.delete(key);
    read(value);
    this.taken.set(key, value);
  }
}
