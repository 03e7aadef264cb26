/** What speaks for the badges of a row, in its own numbers. */
import type { Data } from "./data";
import { h } from "./dom";
import { count, percent, plural } from "./format";
import type { Badge } from "./words";

export function findings(data: Data, row: number): HTMLElement[] {
  const first = data.value("first_bad_step", row);
  const notes = data.badges(row).map((badge) => {
    const mark = h("span", { class: `badge ${badge.tone}` }, `${badge.glyph} ${badge.word}`);
    return h("p", { class: "finding" }, mark, evidence(data, row, badge));
  });
  const more = [
    ...(first >= 0 ? [`first non-finite at step ${count(first)}${later(data, row, first)}`] : []),
    ...(data.inherited(row) ? ["inherited from an earlier module"] : []),
  ];
  if (more.length) notes.push(h("p", { class: "finding facts" }, more.join("; ")));
  return notes;
}

/** What to try, of the findings that name this row. */
export function advices(data: Data, row: number): HTMLElement[] {
  const own = data.found(row).filter(({ row: named, advice }) => named === row && advice);
  return own.map(({ advice }) => h("p", { class: "finding advice" }, h("b", {}, "try: "), advice));
}

/** Where the numbers shown are not those of the first bad step: that they are not. */
function later(data: Data, row: number, first: number): string {
  const step = data.value("step", row);
  return step > first ? ` (the numbers here are of step ${count(step)})` : "";
}

/** What speaks for a badge, in this row's own numbers where they say it best. */
function evidence(data: Data, row: number, badge: Badge): string {
  if (!badge.bit) return badge.why;
  const of = ` of ${plural(data.value("numel", row), "element")}`;
  const largest = data.status.dtype_limits[data.site(row).dtype]?.[2];
  const absmax = data.value("absmax", row);
  if (badge.word === "NaN" && data.value("nan_count", row) > 0) return count(data.value("nan_count", row)) + of;
  if (badge.word === "Inf") {
    const signs = [["posinf_count", "+"], ["neginf_count", "-"]] as const;
    const found = signs.filter(([name]) => data.value(name, row) > 0);
    if (found.length) return found.map(([name, sign]) => `${count(data.value(name, row))} ${sign}Inf`).join(", ");
  }
  if (badge.word === "saturated" && data.value("at_max_count", row) > 0) {
    return `${count(data.value("at_max_count", row))}${of} at the largest value`;
  }
  if (badge.word === "overflow risk" && largest && absmax >= 0) {
    return `|x| reaches ${percent(absmax, largest)} % of the largest ${data.site(row).dtype}`;
  }
  return badge.why;
}
