/** Where the keys go in the list of rows: up and down, and in a folded one out and in. */
import type { Group, Listed } from "./tree";

/** The row to stand on, or the group to open or close; null: the key is none of ours. */
export type Step = { to: number } | { fold: Group } | null;

/**
 * What a key does.
 *
 * @param at The place in the list where the keys stand, -1 for none.
 * @param page How many rows a page has.
 */
export function stepOf(key: string, list: Listed, at: number, page: number): Step {
  const last = list.rows.length - 1;
  const places: Record<string, number> = {
    ArrowDown: at + 1,
    ArrowUp: at - 1,
    PageDown: at + page,
    PageUp: at - page,
    Home: 0,
    End: last,
  };
  const place = places[key];
  if (last < 0) return null;
  if (place === undefined) return list.groups.length && at >= 0 ? folding(key, list, at) : null;
  return { to: list.rows[Math.min(last, Math.max(0, place))] as number };
}

/** Right opens, left closes or goes to the group around, Enter and space do either. */
function folding(key: string, list: Listed, at: number): Step {
  const group = groupAt(list, at);
  const either = key === "Enter" || key === " ";
  if (group && (either || key === (group.open ? "ArrowLeft" : "ArrowRight"))) return { fold: group };
  return key === "ArrowLeft" ? { to: around(list, at) } : null;
}

function groupAt({ rows, groups }: Listed, at: number): Group | undefined {
  return groups[-(rows[at] ?? 0) - 1];
}

/** The open group that a row of the list stands in; itself if there is none. */
function around(list: Listed, at: number): number {
  const depth = groupAt(list, at)?.depth ?? Infinity;
  for (let index = at - 1; index >= 0; index--) {
    const group = groupAt(list, index);
    if (group && group.open && group.depth < depth) return list.rows[index] as number;
  }
  return list.rows[at] as number;
}
