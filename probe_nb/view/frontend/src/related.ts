/** What stands around a row: the other tensors of its module, and what ran before and after. */
import type { Data } from "./data";
import { h } from "./dom";
import { isAnomaly, VERDICTS } from "./words";

type Open = (row: number) => void;

export interface Mark {
  glyph: string;
  tone: string;
}

/** The sign of a row, where there is something to point at. */
export function markOf(data: Data, row: number): Mark | undefined {
  const verdict = VERDICTS[data.verdict(row)];
  if (verdict && data.follows(row)) return { glyph: verdict.glyph, tone: "" }; // its cause is loud enough
  if (verdict) return verdict.tone === "bad" || verdict.tone === "warn" ? verdict : undefined;
  return data.badges(row).find(isAnomaly);
}

function nameOf(data: Data, row: number): string {
  const { leaf } = data.site(row);
  return `${markOf(data, row)?.glyph ?? ""} ${data.role(row)} ${leaf}`.trim();
}

/** Buttons beside the list: so many of the tensors that something is wrong with. */
const MARKED = 3;

/** The same module's other tensors: all in a list, and those that something is wrong with one click away. */
export class Siblings {
  private readonly list = h("select", { class: "sibling", "aria-label": "Tensors of this module" });
  private readonly marked = h("span", { class: "marked" });
  readonly element = h("div", { class: "siblings" }, this.list, this.marked);
  private written = "";

  constructor(private readonly onSelect: Open) {
    this.list.addEventListener("change", () => onSelect(Number(this.list.value)));
  }

  show(data: Data, row: number): void {
    const rows = data.sites.siblings(row);
    const names = rows.map((other) => nameOf(data, other));
    const written = JSON.stringify([rows, names]);
    if (written !== this.written) {
      // a list that is open stays open as long as it says the same
      this.written = written;
      this.list.replaceChildren(...rows.map((other, at) => h("option", { value: other }, names[at] ?? "")));
    }
    this.list.value = String(row);
    const bad = rows.filter((other) => other !== row && markOf(data, other));
    this.marked.replaceChildren(
      ...bad.slice(0, MARKED).map((other) => {
        const tone = markOf(data, other)?.tone ?? "";
        return h("button", { type: "button", class: `link ${tone}`, onclick: () => this.onSelect(other) }, nameOf(data, other));
      }),
      ...(bad.length > MARKED ? [`+${bad.length - MARKED}`] : []),
    );
    this.element.hidden = rows.length < 2;
  }
}

/** What ran before and after: who fed this row and what it feeds. */
export function neighbours(data: Data, row: number, onSelect: Open): HTMLElement {
  const [before, after] = data.neighbours(row);
  const link = (at: number, glyph: string, name: string): HTMLElement[] => {
    if (at < 0) return [];
    const mark = markOf(data, at);
    const words = `${data.sites.paths[at]} · ${`${data.role(at)} ${data.site(at).leaf}`.trim()}`;
    const button = h(
      "button",
      { type: "button", class: `neighbour ${mark?.tone ?? ""}`, title: `${name}: ${words}`, onclick: () => onSelect(at) },
      h("span", { class: "glyph" }, glyph),
      h("span", { class: "words" }, `${mark?.glyph ?? ""} ${words}`.trim()),
    );
    return [button];
  };
  return h(
    "div",
    { class: "neighbours", role: "group", "aria-label": "Neighbours in execution order" },
    ...link(before, "↑", "ran before"),
    ...link(after, "↓", "ran after"),
  );
}
