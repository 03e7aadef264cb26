/** What is said of both sides of a comparison, and of a row then and now, in one place. */
import type { Data } from "./data";
import { plural, shape, shortDtype } from "./format";

/** One word where the two agree, or where there is one side alone; both where not. */
export function bothOf(data: Data, row: number, name: "dtype" | "shape" | "device" | "type" | "module"): string {
  const site = data.site(row);
  if (name === "shape" && data.moment !== null && changed(data, row)) return plural(data.value("numel", row), "element");
  const written = (value: unknown): string => (name === "shape" ? shape((value as number[]) ?? []) : shortDtype(String(value)));
  const before = site.baseline?.[name];
  return before === undefined ? written(site[name]) : `${written(before)} → ${written(site[name])}`;
}

/** Whether the tensor had another size than it has now: sites say the newest shape, moments have numbers alone. */
function changed(data: Data, row: number): boolean {
  const then = data.value("numel", row);
  return then >= 0 && then !== data.site(row).shape.reduce((all, size) => all * size, 1);
}
