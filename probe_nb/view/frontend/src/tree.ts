/**
 * Rows that fold: modules by their path, and what only follows from a divergence.
 *
 * A folded list is still one list of numbers: a row of the table is a site (0 and up) or a group, written as -1 for
 * the first one, -2 for the second, so that the table stays one that knows only rows of one height.
 */
import { gravity, type Data } from "./data";
import { plural } from "./format";
import { BADGES, isAnomaly, VERDICTS, type Badge, type Tone } from "./words";

export interface Mark {
  glyph: string;
  word: string;
  tone: Tone | "good" | "quiet";
  count: number;
}

export interface Group {
  key: string;
  name: string;
  depth: number;
  /** How many rows are inside, at any depth. */
  size: number;
  open: boolean;
  marks: Mark[];
}

export interface Listed {
  rows: number[];
  groups: Group[];
  /** How deep each row is; empty where there are no groups. */
  depths: number[];
  /** The groups are the modules: a row below its module's need not repeat the path. */
  tree: boolean;
}

/** Rows as they are, without groups. */
export function flat(rows: number[]): Listed {
  return { rows, groups: [], depths: [], tree: false };
}

function put(listed: Listed, row: number, depth: number): void {
  listed.rows.push(row);
  listed.depths.push(depth);
}

function putGroup(listed: Listed, group: Group): void {
  listed.groups.push(group);
  put(listed, -listed.groups.length, group.depth);
}

interface Node {
  name: string;
  key: string;
  /** Sites and modules inside, in execution order. */
  items: (number | Node)[];
  children: Map<string, Node>;
  size: number;
}

function node(name: string, key: string): Node {
  return { name, key, items: [], children: new Map(), size: 0 };
}

/** Group rows by module path; `open` holds the keys of what is unfolded. */
export function treeOf(data: Data, rows: readonly number[], open: ReadonlySet<string>): Listed {
  const root = node("", "");
  for (const row of rows) {
    let at = root;
    at.size++;
    for (const part of partsOf(data, row)) {
      let next = at.children.get(part);
      if (!next) {
        next = node(part, `${at.key}\u0000${part}`);
        at.children.set(part, next);
        at.items.push(next);
      }
      at = next;
      at.size++;
    }
    at.items.push(row);
  }
  const listed: Listed = { ...flat([]), tree: true };
  for (const item of root.items) list(item, 0, data, open, listed);
  return listed;
}

/** The groups a row is in, from the outermost: what to open to see it. */
export function ancestors(data: Data, row: number): string[] {
  let key = "";
  return partsOf(data, row).map((part) => (key += `\u0000${part}`));
}

function partsOf(data: Data, row: number): readonly string[] {
  return data.sites.parts[row] ?? [];
}

const NUMBER = /^\d+$/;

/** List a row or a module; of one that has a number for a name `within` tells the ones around. */
function list(
  item: number | Node,
  depth: number,
  data: Data,
  open: ReadonlySet<string>,
  listed: Listed,
  within = "",
): void {
  if (typeof item === "number") {
    put(listed, item, depth);
    return;
  }
  let at = item;
  let name = NUMBER.test(item.name) && within ? `${within}.${item.name}` : item.name;
  // a module that only holds another one is no step of its own
  for (let only = at.items[0]; at.items.length === 1 && typeof only === "object"; only = at.items[0]) {
    at = only;
    name += `.${at.name}`;
  }
  const unfolded = open.has(at.key);
  const marks = marksOf(data, sitesIn(at));
  putGroup(listed, { key: at.key, name, depth, size: at.size, open: unfolded, marks });
  if (unfolded) for (const each of at.items) list(each, depth + 1, data, open, listed, name);
}

function sitesIn(at: Node, found: number[] = []): number[] {
  for (const item of at.items) {
    if (typeof item === "number") found.push(item);
    else sitesIn(item, found);
  }
  return found;
}

/** What is unusual among some rows, gravest first. */
export function marksOf(data: Data, rows: readonly number[]): Mark[] {
  const found = new Map<string, Mark & { rank: number }>();
  const add = (word: string, glyph: string, tone: Mark["tone"], rank: number): void => {
    const known = found.get(word);
    if (known) {
      known.count++;
      if (known.tone === "mute") known.tone = tone;
    } else found.set(word, { word, glyph, tone, rank, count: 1 });
  };
  const compared = data.status.comparison !== null;
  for (const row of rows) {
    if (compared) {
      const name = data.verdict(row);
      const about = VERDICTS[name];
      if (!about || name === "same" || name === "close") continue;
      add(about.word, about.glyph, data.follows(row) ? "mute" : about.tone, gravity(data, row));
    } else {
      for (const each of data.badges(row)) {
        if (isAnomaly(each)) add(each.word, each.glyph, data.inherited(row) && each.bit ? "mute" : each.tone, rankOf(each));
      }
    }
  }
  return [...found.values()].sort((a, b) => b.rank - a.rank).map(({ rank: _, ...mark }) => mark);
}

/** What was found and has no badge of its own: errors right after what is not finite, the rest last. */
function rankOf(badge: Badge): number {
  if (badge.bit) return -BADGES.indexOf(badge);
  return badge.tone === "bad" ? -1.5 : -BADGES.length;
}

/** Fewer rows than this are no group. */
const LEAST = 4;

/** Fold consecutive rows that only follow from a divergence before them. */
export function folded(data: Data, rows: readonly number[], open: ReadonlySet<string>): Listed {
  const listed = flat([]);
  for (let begin = 0, end = 0; begin < rows.length; begin = end) {
    end = endOf(data, rows, begin);
    const inside = rows.slice(begin, end);
    if (end - begin < LEAST) for (const row of inside) put(listed, row, 0);
    else {
      const key = keyOf(data, inside[0] as number);
      const unfolded = open.has(key);
      const name = `${plural(inside.length, "row")} that follow from it`;
      putGroup(listed, { key, name, depth: 0, size: inside.length, open: unfolded, marks: modulesOf(data, inside) });
      if (unfolded) for (const row of inside) put(listed, row, 1);
    }
  }
  return listed;
}

/** The key of the group that `folded` puts a row into. */
export function groupOf(data: Data, rows: readonly number[], row: number): string {
  let first = rows.indexOf(row);
  while (first > 0 && of(data, rows[first] as number) > 0 && endOf(data, rows, first - 1) > first) first--;
  return keyOf(data, rows[first] ?? -1);
}

function keyOf(data: Data, row: number): string {
  return `follows\u0000${data.sites.keys[row]}`;
}

/** Where the rows end that follow from the same divergence as the first one. */
function endOf(data: Data, rows: readonly number[], begin: number): number {
  const origin = of(data, rows[begin] as number);
  let end = begin + 1;
  while (origin > 0 && end < rows.length && of(data, rows[end] as number) === origin) end++;
  return end;
}

function of(data: Data, row: number): number {
  return data.follows(row) ? data.pair("follows", row) : 0;
}

const NAMED = 3;

/** The modules of a group, as far as there is room for names. */
function modulesOf(data: Data, rows: readonly number[]): Mark[] {
  const names = [...new Set(rows.map((row) => data.sites.paths[row] ?? ""))];
  const more = names.length > NAMED ? ` and ${names.length - NAMED} more` : "";
  return [{ glyph: "", word: `in ${names.slice(0, NAMED).join(", ")}${more}`, tone: "mute", count: 1 }];
}
