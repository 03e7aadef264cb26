/** Python for the row that is looked at: to go on in the next cell. */
import type { Data } from "./data";
import { h, setText } from "./dom";
import type { Site } from "./types";

/** An expression that gives the records of this row; `run` and `comparison` stand for the reader's own names. */
export function expression(data: Data, row: number): string {
  const own = data.site(row);
  // a comparison is listed by the baseline's names
  const { model, module, api = "", path = module, type, role, direction, leaf } = { ...own, ...own.baseline };
  const names: [string, string][] = [
    ["model", model],
    ["module", api ? path : module],
    ["api", api],
    ["direction", direction],
    ["role", role],
    ["leaf", leaf],
    ...(twins(data, row) ? [["type", type] as [string, string]] : []),
  ];
  const query = names.map(([name, value]) => `${name} == ${quoted(value)}`).join(" and ");
  return `${data.status.comparison ? "comparison" : "run"}.df.query(${python(query)})`;
}

const NAMED = ["module", "role", "leaf", "direction", "model"] as const;

/** Whether another row differs in nothing but the class of its module. */
function twins(data: Data, row: number): boolean {
  const own = data.site(row);
  // by the name that tells most: this is asked of every row, at every update
  const same = (other: Site): boolean => NAMED.every((name) => other[name] === own[name]);
  return data.sites.rows.some((other, at) => at !== row && same(other));
}

function quoted(text: string): string {
  return `"${text.replace(/["\\]/g, "\\$&").replace(/\n/g, "\\n")}"`;
}

/** A Python string literal. */
export function python(text: string): string {
  return `'${text.replace(/['\\]/g, "\\$&").replace(/\n/g, "\\n")}'`;
}

/** A button that copies; where a page may not write to the clipboard, the text is shown and selected instead. */
export function copying(text: string): HTMLElement {
  const button = h("button", { type: "button", class: "copy", title: text }, "copy as Python");
  const shown = h("input", { class: "python", readonly: true, value: text, "aria-label": "Python expression", hidden: true });
  button.addEventListener("click", () => {
    const refused = (): void => {
      shown.hidden = false;
      shown.select();
    };
    const done = (): void => setText(button, "copied");
    if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, refused);
    else refused();
  });
  return h("div", { class: "copying" }, button, shown);
}
