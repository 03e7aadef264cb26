/**
 * The table: a grid of which only the rows in view exist.
 *
 * Row elements are reused in a ring, so that scrolling fills just the rows that enter.
 */
import { TABLE, widths, type Column } from "./columns";
import type { Data, Order } from "./data";
import { h, setAttribute, setText } from "./dom";
import { power } from "./format";
import type { Axis } from "./histogram";
import { handled } from "./keys";

const ROW_HEIGHT = 24;
const HEAD_HEIGHT = 25;
const OVERSCAN = 4;

interface Row {
  element: HTMLElement;
  cells: HTMLElement[];
  /** The site and the version of the data it shows. */
  site: number;
  version: number;
}

export interface TableEvents {
  select(row: number): void;
  sort(order: Order): void;
}

export class Table {
  readonly element: HTMLElement;
  private readonly body = h("div", { class: "rows", role: "rowgroup" });
  private readonly heads: HTMLElement[];
  private readonly empty = h("div", { class: "empty" });
  private readonly pool: Row[] = [];
  private rows: readonly number[] = [];
  private data: Data | null = null;
  private axis: Axis = { low: 0, high: 0 };
  private selected = -1;
  private version = 0;
  private order: Order = { by: "execution", descending: false };

  constructor(private readonly events: TableEvents) {
    this.heads = TABLE.map((column, index) => this.head(column, index));
    const head = h("div", { class: "row head", role: "row", "aria-rowindex": 1 }, ...this.heads);
    this.element = h(
      "div",
      {
        class: "table",
        role: "grid",
        tabindex: 0,
        "aria-label": "Observed tensors",
        "aria-colcount": TABLE.length,
        onscroll: () => this.paint(),
        onkeydown: (event: KeyboardEvent) => this.key(event),
      },
      h("div", { class: "heads", role: "rowgroup" }, head),
      this.body,
      this.empty,
    );
  }

  /** Show these rows of this data; what is in view stays where it is. */
  show(data: Data, rows: readonly number[], axis: Axis, order: Order, emptyText: string): void {
    if (this.data?.sites !== data.sites) this.setWidths(widths(data));
    this.data = data;
    this.rows = rows;
    this.axis = axis;
    this.order = order;
    this.version++;
    setAttribute(this.element, "aria-rowcount", String(rows.length + 1));
    this.body.style.height = `${rows.length * ROW_HEIGHT}px`;
    setText(this.empty, rows.length ? "" : emptyText);
    this.empty.hidden = rows.length > 0;
    this.paintHeads(axis);
    this.paint();
  }

  select(row: number): void {
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
      if (row.site === this.selected) active = row.element.id;
    }
    for (const row of this.pool) row.element.hidden = !used.has(row);
    setAttribute(this.element, "aria-activedescendant", active);
  }

  private setWidths(pixels: number[]): void {
    const columns = pixels.map((width, index) => (index ? `${width}px` : `minmax(${width}px, 1fr)`));
    this.element.style.setProperty("--columns", columns.join(" "));
    this.element.style.setProperty("--width", `${pixels.reduce((sum, width) => sum + width, 0)}px`);
  }

  private grow(size: number): void {
    while (this.pool.length < size) {
      const cells = TABLE.map((column, index) =>
        h("div", { class: `cell ${column.align} ${column.key}`, role: "gridcell", "aria-colindex": index + 1 }),
      );
      const element = h("div", { class: "row", role: "row", id: `row-${this.pool.length}` }, ...cells);
      const row: Row = { element, cells, site: -1, version: -1 };
      element.addEventListener("click", () => this.events.select(row.site));
      this.pool.push(row);
      this.body.append(element);
      for (const each of this.pool) each.version = -1; // a larger ring holds other rows
    }
  }

  private fill(row: Row, index: number): void {
    const site = this.rows[index] as number;
    const data = this.data as Data;
    const selected = site === this.selected;
    row.element.style.top = `${index * ROW_HEIGHT}px`;
    setAttribute(row.element, "aria-rowindex", String(index + 2));
    setAttribute(row.element, "aria-selected", String(selected));
    if (row.site === site && row.version === this.version) return;
    row.site = site;
    row.version = this.version;
    row.element.classList.toggle("inherited", data.inherited(site));
    row.element.classList.toggle("culprit", data.culprit === site);
    TABLE.forEach((column, at) => column.fill(row.cells[at] as HTMLElement, data, site, this.axis));
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
    const attributes = { role: "columnheader", "aria-sort": "none", "aria-colindex": index + 1 };
    return h("div", { class: `cell ${column.align} ${column.key}`, ...attributes }, button);
  }

  /** First click: the useful direction; second: the other one; third: execution order again. */
  private nextOrder({ key, descendingFirst }: Column): Order {
    if (this.order.by !== key) return { by: key, descending: descendingFirst };
    if (this.order.descending === descendingFirst) return { by: key, descending: !descendingFirst };
    return { by: "execution", descending: false };
  }

  private paintHeads(axis: Axis): void {
    this.heads.forEach((head, index) => {
      const sorted = this.order.by === TABLE[index]?.key;
      const direction = this.order.descending ? "descending" : "ascending";
      setAttribute(head, "aria-sort", sorted ? direction : "none");
      const arrow = head.querySelector(".arrow") as Element;
      setText(arrow, sorted ? (this.order.descending ? "▾" : "▴") : "");
      if (TABLE[index]?.key === "values") setText(head.querySelector(".scale") as Element, scale(axis));
    });
  }

  /** The heads are one stop of the tab key; the arrows move between them. */
  private headKey(event: KeyboardEvent, index: number): void {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const to = this.heads[index + (event.key === "ArrowLeft" ? -1 : 1)]?.firstElementChild;
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
    const at = this.rows.indexOf(this.selected);
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
    const row = this.rows[Math.min(end, Math.max(0, to))] as number;
    this.events.select(row);
    this.reveal(row);
  }
}

/** What the inner and the outer end of the histograms stand for. */
function scale({ low, high }: Axis): string {
  return `±${power(low)}…${power(high)}`;
}
