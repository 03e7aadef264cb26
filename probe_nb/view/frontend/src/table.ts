/**
 * The table: a grid of which only the rows in view exist.
 *
 * Row elements are reused in a ring, so that scrolling fills just the rows that enter.
 */
import type { Column } from "./cells";
import type { Data, Order } from "./data";
import { h, setAttribute, setText } from "./dom";
import { power } from "./format";
import { fillGroup } from "./grouprow";
import type { Axis } from "./histogram";
import { handled } from "./keys";
import { Layout } from "./layout";
import { dragged } from "./resize";
import type { Group, Listed } from "./tree";
import { INF, NAN } from "./words";

const ROW_HEIGHT = 24;
const HEAD_HEIGHT = 25;
const OVERSCAN = 4;
const STEP = 12;

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
  private readonly headRow = h("div", { class: "row head", role: "row", "aria-rowindex": 1 });
  private table: readonly Column[] = [];
  private heads: HTMLElement[] = [];
  private readonly empty = h("div", { class: "empty" });
  private pool: Row[] = [];
  private rows: readonly number[] = [];
  private groups: readonly Group[] = [];
  /** The group that the keys stand on, by its key. */
  private onGroup: string | null = null;
  private data: Data | null = null;
  private axis: Axis = { low: 0, high: 0 };
  private selected = -1;
  private version = 0;
  private order: Order = { by: "execution", descending: false };
  private readonly layout: Layout;

  constructor(private readonly events: TableEvents) {
    this.element = h(
      "div",
      {
        class: "table",
        role: "grid",
        tabindex: 0,
        "aria-label": "Observed tensors",
        onscroll: () => this.paint(),
        onkeydown: (event: KeyboardEvent) => this.key(event),
      },
      h("div", { class: "heads", role: "rowgroup" }, this.headRow),
      this.body,
      this.empty,
    );
    this.layout = new Layout(this.element, this.edge, () => [this.heads, ...this.pool.map((row) => row.cells)]);
  }

  /** Begin anew with these columns, unless they are those that stand here. */
  private use(table: readonly Column[]): void {
    if (table === this.table) return;
    this.table = table;
    this.layout.use(table);
    this.heads = table.map((column, index) => this.head(column, index));
    this.headRow.replaceChildren(...this.heads);
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
    const nonfinite = data.sites.rows.some((_, row) => data.bits(row) & (NAN | INF));
    // of the same rows columns only grow: they do not move to and fro while numbers change
    this.layout.fit(data, hidden, nonfinite, this.data?.sites === data.sites);
    this.data = data;
    const { rows, groups } = listed;
    this.rows = rows;
    this.groups = groups;
    if (!groups.some(({ key }) => key === this.onGroup)) this.onGroup = null;
    this.axis = axis;
    this.order = order;
    this.version++;
    setAttribute(this.element, "aria-rowcount", String(rows.length + 1));
    setAttribute(this.element, "aria-colcount", String(this.layout.places.length));
    this.body.style.height = `${rows.length * ROW_HEIGHT}px`;
    setText(this.empty, rows.length ? "" : emptyText);
    this.empty.hidden = rows.length > 0;
    this.paintHeads(axis);
    this.paint();
  }

  select(row: number): void {
    if (row !== this.selected) this.onGroup = null;
    this.selected = row;
    this.paint();
  }

  /** Bring a row into view; with room above it, where what led to it stands. */
  reveal(row: number, lead = 0): void {
    const index = this.rows.indexOf(row);
    if (index < 0) return;
    const top = index * ROW_HEIGHT;
    const height = this.element.clientHeight - HEAD_HEIGHT;
    const { scrollTop } = this.element;
    if (top < scrollTop || lead) this.element.scrollTop = top - lead * ROW_HEIGHT;
    else if (top + ROW_HEIGHT > scrollTop + height) this.element.scrollTop = top + ROW_HEIGHT - height;
    this.paint();
  }

  /** The row at the upper edge and how far it is scrolled out, to come back to it when rows are put in above. */
  anchor(): { row: number; offset: number } {
    const index = Math.floor(this.element.scrollTop / ROW_HEIGHT);
    return { row: this.rows[index] ?? -1, offset: this.element.scrollTop - index * ROW_HEIGHT };
  }

  restore(row: number, offset: number): void {
    const index = this.rows.indexOf(row);
    if (index >= 0) this.element.scrollTop = index * ROW_HEIGHT + offset;
  }

  paint(): void {
    if (!this.data) return;
    this.layout.lay();
    const height = this.element.clientHeight || 400;
    const first = Math.max(0, Math.floor(this.element.scrollTop / ROW_HEIGHT) - OVERSCAN);
    const last = Math.min(this.rows.length, first + Math.ceil(height / ROW_HEIGHT) + 2 * OVERSCAN);
    this.grow(Math.min(this.rows.length, Math.ceil(height / ROW_HEIGHT) + 2 * OVERSCAN));
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

  /** Whether the keys stand on this row. */
  private current(row: number): boolean {
    return row < 0 ? this.groups[-row - 1]?.key === this.onGroup : this.onGroup === null && row === this.selected;
  }

  /** Select a site, or fold a group. */
  private choose(row: number): void {
    const group = this.groups[-row - 1];
    if (row >= 0) {
      this.onGroup = null;
      this.events.select(row);
    } else if (group) {
      this.onGroup = group.key;
      this.events.fold(group, !group.open);
    }
  }

  private fill(row: Row, index: number): void {
    const site = this.rows[index] as number;
    const data = this.data as Data;
    row.element.style.top = `${index * ROW_HEIGHT}px`;
    setAttribute(row.element, "aria-rowindex", String(index + 2));
    setAttribute(row.element, "aria-selected", String(this.current(site)));
    if (row.site === site && row.version === this.version) return;
    row.site = site;
    row.version = this.version;
    const group = this.groups[-site - 1];
    row.group.hidden = !group;
    row.element.classList.toggle("folds", group !== undefined);
    setAttribute(row.element, "aria-expanded", group ? String(group.open) : null);
    row.element.classList.toggle("inherited", !group && (data.inherited(site) || data.follows(site)));
    row.element.classList.toggle("culprit", data.culprit === site);
    if (group) fillGroup(row.group, group);
    else for (const at of this.layout.places) this.table[at]?.fill(row.cells[at] as HTMLElement, data, site, this.axis);
  }

  private head(column: Column, index: number): HTMLElement {
    const button = h(
      "button",
      { type: "button", tabindex: index ? -1 : 0, title: `${column.title} (click to sort)` },
      h("span", {}, column.label),
      h("span", { class: "arrow", "aria-hidden": "true" }),
      h("span", { class: "scale" }),
    );
    button.addEventListener("click", () => this.events.sort(this.nextOrder(column)));
    button.addEventListener("keydown", (event) => this.headKey(event, index));
    const attributes = { role: "columnheader", "aria-sort": "none" };
    const edge = h("span", { class: "grip", "aria-hidden": "true" });
    dragged(edge, () => this.layout.edges[index] ?? [0, 0], (width) => this.resize(column, width));
    return h("div", { class: `cell ${column.align} ${column.key}`, ...attributes }, button, edge);
  }

  private resize(column: Column, width: number | null): void {
    this.layout.resize(column, width, this.data);
    this.paint();
  }

  /** First click: the useful direction; second: the other one; third: execution order again. */
  private nextOrder({ key, descendingFirst }: Column): Order {
    if (this.order.by !== key) return { by: key, descending: descendingFirst };
    if (this.order.descending === descendingFirst) return { by: key, descending: !descendingFirst };
    return { by: "execution", descending: false };
  }

  private paintHeads(axis: Axis): void {
    this.heads.forEach((head, index) => {
      const sorted = this.order.by === this.table[index]?.key;
      const direction = this.order.descending ? "descending" : "ascending";
      setAttribute(head, "aria-sort", sorted ? direction : "none");
      const arrow = head.querySelector(".arrow") as Element;
      setText(arrow, sorted ? (this.order.descending ? "▾" : "▴") : "");
      if (this.table[index]?.key === "values") setText(head.querySelector(".scale") as Element, scale(axis));
    });
  }

  /** The heads are one stop of the tab key; the arrows move between them, and with shift make a column wider. */
  private headKey(event: KeyboardEvent, index: number): void {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    if (event.shiftKey) {
      handled(event);
      const [left = 0, right = 0] = this.layout.edges[index] ?? [];
      this.resize(this.table[index] as Column, right - left + (event.key === "ArrowLeft" ? -STEP : STEP));
      return;
    }
    const place = this.layout.places.indexOf(index) + (event.key === "ArrowLeft" ? -1 : 1);
    const to = this.heads[this.layout.places[place] ?? -1]?.firstElementChild;
    if (!(to instanceof HTMLElement)) return;
    handled(event);
    (event.currentTarget as HTMLElement).tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  }

  private key(event: KeyboardEvent): void {
    if (event.altKey || event.ctrlKey || event.metaKey || !this.rows.length) return;
    if (event.target !== this.element) return;
    const page = Math.max(1, Math.floor(this.element.clientHeight / ROW_HEIGHT) - 2);
    const at = this.rows.findIndex((row) => this.current(row));
    if (this.foldKey(event, at)) return;
    const end = this.rows.length - 1;
    const moves: Record<string, number> = {
      ArrowDown: at + 1,
      ArrowUp: at < 0 ? 0 : at - 1,
      PageDown: at + page,
      PageUp: at - page,
      Home: 0,
      End: end,
    };
    const to = moves[event.key];
    if (to === undefined) return;
    handled(event);
    this.stand(this.rows[Math.min(end, Math.max(0, to))] as number);
  }

  /** Put the keys on a row: a site is selected, a group only reached. */
  private stand(row: number): void {
    if (row >= 0) {
      this.onGroup = null;
      this.events.select(row);
    } else this.onGroup = this.groups[-row - 1]?.key ?? null;
    this.reveal(row);
  }

  /** In a folded list: right opens, left closes or goes to the group around, Enter does either. */
  private foldKey(event: KeyboardEvent, at: number): boolean {
    const row = this.rows[at];
    if (!this.groups.length || row === undefined) return false;
    const group = this.groups[-row - 1];
    const opens = event.key === "ArrowRight" || event.key === "Enter" || event.key === " ";
    const closes = event.key === "ArrowLeft" || event.key === "Enter" || event.key === " ";
    if (group && (group.open ? closes : opens)) this.events.fold(group, !group.open);
    else if (event.key === "ArrowLeft") this.stand(this.around(at));
    else return false;
    handled(event);
    return true;
  }

  /** The group that a row of the list stands in. */
  private around(at: number): number {
    const depth = this.groups[-(this.rows[at] as number) - 1]?.depth ?? Infinity;
    for (let index = at - 1; index >= 0; index--) {
      const row = this.rows[index] as number;
      const group = this.groups[-row - 1];
      if (group && group.open && group.depth < depth) return row;
    }
    return this.rows[at] as number;
  }
}

/** What the inner and the outer end of the histograms stand for. */
function scale({ low, high }: Axis): string {
  return `±${power(low)}…${power(high)}`;
}
