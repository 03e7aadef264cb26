/** Python for the row that is looked at: to go on in the next cell. */
import type { Data } from "./data";
import { h, setText } from "./dom";

/** An expression that gives the rows of this site; `run` and `comparison` stand for the reader's own names. */
export function expression(data: Data, row: number): string {
  const { module, role, leaf, direction } = data.site(row);
  const cut = module.lastIndexOf(", ");
  const parts = [
    `module == ${quoted(cut < 0 ? module : module.slice(0, cut))}`,
    ...(cut < 0 ? [] : [`api == ${quoted(module.slice(cut + 2))}`]),
    `role == ${quoted(role)}`,
    `direction == ${quoted(direction)}`,
    ...(leaf ? [`leaf == ${quoted(leaf)}`] : []),
  ];
  const query = parts.join(" and ");
  return `${data.status.comparison ? "comparison" : "run"}.df.query(${python(query)})`;
}

function quoted(text: string): string {
  return `"${text.replace(/["\\]/g, "\\$&")}"`;
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
