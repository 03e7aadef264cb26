/** Badges and statuses in words: the bits and codes are those of the Python side. */
import type { Found } from "./types";

export type Tone = "bad" | "warn" | "mute";

export interface Badge {
  bit: number;
  glyph: string;
  word: string;
  tone: Tone;
  why: string;
}

export const NAN = 1;
export const INF = 2;
export const ABSENT_BIT = 128;
export const DOWNSTREAM = 256;
const NONFINITE = NAN | INF;

/** Most severe first: this is the order in which a row shows them. */
export const BADGES: readonly Badge[] = [
  { bit: NAN, glyph: "✕", word: "NaN", tone: "bad", why: "holds NaN" },
  { bit: INF, glyph: "✕", word: "Inf", tone: "bad", why: "holds infinities" },
  { bit: 8, glyph: "!", word: "overflow risk", tone: "warn", why: "close to the largest value of its dtype" },
  { bit: 4, glyph: "!", word: "saturated", tone: "warn", why: "elements stand at the largest value of the dtype" },
  { bit: 64, glyph: "↑", word: "exploding", tone: "warn", why: "has grown far beyond its usual size" },
  { bit: 32, glyph: "↓", word: "vanishing", tone: "warn", why: "has become far smaller than usual" },
  { bit: 16, glyph: "~", word: "all zeros", tone: "warn", why: "every element is 0" },
];

export const ANOMALY = BADGES.reduce((bits, badge) => bits | badge.bit, 0);

/** Status names by code, each with what to tell the reader; `terms.STATUSES` in the same order. */
export const STATUSES: readonly (readonly [name: string, reason: string])[] = [
  ["ok", "measured"],
  ["empty", "the tensor has no elements"],
  ["no finite", "no element is finite"],
  ["meta", "a meta tensor has no values"],
  ["unsupported", "this dtype or layout cannot be measured"],
  ["passthrough", "the output is the input itself"],
  ["stale view", "a view of a tensor that was written in place since: asking for its gradient would change it"],
  ["skipped", "skipped: the budget was used up"],
  ["private format", "the device keeps it in a private format"],
  ["vmapped", "inside vmap there are no values to read"],
  ["failed", "the probe failed here; the model was not affected"],
  ["not asked", "only the structure was asked for"],
  ["has NaN", "the dump says that there are NaN, not how many"],
  ["has Inf", "the dump says that there are infinities, not how many"],
];
const FAILED = 10;
/** A code of our own: the history has other rows. */
export const NOT_KEPT = -1;

export function statusName(code: number): string {
  return STATUSES[code]?.[0] ?? (code === NOT_KEPT ? "not kept" : "no record");
}

/** Why a value is absent; a row that never got a record has no status at all. */
export function statusReason(code: number): string {
  if (Number.isNaN(code)) return "nothing recorded";
  if (code === NOT_KEPT) return "earlier steps of this row are not here";
  return code === 0 ? "not computed" : (STATUSES[code]?.[1] ?? `status ${code}`);
}

const NONE: readonly Badge[] = [];

/** The badges of a row, most severe first; an absent row gets its status as one. */
export function badgesOf(bits: number, status: number): readonly Badge[] {
  if (!bits) return NONE;
  const found = BADGES.filter((badge) => bits & badge.bit);
  if (!(bits & ABSENT_BIT) || found.length) return found;
  return [absentBadge(status)];
}

function absentBadge(status: number): Badge {
  const tone = status === FAILED ? "warn" : "mute";
  return { bit: ABSENT_BIT, glyph: "–", word: statusName(status), tone, why: statusReason(status) };
}

const TONES = { error: "bad", warning: "warn", note: "mute" } as const;
const TONE_RANK = ["bad", "warn", "mute"];

/** What was found of a row as badges: none of what its own badges say already. */
export function withFound(badges: readonly Badge[], found: readonly Found[]): readonly Badge[] {
  const more = new Map<string, Badge>();
  for (const { severity: how, sign, word, text } of found) {
    if (!word || more.has(word) || badges.some((badge) => badge.word === word)) continue;
    more.set(word, { bit: 0, glyph: sign, word, tone: TONES[how] ?? "mute", why: text });
  }
  if (!more.size) return badges;
  const known = badges.filter(({ bit }) => bit !== ABSENT_BIT);
  return [...known, ...more.values()].sort((a, b) => TONE_RANK.indexOf(a.tone) - TONE_RANK.indexOf(b.tone));
}

/** Whether a badge is more than worth knowing. */
export function isAnomaly({ bit, tone }: Badge): boolean {
  return (bit & ANOMALY) !== 0 || (bit === 0 && tone !== "mute");
}

/** How bad the worst of what was found of a row is; `place` is its place among all. */
export function severityOf({ severity: how }: Found, place: number, named: boolean): number {
  if (how === "note") return 5;
  const later = Math.min(place, 100) / 100;
  if (!named) return 32 - later;
  return how === "error" ? 96 - later : 34 - later;
}

/**
 * How bad a row is, for "worst first".
 *
 * Where non-finite values were born comes first; what may explain them comes before rows that merely inherited them.
 */
export function severity(bits: number, status: number): number {
  if (bits & NONFINITE) return bits & DOWNSTREAM ? 50 : 100;
  const rank = BADGES.findIndex((badge) => bits & badge.bit);
  if (rank >= 0) return (BADGES[rank]?.bit ?? 0) & (32 | 16) ? 40 - rank : 90 - rank;
  if (bits & ABSENT_BIT) return status === FAILED ? 20 : 10;
  return 0;
}

export interface VerdictWord {
  glyph: string;
  word: string;
  tone: Tone | "good" | "quiet";
  why: string;
}

/** What is said of a pair, by the names that the Python side uses. */
export const VERDICTS: Record<string, VerdictWord> = {
  diverged: { glyph: "✕", word: "diverged", tone: "bad", why: "more than rounding and what came in explain" },
  only_in_baseline: { glyph: "◁", word: "baseline only", tone: "warn", why: "the candidate has nothing to compare with" },
  only_in_candidate: { glyph: "▷", word: "candidate only", tone: "warn", why: "the baseline has nothing to compare with" },
  not_comparable: { glyph: "–", word: "not comparable", tone: "warn", why: "a side has no numbers" },
  close: { glyph: "≈", word: "close", tone: "quiet", why: "explained by rounding" },
  same: { glyph: "✓", word: "same", tone: "good", why: "every number agrees" },
};
