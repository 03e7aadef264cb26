/** The heat map on its canvas, with a line under it that says what the pointer or the keys are at. */
import type { Data } from "./data";
import { h, setAttribute, setText } from "./dom";
import { percent } from "./format";
import {
  cellAt, columnsOf, heatOf, heatTicks, limitLines, OF_STRIP, OF_ZERO, placeOf, strength,
  type Cell, type Heat, type Place,
} from "./heatmap";
import { describeHeat, saidOf, signRuns } from "./heatwords";
import { handled } from "./keys";
import { shade, type Theme } from "./ramp";

const HEIGHT = 104;
const AXIS = 13;
const LABEL = 13;
/** Left of the drawings: what is written along their heights. */
export const GUTTER = 34;

export class HeatView {
  private readonly canvas = h("canvas", { class: "heat", role: "img", tabindex: 0 });
  private readonly words = h("p", { class: "readout" });
  private readonly legend = h("span", { class: "soft" });
  readonly element = h(
    "figure",
    { class: "over-steps" },
    h("figcaption", { title: "powers of two up" }, h("b", {}, "values over steps"), " ", this.legend),
    this.canvas,
    this.words,
  );
  private heat: Heat | null = null;
  private place: Place | null = null;
  private cell: Cell | null = null;
  private chosen = -1;
  private dtype = "";
  private lines: { y: number; top: boolean }[] = [];

  constructor() {
    this.canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => this.at(offsetX, offsetY));
    this.canvas.addEventListener("pointerleave", () => this.go(null));
    this.canvas.addEventListener("blur", () => this.go(null));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  /** Show the steps of a row; where only one is known, say why there are no more. */
  show(data: Data, row: number, width: number): void {
    const columns = columnsOf(data, row);
    const few = columns.length < 2;
    this.canvas.hidden = few;
    // two runs are shown at the step in which they part, and at no other
    this.element.hidden = few && data.status.comparison !== null;
    setText(this.legend, "");
    if (few) {
      this.heat = null;
      const why = data.history.why || (data.status.open ? "this is the first step that was seen" : "of this row one step is known");
      setText(this.words, why);
      this.words.classList.remove("at");
      return;
    }
    const { least, most } = this.heat = heatOf(columns, data.status.dtype_limits[data.site(row).dtype]);
    setText(this.legend, least < most ? `light ${percent(least, 1)} %, strong ${percent(most, 1)} %` : "");
    const { dtype } = data.site(row);
    const limits = data.status.dtype_limits[dtype];
    this.dtype = dtype;
    this.place = placeOf(this.heat, width, HEIGHT, GUTTER);
    this.lines = limitLines(this.heat, this.place, limits);
    this.chosen = data.moment === null ? -1 : columns.findIndex(({ step }) => step === data.value("step", row));
    if (this.cell && (this.cell.column >= columns.length || this.cell.cell >= 2 * this.heat.cells)) this.cell = null;
    setAttribute(this.canvas, "aria-label", describeHeat(this.heat));
    this.draw();
    this.say();
  }

  /** Draw anew: the theme may have changed. */
  draw(): void {
    const { heat, place, canvas } = this;
    if (!heat || !place) return;
    const { width, height } = { width: place.right, height: HEIGHT + AXIS };
    const dense = Math.min(3, window.devicePixelRatio || 1);
    canvas.width = Math.round(width * dense);
    canvas.height = Math.round(height * dense);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    if (!pen) return;
    pen.scale(dense, dense);
    const look = lookOf(canvas);
    paintCells(pen, heat, place, look);
    this.paintFrame(pen, heat, place, look);
    paintSigns(pen, heat, place, look);
    this.paintMarks(pen, heat, place, look);
  }

  private paintFrame(pen: CanvasRenderingContext2D, heat: Heat, place: Place, look: Look): void {
    pen.font = `10px ${look.font}`;
    pen.fillStyle = look.soft;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const { y, words } of heatTicks(heat, place, LABEL)) {
      pen.fillText(words, place.left - 5, Math.min(HEIGHT - 4, Math.max(5, y)));
    }
    pen.strokeStyle = look.line;
    pen.strokeRect(place.left - 0.5, place.top + 0.5, place.right - place.left, place.bottom - place.top - 1);
    pen.textBaseline = "alphabetic";
    pen.textAlign = "left";
    const steps = heat.columns.map(({ step }) => step);
    pen.fillText(`step ${steps[0]}`, place.left, HEIGHT + AXIS - 2);
    pen.textAlign = "right";
    pen.fillText(String(steps.at(-1)), place.right, HEIGHT + AXIS - 2);
  }

  private paintMarks(pen: CanvasRenderingContext2D, heat: Heat, place: Place, look: Look): void {
    pen.lineWidth = 1;
    pen.strokeStyle = look.text;
    pen.setLineDash([4, 3]);
    pen.font = `9.5px ${look.font}`;
    for (const { y, top } of this.lines) {
      const at = Math.round(y) + 0.5;
      stroke(pen, place.left, at, place.right, at);
      const words = top ? `largest ${this.dtype}` : `smallest ${this.dtype}`;
      pen.textAlign = "right";
      pen.textBaseline = at > HEIGHT - 14 ? "bottom" : "top";
      outlined(pen, words, place.right - 3, at + (at > HEIGHT - 14 ? -1 : 2), look);
    }
    pen.setLineDash([]);
    if (this.chosen >= 0) {
      const [x, width] = [place.left + this.chosen * place.columnWidth, place.columnWidth];
      pen.lineWidth = 1.5;
      pen.strokeRect(x + 0.5, 0.75, Math.max(2, width - 1), HEIGHT - 1.5);
      pen.font = `600 10px ${look.font}`;
      pen.fillStyle = look.text;
      pen.textBaseline = "alphabetic";
      const words = `▴ ${heat.columns[this.chosen]?.step}`;
      const room = pen.measureText(words).width / 2;
      pen.textAlign = "center";
      outlined(pen, words, Math.min(place.right - room, Math.max(place.left + room, x + width / 2)), HEIGHT + AXIS - 2, look);
    }
    if (this.cell) paintCursor(pen, this.cell, heat, place, look);
  }

  private at(x: number, y: number): void {
    const found = this.heat && this.place ? cellAt(this.heat, this.place, x, y) : null;
    if (found?.column !== this.cell?.column || found?.cell !== this.cell?.cell) this.go(found);
  }

  private go(cell: Cell | null): void {
    this.cell = cell;
    this.draw();
    this.say();
  }

  private say(): void {
    const { heat, cell } = this;
    if (!heat) return;
    setAttribute(this.words, "aria-live", cell ? "polite" : null);
    this.words.classList.toggle("at", cell !== null);
    setText(this.words, cell ? saidOf(heat, cell) : "");
  }

  private key(event: KeyboardEvent): void {
    const { heat } = this;
    const [along, up] = ({ ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] } as const)[event.key] ?? [0, 0];
    if (!heat || (!along && !up)) return;
    handled(event);
    const order = stopsOf(heat);
    const { column, cell } = this.cell ?? { column: heat.columns.length - 1 - along, cell: order[0] as number };
    const at = Math.max(0, order.indexOf(cell)) + up;
    this.go({
      column: Math.min(heat.columns.length - 1, Math.max(0, column + along)),
      cell: order[Math.min(order.length - 1, Math.max(0, at))] as number,
    });
  }
}

/** What the up and down keys stop at, from the top down. */
function stopsOf({ cells, halves }: Heat): number[] {
  const half = (from: number): number[] => Array.from({ length: cells }, (_, k) => from + k);
  return [OF_STRIP, ...(halves.positive ? half(0) : []), ...(halves.zero ? [OF_ZERO] : []), ...(halves.negative ? half(cells) : [])];
}

interface Look {
  theme: Theme;
  text: string;
  soft: string;
  line: string;
  bad: string;
  page: string;
  font: string;
}

/** The colours of the page round about. */
export function lookOf(element: HTMLElement): Look {
  const style = getComputedStyle(element);
  const of = (name: string, otherwise: string): string => style.getPropertyValue(name).trim() || otherwise;
  const dark = element.closest("[data-theme]")?.getAttribute("data-theme") === "dark";
  return {
    theme: dark ? "dark" : "light",
    text: of("--text", "CanvasText"),
    soft: of("--soft", "GrayText"),
    line: of("--line", "GrayText"),
    bad: of("--bad", "CanvasText"),
    page: of("--page", "Canvas"),
    font: style.fontFamily,
  };
}

const SHADES: Partial<Record<Theme, Uint32Array>> = {};

/** All shades as pixels. */
function shadesOf(theme: Theme): Uint32Array {
  const bytes = (at: number): number[] => [...shade(at / 255, theme), 255];
  return (SHADES[theme] ??= new Uint32Array(Uint8Array.from(Array.from({ length: 256 }, (_, at) => bytes(at)).flat()).buffer));
}

/** One pixel per cell, drawn large: four thousand cells cost as much as one picture. */
function paintCells(pen: CanvasRenderingContext2D, heat: Heat, place: Place, { theme }: Look): void {
  const { columns, cells, shares, halves, most } = heat;
  const small = document.createElement("canvas");
  small.width = columns.length;
  small.height = 2 * cells + 1;
  const ink = small.getContext("2d");
  if (!ink) return;
  const image = ink.createImageData(small.width, small.height);
  const pixels = new Uint32Array(image.data.buffer);
  const shades = shadesOf(theme);
  const dot = (column: number, line: number, share: number): void => {
    if (share > 0) pixels[line * columns.length + column] = shades[Math.round(255 * strength(share, most))] as number;
  };
  columns.forEach(({ histogram, total }, column) => {
    for (let cell = 0; cell < 2 * cells; cell++) dot(column, cell, shares[column * 2 * cells + cell] as number);
    dot(column, 2 * cells, total ? histogram.zero / total : 0);
  });
  ink.putImageData(image, 0, 0);
  pen.imageSmoothingEnabled = false;
  const width = place.right - place.left;
  const put = (from: number, lines: number, top: number, height: number): void =>
    pen.drawImage(small, 0, from, columns.length, lines, place.left, top, width, height);
  if (halves.positive) put(0, cells, place.positive, cells * place.cellHeight);
  if (halves.zero) put(2 * cells, 1, place.zero.top + 1, place.zero.height - 2);
  if (halves.negative) put(cells, cells, place.negative, cells * place.cellHeight);
}

/** Over each run of columns that are not finite, or nothing but zeros, its sign. */
function paintSigns(pen: CanvasRenderingContext2D, { columns }: Heat, place: Place, look: Look): void {
  pen.font = `700 10px ${look.font}`;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  for (const { sign, from, to } of signRuns(columns)) {
    const [left, right] = [place.left + from * place.columnWidth, place.left + to * place.columnWidth];
    const middle = Math.min(place.right - 5, Math.max(place.left + 5, (left + right) / 2));
    pen.fillStyle = sign === "0" ? look.soft : look.bad;
    pen.fillRect(left, place.strip - 2.5, Math.max(2, right - left), 2);
    outlined(pen, sign, middle, place.strip / 2 - 1, look);
  }
}

function paintCursor(pen: CanvasRenderingContext2D, { column, cell }: Cell, heat: Heat, place: Place, look: Look): void {
  const x = place.left + column * place.columnWidth;
  const negative = cell >= heat.cells;
  const top =
    cell === OF_STRIP ? 0
    : cell === OF_ZERO ? place.zero.top
    : negative ? place.negative + (cell - heat.cells) * place.cellHeight
    : place.positive + cell * place.cellHeight;
  const tall = cell === OF_STRIP ? place.strip : cell === OF_ZERO ? place.zero.height : place.cellHeight;
  pen.lineWidth = 3;
  pen.strokeStyle = look.page;
  const box = [x - 0.5, top - 0.5, Math.max(3, place.columnWidth + 1), Math.max(3, tall + 1)] as const;
  pen.strokeRect(...box);
  pen.lineWidth = 1.25;
  pen.strokeStyle = look.text;
  pen.strokeRect(...box);
}

function stroke(pen: CanvasRenderingContext2D, fromX: number, fromY: number, toX: number, toY: number): void {
  pen.beginPath();
  pen.moveTo(fromX, fromY);
  pen.lineTo(toX, toY);
  pen.stroke();
}

/** Text that can be read over anything. */
function outlined(pen: CanvasRenderingContext2D, words: string, x: number, y: number, { page, text }: Look): void {
  const ink = pen.fillStyle;
  const [line, dash] = [pen.strokeStyle, pen.getLineDash()];
  pen.setLineDash([]);
  pen.lineWidth = 3;
  pen.lineJoin = "round";
  pen.strokeStyle = page;
  pen.strokeText(words, x, y);
  pen.fillStyle = ink === page ? text : ink;
  pen.fillText(words, x, y);
  pen.lineWidth = 1;
  pen.strokeStyle = line;
  pen.setLineDash(dash);
}

