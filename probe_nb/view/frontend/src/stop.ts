/**
 * Interrupts the kernel, where the front end lends us its handle: only there is anything shown.
 *
 * The cell ends with KeyboardInterrupt as by the notebook's own button; what was recorded becomes the report. It is there
 * as long as the run is open: whether a cell runs is not to be had (a kernel is called idle after each message that
 * another of its threads has answered), and to interrupt one that is idle does nothing.
 */
import { h, setText } from "./dom";
import type { Kernel, Model } from "./types";

/** Milliseconds after which it can be pressed again: a kernel may be deep in code that does not listen. */
const AGAIN = 3000;

export class StopButton {
  readonly element: HTMLButtonElement;
  private waiting = 0;

  constructor(private readonly model: Model) {
    this.element = h("button", { type: "button", class: "toggle stop", hidden: true }, "■ stop");
    this.element.title = "Interrupt the cell that runs: it ends with KeyboardInterrupt, and the report stays";
    this.element.addEventListener("click", () => this.stop());
  }

  show(open: boolean): void {
    this.element.hidden = !open || this.kernel === null;
  }

  destroy(): void {
    clearTimeout(this.waiting);
  }

  /** The kernel, where it can be interrupted; what front ends show of themselves is no promise. */
  private get kernel(): Kernel | null {
    try {
      const kernel = this.model.widget_manager?.kernel;
      return typeof kernel?.interrupt === "function" ? kernel : null;
    } catch {
      return null;
    }
  }

  private stop(): void {
    this.wait(true);
    this.waiting = window.setTimeout(() => this.wait(false), AGAIN);
    const failed = (error: unknown): void => {
      this.element.title = `The front end could not interrupt the kernel: ${String(error)}`;
      this.wait(false);
    };
    try {
      this.kernel?.interrupt?.()?.catch?.(failed);
    } catch (error) {
      failed(error);
    }
  }

  private wait(on: boolean): void {
    clearTimeout(this.waiting);
    this.element.disabled = on;
    setText(this.element, on ? "stopping …" : "■ stop");
  }
}
