/** What the rows are, and all that follows from that alone. */
import type { Site } from "./types";

const ROOT = "(root)";

/** The sites with all that is derived from them alone, made once per change of `sites`. */
export class Sites {
  /** Names a site across updates: the selection follows it, not a row number. */
  readonly keys: string[];
  readonly roles: string[];
  readonly paths: string[];
  /** Whether it was recorded where anything is called from. */
  readonly stacks: boolean;
  private readonly several: boolean;
  private partsMade: string[][] | null = null;
  private readonly searchable: string[];
  private readonly places: Map<string, number>;

  constructor(readonly rows: readonly Site[]) {
    // what was called outside of any model belongs to none
    this.several = new Set(rows.map((site) => site.model).filter(Boolean)).size > 1;
    this.keys = rows.map((site) =>
      [site.model, site.module, site.direction, site.role, site.leaf, site.type].join("\u0000"),
    );
    this.stacks = rows.some((site) => site.stack);
    this.places = new Map(this.keys.map((key, index) => [key, index]));
    this.paths = rows.map((site) => pathOf(site, this.several));
    this.roles = [...new Set(rows.map((site) => site.role))].sort((a, b) => roleRank(a) - roleRank(b));
    this.searchable = rows.map((site, index) =>
      [this.paths[index], site.type, site.role, site.leaf, site.dtype, site.device].join(" ").toLowerCase(),
    );
  }

  /** What each row is inside of, from the outermost module to its own, or to the function that it is of. */
  get parts(): string[][] {
    this.partsMade ??= this.rows.map((site) => (this.several && site.model ? [site.model, ...partsOf(site)] : partsOf(site)));
    return this.partsMade;
  }

  find(key: string | null): number {
    return (key === null ? undefined : this.places.get(key)) ?? -1;
  }

  /** Whether every word stands somewhere in the site's names. */
  matches(index: number, words: readonly string[]): boolean {
    const text = this.searchable[index] ?? "";
    return words.every((word) => text.includes(word));
  }

  /** The rows of the same module, this one among them, in the order of the flow. */
  siblings(index: number): number[] {
    const site = this.rows[index];
    if (!site) return [];
    const same = (other: Site): boolean => other.module === site.module && other.model === site.model;
    const rank = (at: number): number => roleRank(this.rows[at]?.role ?? "");
    return this.rows.flatMap((other, at) => (same(other) ? [at] : [])).sort((a, b) => rank(a) - rank(b) || a - b);
  }
}

function pathOf({ model, module }: Site, several: boolean): string {
  const path = module || ROOT;
  return several && model ? `${model}: ${path}` : path;
}

/** The parts of a path; the name of a function has dots of its own, and so has that of an optimizer. */
function partsOf({ module, api, path = "" }: Site): string[] {
  if (!api) return split(module);
  return module.endsWith(`, ${api}`) ? [...split(path), api] : [module];
}

function split(path: string): string[] {
  return path ? path.split(".") : [ROOT];
}

const ROLES = "input output param buffer grad_output grad_input param_grad update state value".split(" ");

/** What flows between modules; parameters stand still. */
export const FLOWS = new Set(["input", "output", "grad_output", "grad_input", "value"]);

function roleRank(role: string): number {
  const rank = ROLES.indexOf(role);
  return rank < 0 ? ROLES.length : rank;
}
