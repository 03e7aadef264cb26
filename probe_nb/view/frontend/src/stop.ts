/**
 * Interrupts the kernel, where the front end lends us its handle: only there is anything shown.
 *
 * The cell ends with KeyboardInterrupt as by the notebook's own button; what was recorded becomes the report.
 */
import { h, setText } from "./dom";
import type { Kernel, Model } from "./types";

export class StopButton {
  readonly element: HTMLButtonElement;
  private open = false;
  private stopping = false;
  private heard: Kernel | null = null;
  private readonly changed = (): void => this.paint();

  constructor(private readonly model: Model) {
    this.element = h("button", { type: "button", class: "toggle stop", hidden: true }, "■ stop");
    this.element.title = "Interrupt the cell that runs: it ends with KeyboardInterrupt, and the report stays";
    this.element.addEventListener("click", () => this.stop());
  }

  show(open: boolean): void {
    this.open = open;
    const { kernel } = this;
    if (kernel !== this.heard) {
      this.destroy();
      kernel?.statusChanged?.connect(this.changed);
      this.heard = kernel;
    }
    this.paint();
  }

  destroy(): void {
    this.heard?.statusChanged?.disconnect(this.changed);
    this.heard = null;
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

  /** Shown while a cell runs, as far as the front end tells. */
  private paint(): void {
    const { kernel } = this;
    const busy = kernel !== null && (kernel.status === undefined || kernel.status === "busy");
    if (!busy) this.stopping = false;
    this.element.hidden = !this.open || !busy;
    this.element.disabled = this.stopping;
    setText(this.element, this.stopping ? "stopping …" : "■ stop");
  }

  private stop(): void {
    this.stopping = true;
    this.paint();
    const failed = (error: unknown): void => {
      this.stopping = false;
      this.paint();
      this.element.title = `The front end could not interrupt the kernel: ${String(error)}`;
    };
    try {
      void this.kernel?.interrupt?.()?.catch?.(failed);
    } catch (error) {
      failed(error);
    }
  }
}
