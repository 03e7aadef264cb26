/**
 * Interrupts the kernel, where the front end lends us its handle: only there is anything shown.
 *
 * The cell ends with KeyboardInterrupt as by the notebook's own button; what was recorded becomes the report. It is there
 * while the run is open, and grey while no cell runs, as far as that is known: a kernel is called idle between cells, but
 * also after each message that another of its threads has answered. So numbers that come later say that a cell runs.
 */
import { h, setText } from "./dom";
import type { Kernel, Model } from "./types";

/** Milliseconds after which it can be pressed again: a kernel may be deep in code that does not listen. */
const AGAIN = 3000;
const HOW = "Interrupt the cell that runs: it ends with KeyboardInterrupt, and the report stays";

export class StopButton {
  readonly element: HTMLButtonElement;
  private waiting = 0;
  private pressed = false;
  private idle = false;
  private fault = "";
  /** The kernel that is listened to. */
  private heard: Kernel | null = null;

  constructor(private readonly model: Model) {
    this.element = h("button", { type: "button", class: "toggle stop", hidden: true }, "■ stop");
    this.element.addEventListener("click", () => this.stop());
    model.on("change:frame", this.received);
  }

  show(open: boolean): void {
    const { kernel } = this;
    if (kernel !== this.heard) {
      this.listen(false);
      this.heard = kernel;
      this.idle = kernel?.status === "idle";
      this.listen(true);
    }
    this.element.hidden = !open || kernel === null;
    this.paint();
  }

  private paint(): void {
    this.element.disabled = this.pressed || this.idle;
    this.element.title = this.fault || (this.idle ? "No cell runs" : HOW);
    setText(this.element, this.pressed ? "stopping …" : "■ stop");
  }

  destroy(): void {
    clearTimeout(this.waiting);
    this.model.off("change:frame", this.received);
    this.listen(false);
  }

  private readonly received = (): void => this.turn(false);
  private readonly turned = (_: unknown, status: unknown): void => this.turn(status === "idle");

  private turn(idle: boolean): void {
    this.idle = idle;
    if (idle) this.pressed = false;
    this.paint();
  }

  private listen(on: boolean): void {
    try {
      const signal = this.heard?.statusChanged;
      if (on) signal?.connect?.(this.turned);
      else signal?.disconnect?.(this.turned);
    } catch {
      // what front ends show of themselves is no promise
    }
  }

  /** The kernel, where it can be interrupted. */
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
      this.fault = `The front end could not interrupt the kernel: ${String(error)}`;
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
    this.pressed = on;
    if (on) this.fault = "";
    this.paint();
  }
}
