/** The picture of a kept tensor on a canvas: what is not finite bears its sign, zero is the neutral middle. */
import type { Data } from "./data";
import { h, setAttribute, setText } from "./dom";
import { lookOf } from "./heatview";
import { describePicture, describeReach, reach, saidOfCell, signOfCell, type Pictures } from "./picture";
import { css, signed } from "./ramp";
import type { Picture } from "./types";

/** Pixels of a side at most, and of a cell: small tensors need not be large squares. */
const SIDE = 192;
const CELL = 18;
/** From so many pixels on a cell has room for a sign. */
const ROOM = 3;

export class PictureView {
  private readonly canvas = h("canvas", { class: "tensor", role: "img" });
  private readonly words = h("p", { class: "readout" });
  private readonly about = h("p", { class: "soft" });
  readonly element = h("figure", { class: "kept" }, h("figcaption", {}, h("b", {}, "kept tensor")), this.canvas, this.words, this.about);
  private picture: Picture | null = null;
  private size = 1;

  constructor(private readonly pictures: Pictures) {
    this.canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => this.say(offsetX, offsetY));
    this.canvas.addEventListener("pointerleave", () => this.say());
  }

  /** Show what was kept of a row; where the run keeps nothing there is nothing to show. */
  show(data: Data, row: number, width: number): void {
    this.element.hidden = data.status.comparison !== null || !data.status.keeps;
    if (this.element.hidden) return;
    const found = data.status.unkept[row] || this.pictures.of(row, data.value("step", row));
    this.picture = typeof found === "string" ? null : found;
    this.canvas.hidden = this.words.hidden = this.picture === null;
    this.element.classList.toggle("grey", this.picture === null);
    setText(this.about, typeof found === "string" ? found : describePicture(found));
    if (this.picture) {
      const { height, width: across } = this.picture;
      this.size = Math.max(1, Math.min(CELL, Math.floor(Math.min(SIDE / height, Math.min(width, 320) / across))));
      setAttribute(this.canvas, "aria-label", `${describePicture(this.picture)}; ${describeReach(reach(this.picture.cells))}`);
      this.draw();
    }
    this.say();
  }

  draw(): void {
    const { picture, canvas, size } = this;
    if (!picture || this.element.hidden) return;
    const dense = Math.min(3, window.devicePixelRatio || 1);
    canvas.width = picture.width * size * dense;
    canvas.height = picture.height * size * dense;
    canvas.style.width = `${picture.width * size}px`;
    canvas.style.height = `${picture.height * size}px`;
    const pen = canvas.getContext("2d");
    if (!pen) return;
    pen.scale(dense, dense);
    const look = lookOf(canvas);
    const most = reach(picture.cells) || 1;
    for (let at = 0; at < picture.cells.length; at++) {
      const value = picture.cells[at] as number;
      const [x, y] = [(at % picture.width) * size, Math.floor(at / picture.width) * size];
      const sign = signOfCell(value);
      pen.fillStyle = sign ? look.bad : css(signed(rooted(value / most), look.theme));
      pen.fillRect(x, y, size, size);
      if (sign && size >= ROOM) mark(pen, sign, x, y, size, look.page);
    }
  }

  private say(x = -1, y = -1): void {
    if (!this.picture) return setText(this.words, "");
    setText(this.words, saidOfCell(this.picture, x, y, this.size) || describeReach(reach(this.picture.cells)));
  }
}

/** Square roots of magnitudes: small values are still seen beside large ones. */
function rooted(part: number): number {
  return Math.sign(part) * Math.sqrt(Math.abs(part));
}

/** A cross for NaN, a plus or a minus for the infinities. */
function mark(pen: CanvasRenderingContext2D, sign: string, x: number, y: number, size: number, ink: string): void {
  const inset = size > 6 ? size / 4 : 0.5;
  const [left, right, top, bottom] = [x + inset, x + size - inset, y + inset, y + size - inset];
  const [middle, centre] = [x + size / 2, y + size / 2];
  const lines: [number, number, number, number][] =
    sign === "NaN" ? [[left, top, right, bottom], [left, bottom, right, top]]
    : sign === "+Inf" ? [[left, centre, right, centre], [middle, top, middle, bottom]]
    : [[left, centre, right, centre]];
  pen.strokeStyle = ink;
  pen.lineWidth = size > 8 ? 1.5 : 1;
  pen.beginPath();
  for (const [fromX, fromY, toX, toY] of lines) {
    pen.moveTo(fromX, fromY);
    pen.lineTo(toX, toY);
  }
  pen.stroke();
}
