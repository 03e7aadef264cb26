/** A picture of a kept tensor, as the kernel sends it: at most 64 by 64 cells of one slice. */
import type { Asks } from "./asks";
import { decodePictures } from "./decode";
import { count, number, shape } from "./format";
import { reason } from "./trouble";
import type { Model, Picture } from "./types";

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
  private fault = "";
  private asked = "";
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly model: Model,
    private readonly asks: Asks,
  ) {}

  /** The picture of a row's tensor in a step, or in words why there is none yet; then it has been asked for. */
  of(row: number, step: number): Picture | string {
    this.take();
    const found = this.known.get(keyOf(row, step)) ?? this.known.get(keyOf(row, null));
    if (found) return found.about.why ?? found;
    if (this.fault && (this.asked === keyOf(row, step) || !this.asks.possible)) return this.fault;
    if (!this.asks.possible) return this.asks.why;
    const refusal = this.asks.refusal("picture");
    if (refusal && this.asked === keyOf(row, step)) return refusal;
    this.want(row, step);
    return "asking the kernel …";
  }

  private want(row: number, step: number): void {
    if (this.asked === keyOf(row, step)) return;
    this.asked = keyOf(row, step);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.asks.ask({ ask: "picture", row, step }), PAUSE);
  }

  /** An answer says what it answers: others may have been asked since, by this view or by another one. */
  private take(): void {
    const value = this.model.get("picture");
    if (value === this.read || value === undefined) return;
    this.read = value;
    this.fault = "";
    try {
      for (const picture of decodePictures(value)) this.known.set(keyOf(picture.row, picture.asked), picture);
    } catch (error) {
      // the numbers are shown all the same
      this.fault = `what came of the kept tensor cannot be read: ${reason(error)}`;
    }
  }

  stop(): void {
    clearTimeout(this.timer);
  }
}

function keyOf(row: number, step: number | null): string {
  return `${row} ${step ?? ""}`;
}
