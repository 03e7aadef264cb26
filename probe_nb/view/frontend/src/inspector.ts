/** One view of one model: keeps what the reader chose while the numbers change under it. */
import { Asks } from "./asks";
import type { Column } from "./cells";
import { COMPARED, TABLE } from "./columns";
import { Data, Sites, visibleRows, type Choice, type Order } from "./data";
import { decodeFrame, emptyFrame, parseSites, parseStatus } from "./decode";
import { Detail } from "./detail";
import { h } from "./dom";
import { HeadlineView } from "./headline";
import { sharedAxis, type Axis } from "./histogram";
import { shown } from "./history";
import { handled } from "./keys";
import { Past } from "./past";
import { Pictures } from "./picture";
import { Slider } from "./slider";
import { StopButton } from "./stop";
import { Table } from "./table";
import { Toolbar } from "./toolbar";
import { ancestors, flat, folded, groupOf, treeOf, type Group, type Listed } from "./tree";
import type { Frame, Model, Status } from "./types";

const EVERYTHING = { query: "", role: "", anomalies: false, verdicts: new Set<string>() };

/** One moment earlier or later. */
const STEP_KEYS: Record<string, number> = { ",": -1, ".": 1 };

/** Rows kept in view above the culprit: what led to it. */
const LEAD = 4;

export class Inspector {
  readonly element: HTMLElement;
  private readonly headline = new HeadlineView(() => this.openCulprit());
  private readonly toolbar = new Toolbar({
    choose: (change) => this.guard(() => this.choose(change)),
    freeze: (frozen) => this.guard(() => this.freeze(frozen)),
    column: (key, shown) => this.guard(() => this.column(key, shown)),
    tree: (on) => this.guard(() => this.tree(on)),
    next: () => this.guard(() => this.next()),
    leave: () => this.table.element.focus(),
  });
  private readonly table = new Table({
    select: (row) => this.guard(() => this.select(row)),
    sort: (order) => this.guard(() => this.choose({ order })),
    fold: (group, open) => this.guard(() => this.fold(group, open)),
  });
  private readonly detail: Detail;
  private readonly slider = new Slider({
    go: (moment) => this.guard(() => this.go(moment)),
    load: () => this.guard(() => this.load()),
  });
  private readonly stop: StopButton;
  private readonly trouble = h("p", { class: "trouble", role: "alert", hidden: true });
  private readonly sizes = new ResizeObserver(() => this.table.paint());
  private choice: Choice = { ...EVERYTHING, order: execution() };
  private sitesText: unknown;
  private statusText: unknown;
  private parsed = parseStatus("");
  private bytes: unknown;
  /** The numbers that came last, whatever is shown. */
  private latest = emptyFrame();
  /** The step that was chosen; null follows the latest. */
  private step: number | null = null;
  private data = new Data(new Sites([]), parseStatus(""), emptyFrame());
  private axis: Axis | undefined;
  private rows: number[] = [];
  /** The selected site, by name: its row number may change. */
  private selected: string | null = null;
  /** The reader has chosen a row: from then on the view no longer follows the headline. */
  private chosen = false;
  private frozen = false;
  private asTree = false;
  /** Groups that are unfolded. */
  private readonly unfolded = new Set<string>();
  private hidden = new Set<string>();
  /** The divergence that was gone to last. */
  private visited = -1;

  private readonly asks: Asks;
  private readonly past: Past;

  constructor(private readonly model: Model) {
    this.asks = new Asks(model);
    this.past = new Past(model, this.asks);
    this.stop = new StopButton(model);
    this.detail = new Detail((row) => this.guard(() => this.open(row)), new Pictures(model, this.asks));
    this.toolbar.element.append(this.stop.element);
    const body = h("div", { class: "body" }, this.table.element, this.table.edge, this.detail.element);
    const above = [this.headline.element, this.trouble, this.toolbar.element, this.slider.element];
    this.element = h("div", { class: "pnb" }, ...above, body);
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.sizes.observe(this.table.element);
    this.detail.follow(this.element);
  }

  /** Read the model and show it. Errors are shown, never thrown: they would surface in the notebook's own code. */
  update(): void {
    this.guard(() => (this.frozen ? this.receive() : this.read()));
  }

  destroy(): void {
    this.stop.destroy();
    this.detail.destroy();
    this.sizes.disconnect();
  }

  private read(): void {
    const before = this.data.sites;
    const anchor = this.table.anchor();
    const anchored = before.keys[anchor.row] ?? null;
    const text = this.model.get("sites");
    const sites = text === this.sitesText ? before : new Sites(parseSites(text));
    const { status } = this;
    this.sitesText = text;
    this.asks.update(status);
    // the headline is shown even if the numbers cannot be read
    this.data = new Data(sites, status, emptyFrame());
    try {
      this.receive();
      this.data = this.composed(sites, status);
    } finally {
      this.axis = sharedAxis(this.data.frame, this.axis);
      this.show();
    }
    if (this.choice.order.by === "execution") this.table.restore(sites.find(anchored), anchor.offset);
    if (!this.chosen) this.followHeadline();
  }

  /** Take in the numbers that came, shown or not: each step may be gone back to. */
  private receive(): void {
    const bytes = this.model.get("frame");
    if (bytes !== this.bytes) this.latest = decodeFrame(bytes);
    this.bytes = bytes;
    this.past.update(this.status, this.latest);
    this.past.ask(this.status, false);
  }

  /** The newest status, which a frozen view does not show. */
  private get status(): Status {
    const text = this.model.get("status");
    if (text !== this.statusText) this.parsed = parseStatus(text);
    this.statusText = text;
    return this.parsed;
  }

  /** What is shown of what is there: the chosen moment, or else the latest. */
  private composed(sites: Sites, status: Status): Data {
    const history = this.past.history(status, this.latest.rows);
    const { step } = this;
    const place = step === null ? -1 : history.moments.filter((moment) => moment.step <= step).length - 1;
    const moment = history.moments[place];
    const frame: Frame = moment ? shown(moment, this.latest) : this.latest;
    return new Data(sites, status, frame, history, moment ? place : null, this.latest);
  }

  /** Show a moment; null for the latest. */
  private go(moment: number | null): void {
    this.step = moment === null ? null : (this.data.history.moments[moment]?.step ?? null);
    this.past.hold(this.step);
    if (this.step === null && !this.frozen) this.read();
    else {
      this.data = this.composed(this.data.sites, this.data.status);
      this.axis = sharedAxis(this.data.frame, this.axis);
      this.show();
    }
  }

  private load(): void {
    this.past.ask(this.data.status, true);
    this.read();
  }

  /** Until the reader picks a row, it is the one that the headline speaks of, or else the first. */
  private followHeadline(): void {
    const { row: named } = this.data.status.headline;
    // good news names another row at every step: that is no reason to move
    const row = this.selected === null ? (named ?? this.rows[0] ?? -1) : this.data.culprit;
    const key = this.data.sites.keys[row] ?? null;
    if (key === null || key === this.selected) return;
    this.selected = key;
    if (this.asTree) {
      this.unfold(row);
      this.show();
    } else this.showSelection();
    this.table.reveal(row, LEAD);
  }

  private show(): void {
    const { data, choice, columns } = this;
    const column = columns.find(({ key }) => key === choice.order.by);
    this.rows = visibleRows(data, choice, column?.sort);
    this.headline.show(data.status, this.frozen);
    this.toolbar.show(choice, data, this.rows.length, columns, this.hidden);
    this.slider.show(data, this.past.missing(data.status));
    this.stop.show(this.status.open);
    this.element.classList.toggle("past", data.moment !== null);
    this.element.classList.toggle("vacant", !data.size);
    const nothing = data.size ? "No row matches." : "Rows appear here as soon as the model runs.";
    this.table.show(data, columns, this.hidden, this.listed(), this.axis as Axis, choice.order, nothing);
    this.showSelection();
  }

  private get columns(): readonly Column[] {
    return this.data.status.comparison ? COMPARED : TABLE;
  }

  /** What was searched for is never folded away. */
  private listed(): Listed {
    const { data, choice, rows } = this;
    if (this.asTree) return treeOf(data, rows, this.unfolded);
    const plain = choice.order.by === "execution" && !choice.query && !choice.role && !choice.verdicts.size;
    return data.status.comparison && plain ? folded(data, rows, this.unfolded) : flat(rows);
  }

  private showSelection(): void {
    const row = this.data.sites.find(this.selected);
    this.table.select(row);
    this.detail.show(this.data, row);
  }

  private choose(change: Partial<Choice>): void {
    this.choice = { ...this.choice, ...change };
    this.show();
    const row = this.data.sites.find(this.selected);
    if (row >= 0 && this.rows.includes(row)) this.table.reveal(row, change.order?.by === "execution" ? LEAD : 0);
    if (change.order && change.order.by !== "execution") this.table.element.scrollTop = 0;
  }

  private select(row: number): void {
    this.chosen = true;
    this.selected = this.data.sites.keys[row] ?? null;
    this.showSelection();
  }

  private column(key: string, shown: boolean): void {
    if (shown) this.hidden.delete(key);
    else this.hidden.add(key);
    this.hidden = new Set(this.hidden);
    this.show();
  }

  private tree(on: boolean): void {
    this.asTree = on;
    this.unfold(this.data.sites.find(this.selected));
    this.show();
    this.toolbar.showTree(on);
    this.table.reveal(this.data.sites.find(this.selected), LEAD);
  }

  private fold({ key }: Group, open: boolean): void {
    if (open) this.unfolded.add(key);
    else this.unfolded.delete(key);
    this.show();
  }

  /** Open the groups around a row. */
  private unfold(row: number): void {
    if (row < 0) return;
    const keys = this.asTree ? ancestors(this.data, row) : [groupOf(this.data, this.rows, row)];
    for (const key of keys) this.unfolded.add(key);
  }

  private next(): void {
    const places = this.data.status.comparison?.divergences ?? [];
    this.visited = (this.visited + 1) % Math.max(1, places.length);
    const row = places[this.visited]?.row ?? null;
    if (row !== null) this.open(row);
    this.table.element.focus();
  }

  /** Select a row that may be filtered out or folded away: filters and groups give way. */
  private open(row: number): void {
    if (!this.rows.includes(row)) this.choose({ ...EVERYTHING });
    this.unfold(row);
    this.show();
    this.select(row);
    this.table.reveal(row, LEAD);
  }

  private openCulprit(): void {
    const { row } = this.data.status.headline;
    if (row !== null) this.guard(() => this.open(row));
  }

  private freeze(frozen: boolean): void {
    this.frozen = frozen;
    if (frozen) this.headline.show(this.data.status, true);
    else this.read();
  }

  private key(event: KeyboardEvent): void {
    const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const by = STEP_KEYS[event.key];
    if (by) {
      handled(event);
      this.slider.move(by);
    } else if (event.key === "/") {
      handled(event);
      this.toolbar.focusSearch();
    } else if (event.key === "Escape" && this.filtered) {
      handled(event);
      this.choose({ ...EVERYTHING });
    }
  }

  private get filtered(): boolean {
    const { query, role, anomalies, verdicts } = this.choice;
    return Boolean(query || role || anomalies || verdicts.size);
  }

  private guard(action: () => void): void {
    try {
      action();
      this.trouble.hidden = true;
    } catch (error) {
      this.trouble.textContent = `The inspector cannot show this: ${reason(error)}. The run itself is not affected.`;
      this.trouble.hidden = false;
      console.error("probe_nb inspector", error);
    }
  }
}

function execution(): Order {
  return { by: "execution", descending: false };
}

function reason(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
