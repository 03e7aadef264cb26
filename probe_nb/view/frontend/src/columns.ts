/** The columns, of a run and of a comparison: what each is called, how it sorts and how it fills a cell. */
import { badge, drawnColumn, numberColumn, say, textColumn, type Column, type Text, type Value } from "./cells";
import { bothOf } from "./compared";
import { gravity, type Data } from "./data";
import { h, setAttribute, setText } from "./dom";
import { fillTrend, fillValues, HISTOGRAM_WIDTH, TREND_WIDTH } from "./drawn";
import { ABSENT, compact, count, exact, number, percent } from "./format";
import type { ColumnName, PairName } from "./types";
import { INF, statusReason, VERDICTS } from "./words";

const of = (name: ColumnName): Value => (data, row) => data.value(name, row);
const before = (name: ColumnName): Value => (data, row) => data.before(name, row);
const pair = (name: PairName): Value => (data, row) => data.pair(name, row);
const status: Text = (data, row) => statusReason(data.value("status", row));

/** The end of a path from its last name on, where numbers follow it. */
const NUMBERED = /[^.]+(?:\.\d+)+$/;

function fillModule(cell: HTMLElement, data: Data, row: number): void {
  const path = data.sites.paths[row] ?? "";
  setAttribute(cell, "title", path);
  let parts = cell.firstElementChild;
  if (!parts) {
    // the cell runs right to left so that the ellipsis eats the head of the path; bdi keeps the text itself intact
    parts = h("bdi", { dir: "ltr" }, ...["parents", "around", "name"].map((name) => h("span", { class: name })));
    cell.append(parts);
  }
  const own = path.lastIndexOf(".") + 1;
  const near = NUMBERED.exec(path)?.index ?? own; // a number alone says nothing: it is told with what is around it
  const texts = [path.slice(0, near), path.slice(near, own), path.slice(own)];
  texts.forEach((text, at) => setText((parts as Element).children[at] as Element, text));
}

function fillRole(cell: HTMLElement, data: Data, row: number): void {
  const { role, leaf, direction } = data.site(row);
  const older = data.olderStep(row);
  if (!cell.firstChild) cell.append(h("span"), h("span", { class: "leaf" }));
  setText(cell.firstElementChild as Element, data.role(row));
  setText(cell.lastElementChild as Element, older < 0 ? leaf : `${leaf} · step ${older}`);
  setAttribute(cell, "title", `${direction} ${role} ${leaf}${older < 0 ? "" : `, last seen in step ${older}`}`);
}

function fillHealth(cell: HTMLElement, data: Data, row: number): void {
  const badges = data.badges(row);
  const reasons = badges.map(({ why }) => why);
  if (data.inherited(row)) reasons.push("inherited from an earlier module");
  const shown = badges.slice(0, badges[1] && badges[1].bit === INF ? 2 : 1); // two long badges do not fit
  const rest = badges.length - shown.length;
  const state = `${data.bits(row)}/${badges.map(({ tone, word }) => `${tone} ${word}`).join()}`;
  say(cell, state, reasons.join("; ") || "nothing unusual", () => {
    if (!badges.length) return [h("span", { class: "fine" }, "ok")];
    const marks: HTMLElement[] = shown.map(({ tone, glyph, word }) => badge(tone, glyph, word));
    return rest > 0 ? [...marks, h("span", { class: "more" }, `+${rest}`)] : marks;
  });
}

function healthLength(data: Data, row: number): number {
  const [first, ...rest] = data.badges(row);
  return (first?.word.length ?? 0) + 3 * Math.sign(rest.length) + 2;
}

function fillVerdict(cell: HTMLElement, data: Data, row: number): void {
  const name = data.verdict(row);
  const origin = data.pair("origin", row) > 0;
  const follows = data.follows(row);
  const { glyph, word, tone, why } = VERDICTS[name] ?? { glyph: "–", word: name, tone: "mute", why: "" };
  const more = origin ? " (here it begins)" : follows ? " (follows from an earlier divergence)" : "";
  say(cell, `${name}/${origin}/${follows}`, `${why}${more}`, () => {
    const mark = badge(tone, glyph, origin ? "diverges here" : word);
    return follows ? [mark, h("span", { class: "more" }, "follows")] : [mark];
  });
}

function verdictLength(data: Data, row: number): number {
  const word = VERDICTS[data.verdict(row)]?.word ?? "";
  return data.pair("origin", row) > 0 ? 15 : word.length + (data.follows(row) ? 9 : 2);
}

function fillTimes(cell: HTMLElement, data: Data, row: number): void {
  const times = data.pair("beyond", row);
  const shown = times >= 0 && data.pair("difference", row) > 0;
  setText(cell, shown ? `${times > 0 && times < 0.001 ? "<0.001" : number(times, 2)}×` : ABSENT);
  setAttribute(cell, "title", shown ? `${exact(times)} times what rounding and what came in explain` : "no difference");
  cell.classList.toggle("alarm", times > 1 && !data.follows(row));
}

/** A column of counts; 0 is quiet, and anything else an alarm if it should be 0. */
function countColumn(key: string, title: string, width: number, amount: Value, text: Text, alarming = true): Column {
  const found: Value = (data, row) => (amount(data, row) >= 0 ? amount(data, row) : NaN);
  const fill: Column["fill"] = (cell, data, row) => {
    const n = found(data, row);
    const absent = Number.isNaN(n);
    setText(cell, absent ? ABSENT : text(data, row));
    setAttribute(cell, "title", absent ? status(data, row) : `${count(n)} ${title}`);
    cell.classList.toggle("none", n === 0);
    cell.classList.toggle("alarm", n > 0 && alarming);
  };
  return { key, label: key, title, width, align: "right", sort: found, descendingFirst: true, fill, of: "run" };
}

const infinite: Value = (data, row) => data.value("posinf_count", row) + data.value("neginf_count", row);

function infinities(data: Data, row: number): string {
  const plus = data.value("posinf_count", row);
  const minus = data.value("neginf_count", row);
  const parts = [plus > 0 ? `+${compact(plus)}` : "", minus > 0 ? `-${compact(minus)}` : ""];
  return parts.filter(Boolean).join(" ") || "0";
}

/** As wide as what it holds. */
function fitted(column: Column, least: number, text: Text): Column {
  return { ...column, least, length: (data, row) => text(data, row).length };
}

const nans: Text = (data, row) => compact(data.value("nan_count", row));
const zeros: Text = (data, row) => percent(data.value("zero_count", row), data.value("numel", row));

function statColumn(key: ColumnName, title: string): Column {
  return { ...numberColumn(key, key, `${title} of the finite elements`, 70, of(key), status), of: "run" };
}

function pairColumn(key: PairName, label: string, title: string, width = 76): Column {
  const why: Text = (data, row) => data.site(row).why || "nothing to compare";
  const quiet = (data: Data, row: number): boolean => data.pair(key, row) === 0;
  return { ...numberColumn(key, label, title, width, pair(key), why, quiet), of: "comparison" };
}

/** A statistic of both runs: two columns that stand beside each other. */
function sides(name: ColumnName, width = 78): Column[] {
  const same = (data: Data, row: number): boolean => data.before(name, row) === data.value(name, row);
  const column = (side: string, value: Value, quiet?: typeof same): Column => {
    const head = `${name} ${side.slice(0, 4)}`;
    const why = (): string => `the ${side} has no number here`;
    const made = numberColumn(`${side} ${name}`, head, `${name} of the ${side}`, width, value, why, quiet);
    return { ...made, of: "comparison" };
  };
  return [column("baseline", before(name)), column("candidate", of(name), same)];
}

function siteColumn(key: "type" | "shape" | "dtype" | "device", title: string, width: number): Column {
  return textColumn(key, key, title, width, (data, row) => bothOf(data, row, key));
}

/** The step of a pair: the baseline's where the candidate has none. */
const step: Value = (data, row) => {
  const own = data.value("step", row);
  return Number.isNaN(own) ? data.before("step", row) : own;
};
const seen: Text = (data, row) =>
  data.pair("difference", row) > 0 ? (data.status.comparison?.measures[data.pair("measure", row)] ?? "") : "";
const roles: Text = (data, row) => `${data.role(row)} ${data.site(row).leaf}`;
const paths: Text = (data, row) => data.sites.paths[row] ?? "";

/** Non-finite steps sort a run by the first of them; of a comparison the values themselves count. */
const trendSort: Value = (data, row) => {
  if (data.status.comparison) return data.value("absmax", row);
  const first = data.value("first_bad_step", row);
  return first >= 0 ? first : NaN;
};
const valuesSort: Value = (data, row) =>
  data.status.comparison ? data.pair("histogram_distance", row) : data.value("absmax", row);

/** What is read first stands first; the module's column stays in view while the others scroll. */
const COLUMNS: readonly Column[] = [
  { ...fitted(textColumn("module", "module", "path of the module", 208, paths), 76, paths), fill: fillModule },
  {
    ...textColumn("role", "role", "what the tensor is to the module", 150, roles),
    length: (data, row) => roles(data, row).length + 1,
    fill: fillRole,
  },
  {
    ...drawnColumn("health", "what is unusual, most severe first", 126, (data, row) => data.severity(row), fillHealth),
    align: "left",
    length: healthLength,
    of: "run",
  },
  {
    ...drawnColumn("verdict", "what is said of this pair", 150, gravity, fillVerdict),
    align: "left",
    length: verdictLength,
    least: 92,
    of: "comparison",
  },
  drawnColumn(
    "values",
    "log2 histogram: negative left, positive right, large outside; zeros in the middle; -Inf, +Inf and NaN at the ends",
    HISTOGRAM_WIDTH + 12,
    valuesSort,
    fillValues,
  ),
  pairColumn("difference", "difference", "largest relative difference of a statistic, or of the elements"),
  {
    ...pairColumn("beyond", "beyond", "how many times the difference is larger than rounding and what came in explain", 68),
    fill: fillTimes,
  },
  { ...textColumn("measure", "seen in", "what differs most: a statistic, the histogram, kept tensors", 76, seen), of: "comparison" },
  pairColumn("explained", "explained", "what rounding of this one call explains"),
  pairColumn("came_in", "came in", "largest difference of what the call was given"),
  statColumn("mean", "mean"),
  statColumn("std", "standard deviation"),
  statColumn("min", "smallest"),
  statColumn("max", "largest"),
  statColumn("l2", "Euclidean norm"),
  fitted(countColumn("nan", "NaN", 62, of("nan_count"), nans), 46, nans),
  fitted(countColumn("inf", "infinite (+ and -)", 112, infinite, infinities), 46, infinities),
  {
    ...countColumn("zero", "elements exactly 0", 58, of("zero_count"), zeros, false),
    label: "zero %",
    sort: (data, row) => (data.value("zero_count", row) >= 0 ? data.value("zero_count", row) / data.value("numel", row) : NaN),
  },
  ...sides("l2"),
  ...sides("absmax", 92),
  ...sides("mean"),
  ...sides("std"),
  {
    ...drawnColumn("trend", "largest magnitude over steps, log scale; marks: steps with non-finite elements", TREND_WIDTH + 16, trendSort, fillTrend),
    descendingFirst: false,
  },
  {
    ...textColumn("step", "step", "step that is shown: where it diverges first, else where it differs most", 56, (data, row) => count(step(data, row))),
    align: "right",
    sort: step,
    of: "comparison",
  },
  siteColumn("type", "class of the module", 116),
  { ...siteColumn("shape", "shape of the tensor", 104), sort: of("numel") },
  siteColumn("dtype", "element type", 84),
  siteColumn("device", "where it is", 84),
];

export const TABLE = COLUMNS.filter((column) => column.of !== "comparison");
export const COMPARED = COLUMNS.filter((column) => column.of !== "run");
