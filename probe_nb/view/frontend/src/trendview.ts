/** The large trend: any statistic over the steps, of both runs where two are compared. */
import type { Data } from "./data";
import { h, s, setAttribute, setText } from "./dom";
import { GUTTER } from "./heatview";
import { series, STATISTICS, type Point, type Statistic } from "./series";
import { along, describe, layLine, nearest, said, scaleOf, written, type Box, type Line, type Scale } from "./trend";

const HEIGHT = 62;
const AXIS = 13;
/** Where the signs of what is not finite stand, if anything is not. */
const TOP = 13;
/** Signs closer to each other than this become one. */
const SIGN = 9;

export class TrendView {
  private readonly choice = h(
    "select",
    { "aria-label": "Statistic of the trend" },
    ...STATISTICS.map(({ key, name }) => h("option", { value: key }, name)),
  );
  private readonly scale = h("span", { class: "soft" });
  private readonly picture = h("div", { class: "canvas" });
  private readonly words = h("p", { class: "readout" });
  readonly element = h(
    "figure",
    { class: "trend" },
    h("figcaption", {}, h("b", {}, "trend"), " ", this.choice, " ", this.scale),
    this.picture,
    this.words,
  );
  private line: Line | null = null;
  private other: Line | null = null;
  /** The step that is told while the pointer is elsewhere: the chosen one, or the last. */
  private step = NaN;

  constructor(again: () => void) {
    this.choice.addEventListener("change", again);
    this.picture.addEventListener("pointermove", ({ offsetX }) => this.at(offsetX));
    this.picture.addEventListener("pointerleave", () => this.at(null));
  }

  private get statistic(): Statistic {
    return STATISTICS.find(({ key }) => key === this.choice.value) ?? (STATISTICS[0] as Statistic);
  }

  show(data: Data, row: number, width: number): void {
    const { statistic } = this;
    const now = series(data, row, statistic);
    const before = data.frame.compared ? series(data, row, statistic, "before") : [];
    const all = [...now, ...before];
    const scale = scaleOf(all.map(({ value }) => value));
    const steps = all.map(({ step }) => step);
    const [first, last] = [Math.min(...steps), Math.max(...steps)];
    const box: Box = { left: GUTTER + 4, right: width - 5, top: all.some(({ bad }) => bad) ? TOP + 3 : 6, bottom: HEIGHT - 4 };
    const x = along(first, last, box);
    this.line = layLine(now, x, scale, box);
    this.other = before.length ? layLine(before, x, scale, box) : null;
    const words = this.other ? `candidate: ${describe(now, statistic, scale)}; baseline: ${describe(before, statistic, scale)}` : describe(now, statistic, scale);
    setText(this.scale, all.length ? `${scale.kind} scale` : "");
    const own = data.value("step", row);
    const marked = data.moment === null || !(own >= 0) ? null : x(own);
    this.step = marked === null ? last : own;
    const svg = s(
      "svg",
      { viewBox: `0 0 ${width} ${HEIGHT + AXIS}`, width, height: HEIGHT + AXIS, role: "img", "aria-label": words },
      s("path", { class: "ground", d: `M${GUTTER} ${HEIGHT + 0.5}H${width}` }),
      ...rulers(scale, statistic, box, all),
      ...(marked === null ? [] : [s("path", { class: "chosen", d: `M${marked} ${TOP}V${HEIGHT}` })]),
      ...(this.other ? [s("path", { class: "line before", d: this.other.path }), s("path", { class: "dot before", d: this.other.dots })] : []),
      s("path", { class: "line", d: this.line.path }),
      s("path", { class: "dot", d: this.line.dots + lastDot(this.line) }),
      ...signs([...this.line.marks, ...(this.other?.marks ?? [])]),
      ...(all.length ? foot(first, last, width) : []),
      s("path", { class: "cursor" }),
    );
    this.picture.replaceChildren(svg);
    this.at(null);
  }

  private at(x: number | null): void {
    const cursor = this.picture.querySelector(".cursor");
    const found = x === null || !this.line ? -1 : nearest(this.line.places, x);
    const place = this.line?.places[found];
    this.words.classList.toggle("at", place !== undefined);
    if (!place) {
      if (cursor) setAttribute(cursor, "d", "");
      setText(this.words, this.summary());
      return;
    }
    if (cursor) setAttribute(cursor, "d", `M${place.x} ${TOP}V${HEIGHT}`);
    const before = this.other?.places.find(({ point }) => point.step === place.point.step);
    const apart = before ? `; baseline ${said(before.point, this.statistic).replace(/^.*?: /, "")}` : "";
    setText(this.words, said(place.point, this.statistic) + apart);
  }

  private summary(): string {
    const { places = [] } = this.line ?? {};
    const found = places.find(({ point }) => point.step === this.step) ?? places.at(-1);
    return found ? said(found.point, this.statistic) : "no step is known";
  }
}

function text(x: number, y: number, words: string, anchor: string, name = "tick"): SVGElement {
  return s("text", { x, y, "text-anchor": anchor, class: name }, words);
}

/** The largest and the smallest value, and a line at 0 where both signs are there. */
function rulers(scale: Scale, statistic: Statistic, box: Box, all: readonly Point[]): SVGElement[] {
  if (!all.some(({ value }) => Number.isFinite(value))) return [];
  const y = (value: number): number => box.bottom - scale.at(value) * (box.bottom - box.top);
  const label = (value: number): SVGElement => text(GUTTER - 4, y(value) + 3.5, written(value, statistic), "end");
  const [low, high] = [y(scale.low), y(scale.high)];
  const parts = low - high > 11 ? [label(scale.high), label(scale.low)] : [label(scale.high)];
  const grid = [...new Set([scale.low, scale.high])].map((value) => `M${GUTTER} ${y(value)}h${box.right - GUTTER}`).join("");
  const zero = scale.low < 0 && scale.high > 0 ? [s("path", { class: "ground", d: `M${GUTTER} ${y(0)}H${box.right}` })] : [];
  return [s("path", { class: "grid", d: grid }), ...zero, ...parts];
}

function foot(first: number, last: number, width: number): SVGElement[] {
  const y = HEIGHT + AXIS - 2;
  return [text(GUTTER, y, `step ${first}`, "start"), ...(last > first ? [text(width, y, String(last), "end")] : [])];
}

function lastDot({ places }: Line): string {
  const last = places.filter(({ y }) => !Number.isNaN(y)).at(-1);
  return last ? `M${last.x} ${last.y}h0` : "";
}

/** A rule at every step that was not finite, with its sign on top where there is room for it. */
function signs(marks: { x: number; bad: string }[]): SVGElement[] {
  let free = -Infinity;
  const sorted = [...marks].sort((a, b) => a.x - b.x);
  return [
    s("path", { class: "marks thin", d: sorted.map(({ x }) => `M${x} ${TOP - 2}V${HEIGHT}`).join("") }),
    ...sorted.flatMap(({ x, bad }) => {
      if (x < free) return [];
      free = x + SIGN;
      return [text(x, TOP - 4, bad.startsWith("NaN") ? "✕" : "∞", "middle", "sign")];
    }),
  ];
}
