/** The row of heads: a click sorts, the right edge makes a column wider, and all of it by keys as well. */
import type { Column } from "./cells";
import type { Order } from "./data";
import { h, setAttribute, setText } from "./dom";
import { power } from "./format";
import type { Axis } from "./histogram";
import { handled } from "./keys";
import type { Layout } from "./layout";
import { dragged } from "./resize";

const STEP = 12;

export interface HeadEvents {
  sort(order: Order): void;
  /** Make a column so wide; null: as wide as the data needs. */
  resize(column: Column, width: number | null): void;
}

export class Heads {
  readonly element = h("div", { class: "row head", role: "row", "aria-rowindex": 1 });
  cells: HTMLElement[] = [];
  private table: readonly Column[] = [];
  private order: Order = { by: "execution", descending: false };

  constructor(
    private readonly layout: Layout,
    private readonly events: HeadEvents,
  ) {}

  use(table: readonly Column[]): void {
    this.table = table;
    this.cells = table.map((column, index) => this.head(column, index));
    this.element.replaceChildren(...this.cells);
  }

  show(order: Order, axis: Axis): void {
    this.order = order;
    this.cells.forEach((head, index) => {
      const sorted = order.by === this.table[index]?.key;
      setAttribute(head, "aria-sort", sorted ? (order.descending ? "descending" : "ascending") : "none");
      setText(head.querySelector(".arrow") as Element, sorted ? (order.descending ? "▾" : "▴") : "");
      if (this.table[index]?.key === "values") setText(head.querySelector(".scale") as Element, scale(axis));
    });
    this.keepStop();
  }

  private head(column: Column, index: number): HTMLElement {
    const button = h(
      "button",
      { type: "button", tabindex: -1, title: `${column.title} (click to sort)` },
      h("span", {}, column.label),
      h("span", { class: "arrow", "aria-hidden": "true" }),
      h("span", { class: "scale" }),
    );
    button.addEventListener("click", () => this.events.sort(this.nextOrder(column)));
    button.addEventListener("keydown", (event) => this.key(event, index));
    const edge = h("span", { class: "grip", "aria-hidden": "true" });
    dragged(edge, () => this.layout.edges[index] ?? [0, 0], (width) => this.events.resize(column, width));
    const attributes = { role: "columnheader", "aria-sort": "none" };
    return h("div", { class: `cell ${column.align} ${column.key}`, ...attributes }, button, edge);
  }

  /** First click: the useful direction; second: the other one; third: execution order again. */
  private nextOrder({ key, descendingFirst }: Column): Order {
    if (this.order.by !== key) return { by: key, descending: descendingFirst };
    if (this.order.descending === descendingFirst) return { by: key, descending: !descendingFirst };
    return { by: "execution", descending: false };
  }

  /** The heads are one stop of the tab key; the arrows move between them, and with shift make a column wider. */
  private key(event: KeyboardEvent, index: number): void {
    const way = event.key === "ArrowLeft" ? -1 : event.key === "ArrowRight" ? 1 : 0;
    if (!way) return;
    if (event.shiftKey) {
      handled(event);
      const [left = 0, right = 0] = this.layout.edges[index] ?? [];
      this.events.resize(this.table[index] as Column, right - left + way * STEP);
      return;
    }
    const to = this.layout.places[this.layout.places.indexOf(index) + way];
    if (to === undefined) return;
    handled(event);
    this.button(index).tabIndex = -1;
    this.button(to).tabIndex = 0;
    this.button(to).focus();
  }

  /** The stop of the tab key moves on where its column is not shown any more. */
  private keepStop(): void {
    const { places } = this.layout;
    if (places.some((at) => this.button(at).tabIndex === 0)) return;
    this.cells.forEach((_, at) => (this.button(at).tabIndex = at === places[0] ? 0 : -1));
  }

  private button(at: number): HTMLElement {
    return this.cells[at]?.firstElementChild as HTMLElement;
  }
}

/** What the inner and the outer end of the histograms stand for. */
function scale({ low, high }: Axis): string {
  return `±${power(low)}…${power(high)}`;
}
