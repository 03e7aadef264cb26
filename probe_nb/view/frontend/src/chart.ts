/** The large histogram, and under it what of it other dtypes could hold. */
import { s } from "./dom";
import { exact, percent, power } from "./format";
import { describe, draw, fit, geometry, highest, outline, ownAxis, ticks, type Geometry, type Histogram } from "./histogram";
import type { Limits } from "./types";

const HEIGHT = 66;
/** Wide enough for the names of what stands outside the axis. */
const CAP = 15;
const AXIS_HEIGHT = 16;
const LABEL_WIDTH = 30;
const BAND_HEIGHT = 14;

/** The dtypes a reader may want to move to, and how they are called here. */
const BANDS: readonly (readonly [dtype: string, name: string])[] = [
  ["float16", "float16"],
  ["bfloat16", "bfloat16"],
  ["float8_e4m3fn", "float8 e4m3"],
  ["float8_e5m2", "float8 e5m2"],
];

/** A large histogram; `before` is another one that lies over it as an outline. */
export function histogramChart(
  histogram: Histogram,
  limits: Record<string, Limits>,
  width: number,
  before?: Histogram,
): SVGElement {
  const where = geometry(ownAxis(histogram, before), width, HEIGHT, CAP);
  const most = Math.max(highest(histogram, where.axis), before ? highest(before, where.axis) : 1);
  const parts = draw(histogram, where, most);
  const words = before ? `candidate: ${describe(histogram)}; baseline: ${describe(before)}` : describe(histogram);
  const holds = histogram.positive.length + histogram.negative.length > 0;
  const bands = holds ? BANDS.filter(([dtype]) => limits[dtype]) : [];
  const foot = HEIGHT + AXIS_HEIGHT + 2;
  const height = foot + bands.length * BAND_HEIGHT;
  const verdicts = bands.map(([dtype, name]) => `${name}: ${verdictOf(histogram, limits[dtype] as Limits).words}`);
  const path = (name: string, d: string): SVGElement => s("path", { class: name, d });
  return s(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": [words, ...verdicts].join("; ") },
    path("ground", `M0 ${HEIGHT + 0.5}H${width}`),
    path("bars", parts.bars),
    path("zero", parts.zero),
    path("nonfinite", parts.nonfinite),
    ...(before ? [path("outline", outline(before, where, most))] : []),
    ...axisLabels(where, histogram),
    ...bands.map(([dtype, name], index) =>
      band(where, limits[dtype] as Limits, name, foot + index * BAND_HEIGHT, histogram, width),
    ),
  );
}

function text(x: number, y: number, words: string, anchor = "middle", name = "tick"): SVGElement {
  return s("text", { x, y, "text-anchor": anchor, class: name }, words);
}

function axisLabels(where: Geometry, { zero, nan, posinf, neginf }: Histogram): SVGElement[] {
  const y = HEIGHT + 12;
  const room = Math.floor(((where.axis.high - where.axis.low) * where.binWidth) / LABEL_WIDTH);
  const labels = ticks(where.axis, room).flatMap((exponent) =>
    [true, false].flatMap((negative) => {
      const edge = where.x(exponent, negative) + (negative ? where.binWidth : 0);
      const near = Math.abs(edge - where.zeroX - where.cap / 2) < 18;
      const far = edge < 14 || edge > where.posinfX - 12;
      const mark = s("path", { class: "ground", d: `M${edge} ${HEIGHT}v3` });
      return near || far ? [mark] : [mark, text(edge, y, `${negative ? "-" : ""}${power(exponent)}`)];
    }),
  );
  const caps: [number, string, number][] = [
    [where.zeroX, "0", zero],
    [where.neginfX, "-∞", neginf],
    [where.posinfX, "∞", posinf],
    [where.nanX, "NaN", nan],
  ];
  for (const [x, name, n] of caps) {
    const tone = n > 0 && name !== "0" ? "tick alarm" : "tick";
    const last = name === "NaN";
    const at = last ? where.nanX + where.cap : x + where.cap / 2;
    if (n > 0 || name === "0") labels.push(text(at, y, name, last ? "end" : "middle", tone));
  }
  return labels;
}

export interface VerdictOfDtype {
  sign: "✓" | "✕" | "↓";
  words: string;
}

/** Whether a dtype could hold the values: by a sign, and in words. */
export function verdictOf(histogram: Histogram, limits: Limits): VerdictOfDtype {
  const { under, over, total } = fit(histogram, limits);
  const lost = [over ? `${percent(over, total)} % over` : "", under ? `${percent(under, total)} % under` : ""];
  const words = lost.filter(Boolean).join(", ") || "fits";
  return { sign: over ? "✕" : under ? "↓" : "✓", words };
}

/** The range of a dtype under the axis, mirrored like the values, and what of them it could not hold. */
function band(where: Geometry, limits: Limits, name: string, y: number, histogram: Histogram, width: number): SVGElement {
  const low = Math.max(where.axis.low, limits[0]);
  const high = Math.min(where.axis.high, limits[1]);
  const { sign, words } = verdictOf(histogram, limits);
  const tone = sign === "✕" ? " alarm" : sign === "↓" ? " care" : "";
  const box = (negative: boolean): SVGElement => {
    const from = where.x(negative ? high : low, negative);
    const to = where.x(negative ? low : high, negative) + where.binWidth;
    return s("path", { class: `band${tone}`, d: `M${from} ${y + 1}H${to}v${BAND_HEIGHT - 3}H${from}z` });
  };
  return s(
    "g",
    {},
    s("title", {}, `${name}: largest value ${exact(limits[2])}, smallest ${power(limits[0])}`),
    ...(low > high ? [] : [box(true), box(false)]),
    text(4, y + BAND_HEIGHT - 4.5, name, "start", "label"),
    text(width - 4, y + BAND_HEIGHT - 4.5, `${sign} ${words}`, "end", `label${tone}`),
  );
}
