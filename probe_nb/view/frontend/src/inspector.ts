/** One view of one model: keeps what the reader chose while the numbers change under it. */
import { Asks } from "./asks";
import type { Column } from "./cells";
import { COMPARED, TABLE } from "./columns";
import { Data, EVERYTHING, EXECUTION, narrows, visibleRows, type Choice } from "./data";
import { Sites } from "./sites";
import { emptyFrame, parseStatus } from "./decode";
import { Detail } from "./detail";
import { h } from "./dom";
import { HeadlineView } from "./headline";
import { sharedAxis, type Axis } from "./histogram";
import { handled } from "./keys";
import { headOf, headsOf, MODULES } from "./modules";
import { Pictures } from "./picture";
import { Slider } from "./slider";
import { Source } from "./source";
import { StopButton } from "./stop";
import { Table } from "./table";
import { Toolbar } from "./toolbar";
import { ancestors, flat, folded, groupOf, treeOf, type Group, type Listed } from "./tree";
import { Trouble } from "./trouble";
import type { Model } from "./types";

/** One moment earlier or later. */
const STEP_KEYS: Record<string, number> = { ",": -1, ".": 1 };

/** Rows kept in view above the culprit: what led to it. */
const LEAD = 4;

export class Inspector {
  readonly element: HTMLElement;
  private readonly headline = new HeadlineView(
    () => this.openCulprit(),
    (row) => this.guard(() => this.open(row)),
  );
  private readonly toolbar = new Toolbar({
    choose: (change) => this.guard(() => this.choose(change)),
    freeze: (frozen) => this.guard(() => this.freeze(frozen)),
    column: (key, shown) => this.guard(() => this.column(key, shown)),
    tree: (on) => this.guard(() => this.tree(on)),
    modules: (on) => this.guard(() => this.modules(on)),
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
  private readonly trouble = new Trouble();
  private readonly sizes = new ResizeObserver(() => this.table.look());
  private choice: Choice = { ...EVERYTHING, order: EXECUTION };
  private data = new Data(new Sites([]), parseStatus(""), emptyFrame());
  private axis: Axis | undefined;
  private rows: number[] = [];
  /** The selected site, by name: its row number may change. */
  private selected: string | null = null;
  /** The reader has chosen a row: from then on the view no longer follows the headline. */
  private chosen = false;
  private frozen = false;
  /** The moment was chosen, by the reader or for them. */
  private turned = false;
  private asTree = false;
  private asModules = false;
  /** Groups that are unfolded. */
  private readonly unfolded = new Set<string>();
  private hidden = new Set<string>();
  /** The divergence that was gone to last. */
  private visited = -1;

  private readonly source: Source;

  constructor(model: Model) {
    const asks = new Asks(model);
    this.source = new Source(model, asks);
    this.stop = new StopButton(model);
    this.detail = new Detail((row) => this.guard(() => this.open(row)), new Pictures(model, asks));
    this.toolbar.element.append(this.stop.element);
    const body = h("div", { class: "body" }, this.table.element, this.table.edge, this.detail.element);
    const above = [this.headline.element, this.trouble.element, this.toolbar.element, this.slider.element];
    this.element = h("div", { class: "pnb" }, ...above, body);
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.sizes.observe(this.table.element);
    this.detail.follow(this.element);
  }

  /** Read the model and show it. Errors are shown, never thrown: they would surface in the notebook's own code. */
  update(): void {
    this.guard(() => (this.frozen ? this.source.receive() : this.read()));
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
    // the headline is shown even if the numbers cannot be read
    this.data = this.source.bare();
    try {
      this.source.receive();
      this.data = this.source.now(this.data);
    } finally {
      this.axis = sharedAxis(this.data.frame, this.axis);
      this.show();
    }
    this.turnBack();
    const { sites } = this.data;
    if (this.choice.order.by === "execution") this.table.restore(sites.find(anchored), anchor.offset);
    if (!this.chosen) this.followHeadline();
  }

  /** What has ended badly is shown, at first, at the end of the step where it began: later all is bad. */
  private turnBack(): void {
    const { began, status, history } = this.data;
    if (this.turned || status.open || history.moments.length < 2) return;
    this.turned = true;
    if (began >= 0 && !this.chosen) this.go(began);
  }

  /** Show a moment; null for the newest. */
  private go(moment: number | null): void {
    this.turned = true;
    this.source.choose(moment === null ? null : (this.data.history.moments[moment]?.step ?? null));
    if (moment === null) {
      this.toolbar.showFrozen((this.frozen = false));
      return this.read();
    }
    this.data = this.source.now(this.data);
    this.axis = sharedAxis(this.data.frame, this.axis);
    this.show();
  }

  private load(): void {
    this.source.load();
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
    this.reveal(row, LEAD);
  }

  private show(): void {
    const { data, choice, columns } = this;
    this.table.measure();
    const column = columns.find(({ key }) => key === choice.order.by);
    const rows = visibleRows(data, choice, column?.sort);
    this.rows = this.byModule ? headsOf(data.sites, rows) : rows;
    this.headline.show(data.status, this.frozen);
    this.toolbar.show(choice, data, this.rows, columns, this.hidden);
    this.slider.show(data, this.source.missing, this.frozen);
    this.stop.show(this.source.status.open);
    this.element.classList.toggle("past", data.moment !== null);
    this.element.classList.toggle("vacant", !data.size);
    const nothing = data.size ? "No row matches." : "Rows appear here as soon as the model runs.";
    this.table.show(data, columns, this.hidden, this.listed(), this.axis as Axis, choice.order, nothing);
    this.showSelection();
  }

  private get columns(): readonly Column[] {
    if (this.byModule) return MODULES;
    return this.data.status.comparison ? COMPARED : TABLE;
  }

  private get byModule(): boolean {
    return this.asModules && !this.data.status.comparison;
  }

  /** The line of the table that a row is on; -1 for none. */
  private line(row: number): number {
    return this.byModule ? headOf(this.data.sites, row) : row;
  }

  /** Bring a row into view. */
  private reveal(row: number, lead = 0): void {
    this.table.reveal(this.line(row), lead);
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
    this.table.select(this.line(row));
    this.detail.show(this.data, row);
  }

  private choose(change: Partial<Choice>): void {
    this.choice = { ...this.choice, ...change };
    this.show();
    const row = this.data.sites.find(this.selected);
    if (row >= 0 && this.rows.includes(this.line(row))) this.reveal(row, change.order?.by === "execution" ? LEAD : 0);
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
    this.reveal(this.data.sites.find(this.selected), LEAD);
  }

  private modules(on: boolean): void {
    this.asModules = on;
    // a column that is not shown cannot tell the order
    const { by } = this.choice.order;
    if (by !== "worst" && !this.columns.some(({ key }) => key === by)) this.choice = { ...this.choice, order: EXECUTION };
    this.show();
    this.reveal(this.data.sites.find(this.selected), LEAD);
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
    if (!this.rows.includes(this.line(row))) this.choose({ ...EVERYTHING });
    this.unfold(row);
    this.show();
    this.select(row);
    this.reveal(row, LEAD);
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
    } else if (event.key === "Escape" && narrows(this.choice)) {
      handled(event);
      this.choose({ ...EVERYTHING });
    }
  }

  private guard(action: () => void): void {
    this.trouble.guard(action);
  }
}
