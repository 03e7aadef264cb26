/** What is said of both sides of a comparison in one place. */
import type { Data } from "./data";
import { shape, shortDtype } from "./format";

/** One word where the two agree, or where there is one side alone; both where not. */
export function bothOf(data: Data, row: number, name: "dtype" | "shape" | "device" | "type" | "module"): string {
  const site = data.site(row);
  const written = (value: unknown): string => (name === "shape" ? shape((value as number[]) ?? []) : shortDtype(String(value)));
  const before = site.baseline?.[name];
  return before === undefined ? written(site[name]) : `${written(before)} → ${written(site[name])}`;
}
