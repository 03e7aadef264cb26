/** What the detail pane says of a pair: the verdict in words, and the numbers of both runs. */
import type { Data } from "./data";
import { h, s } from "./dom";
import { ABSENT, count, exact, number, plural } from "./format";
import { COUNTS, STATISTICS } from "./numbers";
import type { PairName } from "./types";
import { VERDICTS } from "./words";

const OF_TENSORS: readonly (readonly [column: PairName, name: string])[] = [
  ["cosine", "cosine"],
  ["relative", "norm of the difference / norm"],
  ["max_abs", "largest difference"],
  ["max_rel", "largest relative difference"],
  ["max_ulp", "ULP between two elements"],
  ["within_1e3", "share within 1/1000"],
  ["mismatched", "not finite in another way"],
];

export function pairFindings(data: Data, row: number, open: (row: number) => void): HTMLElement[] {
  const name = data.verdict(row);
  const { glyph, word, tone, why } = VERDICTS[name] ?? { glyph: "–", word: name, tone: "mute", why: "" };
  const comparison = data.status.comparison;
  const mark = h("span", { class: `badge ${tone}` }, `${glyph} ${word}`);
  const origin = comparison?.divergences[data.pair("origin", row) - 1];
  const lines = origin
    ? [h("p", { class: "finding" }, mark, h("b", {}, origin.text)), h("p", { class: "finding" }, origin.detail)]
    : [h("p", { class: "finding" }, mark, measured(data, row) || data.site(row).why || why)];
  if (data.follows(row)) {
    const from = comparison?.divergences[data.pair("follows", row) - 1];
    const at = from?.row ?? null;
    if (from && at !== null) {
      const button = h("button", { type: "button", class: "link" }, from.text);
      button.addEventListener("click", () => open(at));
      lines.push(h("p", { class: "finding facts" }, "follows from: ", button));
    }
  }
  lines.push(h("p", { class: "finding facts" }, several(data, row)));
  return lines.filter((line) => line.textContent);
}

function measured(data: Data, row: number): string {
  const difference = data.pair("difference", row);
  if (!(difference > 0)) return "";
  const seen = data.status.comparison?.measures[data.pair("measure", row)] ?? "";
  const why = data.site(row).why ?? "";
  if (seen === "exact") return why;
  const came = data.pair("came_in", row);
  const parts = [
    `${seen} differs by ${number(difference)} of the scale`,
    `rounding explains ${number(data.pair("explained", row))}`,
    Number.isNaN(came) ? "" : came > 0 ? `what came in differs by ${number(came)}` : "what came in is the same",
    why,
  ];
  return parts.filter(Boolean).join("; ");
}

/** How it was in the other steps and calls. */
function several(data: Data, row: number): string {
  const [pairs, diverged, alone] = (["pairs", "diverged", "one_sided"] as const).map((name) => data.pair(name, row));
  const parts = [
    (pairs ?? 0) > 1 ? `${count(diverged ?? 0)} of ${plural(pairs ?? 0, "pair")} diverged` : "",
    (alone ?? 0) > 0 ? `${plural(alone ?? 0, "record")} only one run has` : "",
  ];
  return parts.filter(Boolean).join("; ");
}

export function pairNumbers(data: Data, row: number): HTMLElement[] {
  const head = ["", "baseline", "candidate", "difference"].map((name) => h("th", { scope: "col" }, name));
  const lines = data.setting(row) ? [line("value", data.before("mean", row), data.value("mean", row))] : [
    ...STATISTICS.map((name) => line(name, data.before(name, row), data.value(name, row))),
    ...([["numel", "elements"], ...COUNTS] as const).map(([column, name]) => line(name, counted(data.before(column, row)), counted(data.value(column, row)))),
  ];
  const found = OF_TENSORS.filter(([column]) => !Number.isNaN(data.pair(column, row)));
  const distance = data.pair("histogram_distance", row);
  const shared: [string, number][] = found.map(([column, name]) => [name, data.pair(column, row)]);
  if (!Number.isNaN(distance) && !data.setting(row)) shared.unshift(["share in another bin", distance]);
  const more = shared.flatMap(([name, value]) => [h("dt", {}, name), h("dd", { title: exact(value) }, number(value, 4))]);
  return [
    h("table", { class: "both" }, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...lines)),
    ...(more.length ? [h("dl", { class: "shared" }, ...more)] : []),
  ];
}

function counted(n: number): number {
  return n >= 0 ? n : NaN;
}

function line(name: string, before: number, now: number): HTMLElement {
  const cell = (value: number): HTMLElement =>
    h("td", { title: Number.isNaN(value) ? "absent" : exact(value) }, Number.isNaN(value) ? ABSENT : number(value, 5));
  const apart = now - before;
  const words = Number.isNaN(apart) ? ABSENT : apart === 0 ? "=" : `${apart > 0 ? "+" : ""}${number(apart)}`;
  const same = apart === 0 || Number.isNaN(apart);
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, name),
    cell(before),
    cell(now),
    h("td", { class: same ? "none" : "", title: same ? "" : exact(apart) }, words),
  );
}

/** What is drawn how. */
export function legend(): HTMLElement {
  const sign = (...parts: SVGElement[]): SVGElement => s("svg", { width: 16, height: 10, "aria-hidden": "true" }, ...parts);
  return h(
    "p",
    { class: "legend" },
    sign(s("path", { class: "bars", d: "M1 2h14v8h-14z" })),
    "candidate",
    sign(s("path", { class: "outline", d: "M1 10V2h14v8" })),
    "baseline (dashed in the trend)",
  );
}
