/** What goes wrong in the view is said in the view, and nowhere else: thrown, it would surface in the notebook's code. */
import { h } from "./dom";

export class Trouble {
  readonly element = h("p", { class: "trouble", role: "alert", hidden: true });

  guard(action: () => void): void {
    try {
      action();
      this.element.hidden = true;
    } catch (error) {
      this.element.textContent = `The inspector cannot show this: ${reason(error)}. The run itself is not affected.`;
      this.element.hidden = false;
      console.error("probe_nb inspector", error);
    }
  }
}

/** An error in words. */
export function reason(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
