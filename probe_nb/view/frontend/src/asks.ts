/**
 * Questions to the kernel.
 *
 * While a cell runs it depends on the kernel and on the front end whether a question is answered, and when: then nothing
 * is asked, and what needs an answer is greyed with the reason.
 */
import type { Model, Status } from "./types";

/** A question by its name; its answer is the trait of the same name. */
export interface Question {
  ask: string;
  [more: string]: unknown;
}

export class Asks {
  private open = false;

  constructor(private readonly model: Model) {}

  /** Learn whether the run goes on. */
  update(status: Status): void {
    this.open = status.open;
  }

  get possible(): boolean {
    return this.why === "";
  }

  /** Why nothing can be asked, in words; empty if it can. */
  get why(): string {
    if (!this.model.send) return "a report cannot ask for more; run.inspect() can";
    return this.open ? "nothing is asked of the kernel while the run goes on" : "";
  }

  /** Why a question was not answered; empty if it was, or is not yet. */
  refusal(question: string): string {
    const found = this.model.get("refused");
    const refused: unknown = typeof found === "string" && found ? JSON.parse(found) : {};
    const why = (refused as Record<string, unknown> | null)?.[question];
    return typeof why === "string" ? why : "";
  }

  /** Ask; tell whether it was asked. */
  ask(question: Question): boolean {
    if (!this.possible) return false;
    this.model.send?.(question);
    return true;
  }
}
