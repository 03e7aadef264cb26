/** Where the columns of the table stand, how wide they are, and which of them are whole in view. */
import { arranged, widths, type Column } from "./cells";
import type { Data } from "./data";
import { setAttribute } from "./dom";
import type { Port } from "./port";

const NARROWEST = 36;
/** Where the table has less room than this, what is wrong stands right behind the name. */
const NARROW = 560;
/** The name then takes at most this part of it. */
const NAME = 0.4;

export class Layout {
  /** The columns from left to right, as numbers in `table`. */
  places: number[] = [];
  /** Left and right edge of each column that is shown. */
  edges: [left: number, right: number][] = [];
  private table: readonly Column[] = [];
  private pixels: number[] = [];
  /** What the reader made of them. */
  private readonly dragged = new Map<string, number>();
  /** Columns that are not whole in view. */
  private cut = new Set<number>();
  private laid = "";
  private hidden: ReadonlySet<string> = new Set();
  private nonfinite = false;

  /**
   * @param element What scrolls.
   * @param port What of it is in view.
   * @param edge Shades the right edge as long as more columns follow there.
   * @param lines The cells of every row there is, the head's first.
   */
  constructor(
    private readonly element: HTMLElement,
    private readonly port: Port,
    private readonly edge: HTMLElement,
    private readonly lines: () => readonly HTMLElement[][],
  ) {}

  /** Begin anew with these columns. */
  use(table: readonly Column[]): void {
    this.table = table;
    this.pixels = [];
    this.edges = [];
    this.cut = new Set();
    this.laid = "";
  }

  /** Make the columns as wide as this data needs; `grown`: no narrower than they are. */
  fit(data: Data, hidden: ReadonlySet<string>, nonfinite: boolean, grown: boolean): void {
    const { table } = this;
    this.pixels = widths(table, data).map((width, at) => {
      const chosen = this.dragged.get(table[at]?.key ?? "");
      return chosen ?? Math.max(width, grown ? (this.pixels[at] ?? 0) : 0);
    });
    this.hidden = hidden;
    this.nonfinite = nonfinite;
    this.arrange(this.port.width);
  }

  private arrange(room: number): void {
    const places = arranged(this.table, this.nonfinite, room < NARROW);
    this.places = places.filter((at) => !this.hidden.has(this.table[at]?.key ?? ""));
  }

  /** Make a column as wide as the reader wants it; null: as wide as the data needs. */
  resize({ key }: Column, width: number | null, data: Data | null): void {
    const at = this.table.findIndex((column) => column.key === key);
    if (width === null) this.dragged.delete(key);
    else this.dragged.set(key, Math.max(NARROWEST, Math.round(width)));
    const own = data ? widths(this.table, data)[at] : undefined;
    this.pixels[at] = this.dragged.get(key) ?? own ?? NARROWEST;
  }

  /** Give the columns their places; where not all fit, the module's takes what the last whole one leaves over. */
  lay(): void {
    const room = this.port.width;
    this.arrange(room);
    const laid = [room, ...this.pixels, "", ...this.places].join();
    if (laid !== this.laid) {
      this.laid = laid;
      this.spread(room);
      for (const cells of this.lines()) this.place(cells);
    }
    this.crop();
  }

  /** Put the cells of a new row where the others have theirs. */
  adopt(cells: readonly HTMLElement[]): void {
    this.place(cells);
    this.veil(cells);
  }

  private spread(room: number): void {
    const chosen = this.dragged.has(this.table[0]?.key ?? "");
    const wanted = this.pixels[0] ?? 0;
    const name = chosen || room >= NARROW ? wanted : Math.min(wanted, Math.round(NAME * room));
    const wide = (at: number): number => (at ? (this.pixels[at] ?? 0) : name);
    const sum = this.places.reduce((all, at) => all + wide(at), 0);
    let whole = 0;
    for (const at of this.places) {
      if (whole + wide(at) > room) break;
      whole += wide(at);
    }
    const spare = chosen ? 0 : Math.max(0, room - whole);
    const module = name + spare;
    const columns = this.places.map((at) => (at ? `${this.pixels[at]}px` : `${module}px`));
    const { style } = this.element;
    style.setProperty("--columns", columns.join(" "));
    style.setProperty("--width", `${sum + spare}px`);
    style.setProperty("--module", `${module}px`);
    let left = 0;
    this.edges = [];
    for (const at of this.places) {
      const right = left + (at ? (this.pixels[at] ?? 0) : module);
      this.edges[at] = [left, right];
      left = right;
    }
  }

  private place(cells: readonly HTMLElement[]): void {
    cells.forEach((cell, at) => {
      const order = this.places.indexOf(at);
      cell.hidden = order < 0;
      cell.style.order = String(order);
      setAttribute(cell, "aria-colindex", String(order + 1));
    });
  }

  /** Hide columns of which only a part is in view: half a number reads as another one. */
  private crop(): void {
    const { left: begin, width } = this.port;
    const module = this.edges[0]?.[1] ?? 0;
    const last = this.edges.reduce((most, [, right]) => Math.max(most, right), 0);
    this.edge.hidden = !width || last <= begin + width + 1;
    const cut = new Set<number>();
    this.edges.forEach(([left, right], at) => {
      if (!at || !width) return;
      if (left < begin + module - 1 || right > begin + width + 1) cut.add(at);
    });
    if (cut.size === this.cut.size && [...cut].every((at) => this.cut.has(at))) return;
    this.cut = cut;
    for (const cells of this.lines()) this.veil(cells);
  }

  private veil(cells: readonly HTMLElement[]): void {
    cells.forEach((cell, at) => cell.classList.toggle("cut", this.cut.has(at)));
  }
}
