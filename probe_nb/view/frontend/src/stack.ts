/** The lines of the user's that led to a call, as Python writes them, taken apart and shown. */
import { h } from "./dom";

export interface Line {
  /** `Cell In[3]:2`, or the name of a file without its folders. */
  where: string;
  /** The whole name, to point at. */
  file: string;
  name: string;
  source: string;
}

/** One list per way that led to the call, the innermost line first. */
export function parseStack(text: string): Line[][] {
  return text.split("\n\n").map((way) => {
    const lines: Line[] = [];
    for (const line of way.split("\n")) {
      const found = /^File (.*), line (\d+), in (.*)$/.exec(line);
      const last = lines.at(-1);
      if (found) {
        const [, file = "", number = "", name = ""] = found;
        lines.push({ where: `${file.replace(/^.*[\\/]/, "")}:${number}`, file: `${file}, line ${number}`, name, source: "" });
      } else if (last && line.startsWith("    ")) last.source = line.trim();
      else if (line) lines.push({ where: line, file: "", name: "", source: "" });
    }
    return lines;
  });
}

/** How many lines are shown before one asks for the others. */
const FIRST = 2;

/** The stack of a row; without one, in a soft line, how to get it. */
export function stackView(text: string, recorded: boolean): HTMLElement | null {
  if (!text) {
    return recorded ? null : h("p", { class: "stack soft" }, "where it is called from: recorded with ", h("code", {}, "stacks=True"));
  }
  const ways = parseStack(text);
  const parts = ways.flatMap((lines, at) => [...(at ? [h("p", { class: "soft" }, "and from")] : []), ...listed(lines)]);
  return h("div", { class: "stack" }, h("h4", {}, "called from"), ...parts);
}

function listed(lines: readonly Line[]): HTMLElement[] {
  const items = lines.map(({ where, file, name, source }) =>
    h(
      "li",
      { title: file },
      ...(source ? [h("code", {}, source)] : []),
      h("span", { class: "soft" }, [where, name && `in ${name}`].filter(Boolean).join(" ")),
    ),
  );
  if (items.length <= FIRST + 1) return [h("ol", {}, ...items)];
  const more = h("details", {}, h("summary", {}, `${items.length - FIRST} more lines`), h("ol", {}, ...items.slice(FIRST)));
  return [h("ol", {}, ...items.slice(0, FIRST)), more];
}
