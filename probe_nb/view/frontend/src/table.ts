/**
 * The table: a grid of which only the rows in view exist.
 *
 * Row elements are reused in a ring, so that scrolling fills just the rows that enter.
 */
import type { Column } from "./cells";
import type { Data, Order } from "./data";
import { h, setAttribute, setText } from "./dom";
import { fillGroup } from "./grouprow";
import { Heads } from "./heads";
import type { Axis } from "./histogram";
import { handled } from "./keys";
import { Layout } from "./layout";
import { Port } from "./port";
import { flat, type Group, type Listed } from "./tree";
import { stepOf } from "./walk";
import { INF, NAN } from "./words";

const ROW_HEIGHT = 24;
const HEAD_HEIGHT = 25;
const OVERSCAN = 2;

interface Row {
  element: HTMLElement;
  cells: HTMLElement[];
  /** Lies over the cells where the row is a group. */
  group: HTMLElement;
  /** The row and the version of the data it shows. */
  site: number;
  version: number;
}

export interface TableEvents {
  select(row: number): void;
  sort(order: Order): void;
  fold(group: Group, open: boolean): void;
}

export class Table {
  readonly element: HTMLElement;
  /** Shades the right edge as long as more columns follow there. */
  readonly edge = h("div", { class: "edge", "aria-hidden": "true", hidden: true });
  private readonly body = h("div", { class: "rows", role: "rowgroup" });
  private readonly empty = h("div", { class: "empty" });
  private readonly port: Port;
  private readonly layout: Layout;
  private readonly heads: Heads;
  private table: readonly Column[] = [];
  private pool: Row[] = [];
  private list: Listed = flat([]);
  /** The group that the keys stand on, by its key. */
  private onGroup: string | null = null;
  private data: Data | null = null;
  private axis: Axis = { low: 0, high: 0 };
  private selected = -1;
  private version = 0;
  /** The height of all rows. */
  private stretched = 0;

  constructor(private readonly events: TableEvents) {
    this.element = h("div", {
      class: "table",
      role: "grid",
      tabindex: 0,
      "aria-label": "Observed tensors",
      onscroll: () => this.look(),
      onkeydown: (event: KeyboardEvent) => this.key(event),
    });
    this.port = new Port(this.element);
    this.layout = new Layout(this.element, this.port, this.edge, () => [this.heads.cells, ...this.pool.map((row) => row.cells)]);
    this.heads = new Heads(this.layout, {
      sort: (order) => this.events.sort(order),
      resize: (column, width) => this.resize(column, width),
    });
    this.element.append(h("div", { class: "heads", role: "rowgroup" }, this.heads.element), this.body, this.empty);
  }

  /** Begin anew with these columns, unless they are those that stand here. */
  private use(table: readonly Column[]): void {
    if (table === this.table) return;
    this.table = table;
    this.layout.use(table);
    this.heads.use(table);
    for (const row of this.pool) row.element.remove();
    this.pool = [];
  }

  /** Show these rows of this data; what is in view stays where it is. */
  show(
    data: Data,
    table: readonly Column[],
    hidden: ReadonlySet<string>,
    listed: Listed,
    axis: Axis,
    order: Order,
    emptyText: string,
  ): void {
    this.use(table);
    const nonfinite = data.latest.columns.badges.some((bits) => bits & (NAN | INF));
    // of the same rows columns only grow: they do not move to and fro while numbers change
    this.layout.fit(data, hidden, nonfinite, this.data?.sites === data.sites);
    this.data = data;
    this.list = listed;
    this.axis = axis;
    this.version++;
    const { rows, groups } = listed;
    if (!groups.some(({ key }) => key === this.onGroup)) this.onGroup = null;
    setAttribute(this.element, "role", groups.length ? "treegrid" : "grid");
    setAttribute(this.element, "aria-rowcount", String(rows.length + 1));
    setAttribute(this.element, "aria-colcount", String(this.layout.places.length));
    this.element.classList.toggle("nested", listed.tree);
    this.stretch(rows.length * ROW_HEIGHT);
    setText(this.empty, rows.length ? "" : emptyText);
    this.empty.hidden = rows.length > 0;
    this.heads.show(order, axis);
    this.paint();
  }

  private stretch(height: number): void {
    if (height === this.stretched) return;
    this.stretched = height;
    this.body.style.height = `${height}px`;
    this.port.measure(); // a scroll bar may come or go, and what was scrolled to may be gone
  }

  select(row: number): void {
    if (row === this.selected) return;
    this.onGroup = null;
    this.selected = row;
    this.paint();
  }

  /** Bring a row into view; with room above it, where what led to it stands. */
  reveal(row: number, lead = 0): void {
    const index = this.list.rows.indexOf(row);
    if (index < 0) return;
    const top = index * ROW_HEIGHT;
    this.measure();
    const height = this.port.height - HEAD_HEIGHT;
    if (top < this.port.top || lead) this.port.go(top - lead * ROW_HEIGHT);
    else if (top + ROW_HEIGHT > this.port.top + height) this.port.go(top + ROW_HEIGHT - height);
    this.paint();
  }

  /** The row at the upper edge and how far it is scrolled out, to come back to it when rows are put in above. */
  anchor(): { row: number; offset: number } {
    this.measure();
    const index = Math.floor(this.port.top / ROW_HEIGHT);
    return { row: this.list.rows[index] ?? -1, offset: this.port.top - index * ROW_HEIGHT };
  }

  restore(row: number, offset: number): void {
    const index = this.list.rows.indexOf(row);
    if (index < 0) return;
    this.port.go(index * ROW_HEIGHT + offset);
  }

  /** Find out what is in view: before the page is changed. */
  measure(): void {
    this.port.measure();
  }

  /** Show what came into view. */
  look(): void {
    this.measure();
    this.paint();
  }

  private paint(): void {
    if (!this.data) return;
    this.layout.lay();
    const { length } = this.list.rows;
    const height = this.port.height || 400;
    const inView = Math.ceil(height / ROW_HEIGHT) + 2 * OVERSCAN;
    const first = Math.max(0, Math.floor(this.port.top / ROW_HEIGHT) - OVERSCAN);
    const last = Math.min(length, first + inView);
    this.grow(Math.min(length, inView));
    const used = new Set<Row>();
    let active: string | null = null;
    for (let index = first; index < last; index++) {
      const row = this.pool[index % this.pool.length] as Row;
      used.add(row);
      this.fill(row, index);
      if (this.current(row.site)) active = row.element.id;
    }
    for (const row of this.pool) {
      row.element.hidden = !used.has(row);
      if (row.element.hidden) setAttribute(row.element, "aria-selected", "false");
    }
    setAttribute(this.element, "aria-activedescendant", active);
  }

  private grow(size: number): void {
    while (this.pool.length < size) {
      const cells = this.table.map((column) =>
        h("div", { class: `cell ${column.align} ${column.key}`, role: "gridcell" }),
      );
      const group = h("div", { class: "group", role: "gridcell", hidden: true });
      const element = h("div", { class: "row", role: "row", id: `row-${this.pool.length}` }, ...cells, group);
      const row: Row = { element, cells, group, site: -1, version: -1 };
      this.layout.adopt(cells);
      element.addEventListener("click", () => this.choose(row.site));
      this.pool.push(row);
      this.body.append(element);
      for (const each of this.pool) each.version = -1; // a larger ring holds other rows
    }
  }

  private group(row: number): Group | undefined {
    return this.list.groups[-row - 1];
  }

  /** Whether the keys stand on this row. */
  private current(row: number): boolean {
    return row < 0 ? this.group(row)?.key === this.onGroup : this.onGroup === null && row === this.selected;
  }

  /** Select a site, or fold a group. */
  private choose(row: number): void {
    const group = this.group(row);
    if (row >= 0) {
      this.onGroup = null;
      this.events.select(row);
      this.paint(); // it may be the selected one, and the keys on a group
    } else if (group) {
      this.onGroup = group.key;
      this.events.fold(group, !group.open);
    }
  }

  private fill(row: Row, index: number): void {
    const site = this.list.rows[index] as number;
    const data = this.data as Data;
    const { element } = row;
    element.style.top = `${index * ROW_HEIGHT}px`;
    setAttribute(element, "aria-rowindex", String(index + 2));
    setAttribute(element, "aria-selected", String(this.current(site)));
    if (row.site === site && row.version === this.version) return;
    row.site = site;
    row.version = this.version;
    const group = this.group(site);
    const depth = this.list.groups.length ? this.list.depths[index] : undefined;
    row.group.hidden = !group;
    element.style.setProperty("--depth", String(depth ?? 0));
    setAttribute(element, "aria-level", depth === undefined ? null : String(depth + 1));
    setAttribute(element, "aria-expanded", group ? String(group.open) : null);
    element.classList.toggle("folds", group !== undefined);
    element.classList.toggle("inherited", !group && (data.inherited(site) || data.follows(site)));
    element.classList.toggle("culprit", data.culprit === site);
    if (group) fillGroup(row.group, group);
    else for (const at of this.layout.places) this.table[at]?.fill(row.cells[at] as HTMLElement, data, site, this.axis);
  }

  private resize(column: Column, width: number | null): void {
    this.layout.resize(column, width, this.data);
    this.paint();
  }

  private key(event: KeyboardEvent): void {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target !== this.element) return;
    const page = Math.max(1, Math.floor(this.port.height / ROW_HEIGHT) - 2);
    const at = this.list.rows.findIndex((row) => this.current(row));
    const step = stepOf(event.key, this.list, at, page);
    if (!step) return;
    handled(event);
    if ("fold" in step) this.events.fold(step.fold, !step.fold.open);
    else this.stand(step.to);
  }

  /** Put the keys on a row: a site is selected, a group only reached. */
  private stand(row: number): void {
    if (row >= 0) {
      this.onGroup = null;
      this.events.select(row);
    } else this.onGroup = this.group(row)?.key ?? null;
    this.reveal(row);
  }
}
