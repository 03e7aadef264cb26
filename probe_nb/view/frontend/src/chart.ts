/** The large drawings of the detail pane. */
import { s } from "./dom";
import { exact, number, percent, plural, power } from "./format";
import { describe, draw, fit, geometry, highest, outline, ownAxis, ticks, type Geometry, type Histogram } from "./histogram";
import { describeTrend, trend } from "./sparkline";
import type { Limits } from "./types";

const WIDTH = 280;
const HISTOGRAM_HEIGHT = 84;
/** Wide enough for the names of what stands outside the axis. */
const CAP = 15;
const AXIS_HEIGHT = 16;
const LABEL_WIDTH = 30;
const BAND_HEIGHT = 19;
const LEGEND_HEIGHT = 19;
const TREND_HEIGHT = 56;

/** The dtypes a reader may want to move to, and how they are called here. */
const BANDS: readonly (readonly [dtype: string, name: string])[] = [
  ["float16", "float16"],
  ["bfloat16", "bfloat16"],
  ["float8_e4m3fn", "float8 e4m3"],
  ["float8_e5m2", "float8 e5m2"],
];

/** A large histogram; `before` is another one that lies over it as an outline. */
export function histogramChart(histogram: Histogram, limits: Record<string, Limits>, before?: Histogram): SVGElement {
  const where = geometry(ownAxis(histogram, before), WIDTH, HISTOGRAM_HEIGHT, CAP);
  const most = Math.max(highest(histogram, where.axis), before ? highest(before, where.axis) : 1);
  const parts = draw(histogram, where, most);
  const words = before ? `candidate: ${describe(histogram)}; baseline: ${describe(before)}` : describe(histogram);
  const holds = histogram.positive.length + histogram.negative.length > 0;
  const bands = holds ? BANDS.filter(([dtype]) => limits[dtype]) : [];
  const height = HISTOGRAM_HEIGHT + AXIS_HEIGHT + (bands.length ? LEGEND_HEIGHT : 0) + bands.length * BAND_HEIGHT;
  const foot = HISTOGRAM_HEIGHT + AXIS_HEIGHT + LEGEND_HEIGHT;
  const path = (name: string, d: string): SVGElement => s("path", { class: name, d });
  return s(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${height}`, width: WIDTH, height, role: "img", "aria-label": words },
    path("ground", `M0 ${HISTOGRAM_HEIGHT + 0.5}H${WIDTH}`),
    path("bars", parts.bars),
    path("zero", parts.zero),
    path("nonfinite", parts.nonfinite),
    ...(before ? [path("outline", outline(before, where, most))] : []),
    ...axisLabels(where, histogram),
    ...(bands.length ? [text(0, foot - 5, "bars: what other dtypes can hold", "start")] : []),
    ...bands.map(([dtype, name], index) =>
      band(where, limits[dtype] as Limits, name, foot + index * BAND_HEIGHT, histogram),
    ),
  );
}

function text(x: number, y: number, words: string, anchor = "middle", name = "tick"): SVGElement {
  return s("text", { x, y, "text-anchor": anchor, class: name }, words);
}

function axisLabels(where: Geometry, { zero, nan, posinf, neginf }: Histogram): SVGElement[] {
  const y = HISTOGRAM_HEIGHT + 12;
  const room = Math.floor(((where.axis.high - where.axis.low) * where.binWidth) / LABEL_WIDTH);
  const labels = ticks(where.axis, room).flatMap((exponent) =>
    [true, false].flatMap((negative) => {
      const edge = where.x(exponent, negative) + (negative ? where.binWidth : 0);
      const near = Math.abs(edge - where.zeroX - where.cap / 2) < 18;
      const far = edge < 14 || edge > where.posinfX - 12;
      const mark = s("path", { class: "ground", d: `M${edge} ${HISTOGRAM_HEIGHT}v3` });
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
    const at = last ? WIDTH : x + where.cap / 2;
    if (n > 0 || name === "0") labels.push(text(at, y, name, last ? "end" : "middle", tone));
  }
  return labels;
}

/** The range of a dtype under the axis, mirrored like the values, and what of them it could not hold. */
function band(where: Geometry, limits: Limits, name: string, y: number, histogram: Histogram): SVGElement {
  const low = Math.max(where.axis.low, limits[0]);
  const high = Math.min(where.axis.high, limits[1]);
  const { under, over, total } = fit(histogram, limits);
  const lost = [over ? `${percent(over, total)} % over` : "", under ? `${percent(under, total)} % under` : ""];
  const verdict = lost.filter(Boolean).join(", ") || "fits";
  const foot = y + BAND_HEIGHT - 5;
  const line = (negative: boolean): SVGElement => {
    const from = where.x(negative ? high : low, negative);
    const to = where.x(negative ? low : high, negative) + where.binWidth;
    return s("path", { class: over ? "band alarm" : "band", d: `M${from} ${foot}H${to}` });
  };
  return s(
    "g",
    {},
    s("title", {}, `${name}: largest value ${exact(limits[2])}, smallest ${power(limits[0])}`),
    ...(low > high ? [] : [line(true), line(false)]),
    text(0, foot - 5, name, "start"),
    text(WIDTH, foot - 5, verdict, "end", over ? "tick alarm" : "tick"),
  );
}

/** A large trend; `before` is another one on the same scale, drawn dashed. */
export function trendChart(values: Float64Array, statistic: string, before?: Float64Array): SVGElement {
  const scale = before ? [...values, ...before] : values;
  const found = trend(values, WIDTH, TREND_HEIGHT, 6, scale);
  const other = before ? trend(before, WIDTH, TREND_HEIGHT, 6, scale) : null;
  const dot = found.last ? `M${found.last[0]} ${found.last[1]}h0` : "";
  const height = TREND_HEIGHT + 14;
  const range = Number.isNaN(found.low) ? "" : `${number(found.low)} … ${number(found.high)}`;
  const marks = found.nonfinite ? `non-finite in ${found.nonfinite} of ${plural(found.steps, "step")}` : "now";
  const words = describeTrend(found, statistic) + (other ? `; baseline: ${describeTrend(other, statistic)}` : "");
  return s(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${height}`, width: WIDTH, height, role: "img", "aria-label": words },
    s("path", { class: "ground", d: `M0 ${TREND_HEIGHT + 0.5}H${WIDTH}` }),
    s("path", { class: "marks", d: found.marks + (other?.marks ?? "") }),
    ...(other ? [s("path", { class: "line before", d: other.line })] : []),
    s("path", { class: "line", d: found.line }),
    s("path", { class: "dot", d: dot }),
    text(0, height - 2, range, "start"),
    text(WIDTH, height - 2, before && !found.nonfinite ? "" : marks, "end", found.nonfinite ? "tick alarm" : "tick"),
  );
}
