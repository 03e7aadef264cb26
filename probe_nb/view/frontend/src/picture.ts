/** A picture of a kept tensor, as the kernel sends it: at most 64 by 64 cells of one slice. */
import type { Asks } from "./asks";
import { asBytes } from "./decode";
import { count, number, shape } from "./format";
import type { Model } from "./types";

const MAGIC = 0x31424e50;
const VERSION = 4;
const HEAD = 32;

export interface Picture {
  row: number;
  height: number;
  width: number;
  /** Row by row; NaN where an element of the cell is NaN. */
  cells: Float64Array;
  about: About;
}

export interface About {
  /** Why there is no picture; absent where there is one. */
  why?: string;
  step?: number;
  call?: number;
  shape?: number[];
  dtype?: string;
  /** In words: which slice, how many elements share a cell, what of complex numbers is drawn. */
  slice?: string;
  pooled?: string;
  part?: string;
  nan?: number;
  posinf?: number;
  neginf?: number;
}

/** Read pictures, one after the other. */
export function decodePictures(value: unknown): Picture[] {
  const bytes = asBytes(value);
  // typed views need an aligned start, which a message does not promise
  const { buffer, byteOffset, byteLength } = bytes.byteOffset % 8 === 0 ? bytes : bytes.slice();
  const found: Picture[] = [];
  for (let at = 0; at < byteLength; ) {
    if (at + HEAD > byteLength) throw new Error(`a picture ends after ${byteLength} bytes`);
    const [magic, version, height = 0, width = 0, size = 0] = new Uint32Array(buffer, byteOffset + at, HEAD / 4);
    if (magic !== MAGIC || version !== VERSION) throw new Error(`a picture has version ${version}, this inspector reads ${VERSION}`);
    const begin = at + HEAD + Math.ceil(size / 8) * 8;
    const end = begin + 8 * height * width;
    if (end > byteLength) throw new Error(`a picture ends after ${byteLength} bytes, ${end} expected`);
    const { row, ...about } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, byteOffset + at + HEAD, size))) as About & { row: number };
    found.push({ row, height, width, cells: new Float64Array(buffer, byteOffset + begin, height * width), about });
    at = end;
  }
  return found;
}

/** The largest finite magnitude: where the colours end. NaN where no cell is finite. */
export function reach(cells: ArrayLike<number>): number {
  let most = NaN;
  for (let at = 0; at < cells.length; at++) {
    const size = Math.abs(cells[at] as number);
    if (size < Infinity && !(size <= most)) most = size;
  }
  return most;
}

/** The sign of a cell that is not finite. */
export function signOfCell(value: number): "" | "NaN" | "+Inf" | "-Inf" {
  if (Number.isNaN(value)) return "NaN";
  return Number.isFinite(value) ? "" : value > 0 ? "+Inf" : "-Inf";
}

/** What is drawn, in words: of which step, which part, how pooled. */
export function describePicture({ about }: Picture): string {
  const { nan = 0, posinf = 0, neginf = 0 } = about;
  const some = [[nan, "NaN (✕)"], [posinf, "+Inf (+)"], [neginf, "-Inf (−)"]] as const;
  const bad = some.filter(([n]) => n > 0).map(([n, name]) => `${count(n)} ${name}`);
  const parts = [
    `step ${about.step}${about.call ? `, call ${about.call}` : ""}`,
    about.slice ? `${about.slice} of ${shape(about.shape ?? [])}` : shape(about.shape ?? []),
    about.part ?? "",
    about.pooled ?? "",
    bad.join(", "),
  ];
  return parts.filter(Boolean).join("; ");
}

/** The scale in words. */
export function describeReach(most: number): string {
  if (Number.isNaN(most)) return "no cell is finite";
  return most > 0 ? `colours from ${number(-most)} to ${number(most)}, 0 in the middle` : "every finite cell is 0";
}

/** The cell under a point of a drawing of this size, and what it says. */
export function saidOfCell(picture: Picture, x: number, y: number, size: number): string {
  const column = Math.floor(x / size);
  const line = Math.floor(y / size);
  if (column < 0 || line < 0 || column >= picture.width || line >= picture.height) return "";
  const value = picture.cells[line * picture.width + column] as number;
  return `cell [${line}, ${column}]: ${signOfCell(value) || number(value, 5)}`;
}

/** Long enough that walking through the table does not ask for every row. */
const PAUSE = 150;

/** The pictures of a model: embedded ones, and those that the kernel is asked for when it is idle. */
export class Pictures {
  private readonly known = new Map<string, Picture>();
  private read: unknown;
  private asked: { row: number; key: string } | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly model: Model,
    private readonly asks: Asks,
  ) {}

  /** The picture of a row's tensor in a step, or in words why there is none yet; then it has been asked for. */
  of(row: number, step: number): Picture | string {
    this.take();
    const key = `${row} ${step}`;
    const found = this.known.get(key) ?? this.known.get(`${row}`);
    if (found) return found.about.why ?? found;
    if (!this.asks.possible) return this.asks.why;
    if (this.asked?.key === key && this.asks.refusal("picture")) return this.asks.refusal("picture");
    this.want(row, step, key);
    return "asking the kernel …";
  }

  private want(row: number, step: number, key: string): void {
    if (this.asked?.key === key) return;
    this.asked = { row, key };
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.asks.ask({ ask: "picture", row, step }), PAUSE);
  }

  private take(): void {
    const value = this.model.get("picture");
    if (value === this.read || value === undefined) return;
    this.read = value;
    for (const picture of decodePictures(value)) {
      const asked = this.asked?.row === picture.row ? this.asked.key : `${picture.row}`;
      this.known.set(asked, picture);
    }
  }

  stop(): void {
    clearTimeout(this.timer);
  }
}
