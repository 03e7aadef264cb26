/** The heat map in words and signs: of a cell, of a column, and of the whole. */
import { count, percent, plural, power } from "./format";
import { OF_STRIP, OF_ZERO, signOf, type Cell, type Heat, type HeatColumn } from "./heatmap";
import { HIGHEST, LOWEST } from "./histogram";

/** Neighbouring columns under one sign, so that it can be read where columns are narrow. */
export function signRuns(columns: readonly HeatColumn[]): { sign: string; from: number; to: number }[] {
  const runs: { sign: string; from: number; to: number }[] = [];
  columns.forEach((column, at) => {
    const sign = signOf(column);
    const last = runs.at(-1);
    if (last && last.to === at && last.sign === sign) last.to = at + 1;
    else if (sign) runs.push({ sign, from: at, to: at + 1 });
  });
  return runs;
}

/** A cell in words: step, values, and what share of the elements they are. */
export function saidOf(heat: Heat, { column, cell }: Cell): string {
  const found = heat.columns[column];
  if (!found) return "";
  const { step, histogram, total, elements } = found;
  const share = (n: number): string => (total > 0 ? `${percent(n, total)} % of ${count(elements)}` : "no element");
  if (cell === OF_STRIP || !total) return `step ${step}: ${stateOf(found)}`;
  if (cell === OF_ZERO) return `step ${step}, zeros: ${share(histogram.zero)}`;
  const negative = cell >= heat.cells;
  const low = heat.low + heat.size * (negative ? cell - heat.cells : heat.cells - 1 - cell);
  const side = negative ? histogram.negative : histogram.positive;
  const n = side.reduce((sum, [exponent, each]) => sum + (exponent >= low && exponent < low + heat.size ? each : 0), 0);
  return `step ${step}, ${between(low, low + heat.size, negative ? "-" : "")}: ${share(n)}`;
}

/** From one power of two to another; the outermost bins hold all that is smaller, and all that is larger. */
function between(low: number, high: number, sign: string): string {
  return `${low <= LOWEST ? "0" : sign + power(low)} … ${high > HIGHEST ? `${sign}∞` : sign + power(high)}`;
}

function stateOf({ histogram, total, bad }: HeatColumn): string {
  const { nan, posinf, neginf, zero } = histogram;
  const some = [[nan, "NaN"], [posinf, "+Inf"], [neginf, "-Inf"]] as const;
  const parts = some.filter(([n]) => n > 0).map(([n, name]) => `${count(n)} ${name}`);
  if (!parts.length && bad) return bad;
  if (!total) return "no numbers";
  if (zero === total) return "every element is 0";
  return parts.length ? parts.join(", ") : "all finite";
}

/** The drawing in words, for those who cannot see it. */
export function describeHeat({ columns, low, high, halves }: Heat): string {
  const steps = columns.map(({ step }) => step);
  const listed = (sign: string): string => {
    const of = columns.filter((column) => signOf(column) === sign).map(({ step }) => step);
    return of.length > 3 ? `${of.length} steps from ${of[0]} on` : `step ${of.join(", ")}`;
  };
  const signs = [["✕", "NaN"], ["∞", "Inf"], ["0", "nothing but zeros"]] as const;
  const found = signs.filter(([sign]) => columns.some((column) => signOf(column) === sign));
  const sides = halves.positive && halves.negative ? "values of both signs" : halves.negative ? "negative values" : "positive values";
  return [
    `histograms of ${plural(columns.length, "step")}, ${steps[0]} to ${steps.at(-1)}`,
    `${sides} between ${power(low)} and ${power(high + 1)}`,
    ...found.map(([sign, name]) => `${name} in ${listed(sign)}`),
  ].join("; ");
}
