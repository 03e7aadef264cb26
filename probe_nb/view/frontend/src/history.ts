/** Earlier moments of a run: what the table showed at the end of steps before. */
import type { History } from "./types";

export const NO_HISTORY: History = { moments: [], why: "" };
