/** The steps of a run on a line: drag through them, or follow the latest. */
import { h, setAttribute, setText } from "./dom";
import { count } from "./format";
import type { Data } from "./data";

export interface SliderEvents {
  /** Show this moment; null for the latest, whatever comes. */
  go(moment: number | null): void;
  /** Ask for the steps. */
  load(): void;
}

export class Slider {
  readonly element: HTMLElement;
  private readonly line = h("input", { type: "range", min: 0, step: 1, "aria-label": "Step" });
  private readonly bad = h("span", { class: "bad-step", "aria-hidden": "true", hidden: true });
  private readonly words = h("span", { class: "words" });
  private readonly why = h("span", { class: "why", id: "pnb-steps-why" });
  private readonly follow: HTMLButtonElement;
  private readonly load: HTMLButtonElement;
  private last = 0;

  constructor(private readonly events: SliderEvents) {
    this.follow = h("button", { type: "button", class: "toggle", "aria-pressed": "true" }, "follow live");
    this.follow.addEventListener("click", () => {
      const following = this.follow.getAttribute("aria-pressed") === "true";
      this.go(following ? this.last : null, following);
    });
    this.load = h("button", { type: "button", class: "toggle" }, "load the steps");
    this.load.addEventListener("click", () => events.load());
    this.line.addEventListener("input", () => this.go(this.line.valueAsNumber));
    this.element = h(
      "div",
      { class: "steps", role: "group", "aria-label": "Steps" },
      h("div", { class: "line" }, this.line, this.bad),
      this.words,
      this.follow,
      this.load,
      this.why,
    );
  }

  /** One moment later or earlier. */
  move(by: number): void {
    if (!this.line.disabled) this.go(Math.min(this.last, Math.max(0, this.line.valueAsNumber + by)));
  }

  /** The right end is the latest: a run that goes on is followed there, unless it is pinned. */
  private go(moment: number | null, pinned = false): void {
    this.events.go(moment === this.last && !pinned ? null : moment);
  }

  show(data: Data, missing: boolean, frozen: boolean): void {
    const { history, moment, status, step } = data;
    const { moments, why } = history;
    const few = moments.length < 2;
    this.last = Math.max(0, moments.length - 1);
    this.line.max = String(this.last);
    this.line.valueAsNumber = moment ?? this.last;
    this.line.disabled = few;
    this.line.classList.toggle("past", moment !== null);
    this.element.classList.toggle("few", few);
    // two runs are shown at the step in which they part, and at no other
    this.element.hidden = status.comparison !== null || (step === null && few && !why);
    const newest = Math.max(status.step ?? 0, moments.at(-1)?.step ?? 0);
    const { began } = data;
    this.mark(began, moments[began]?.step);
    const where = began >= 0 && moment === began ? ", where it began" : "";
    const now = step === null ? "" : `step ${count(step)} of ${count(newest)}${where}`;
    setText(this.words, now);
    setAttribute(this.line, "aria-valuetext", now);
    setAttribute(this.line, "title", few ? why : "drag, or press , and . anywhere in the table");
    setAttribute(this.line, "aria-describedby", why ? this.why.id : null);
    const whole = moment === null ? "" : "the first line is of the whole run";
    setText(this.why, missing && few ? `of ${why}` : [whole, why].filter(Boolean).join("; "));
    this.load.hidden = !missing || !few;
    this.follow.hidden = few;
    setText(this.follow, status.open ? "follow live" : "latest");
    setAttribute(this.follow, "aria-pressed", String(moment === null && !frozen));
  }

  /** Where something first was not finite. */
  private mark(place: number, step: number | undefined): void {
    this.bad.hidden = place < 0 || this.last === 0;
    if (this.bad.hidden) return;
    this.bad.style.setProperty("--at", String(place / this.last));
    setAttribute(this.bad, "title", `step ${count(step ?? NaN)}: the first that was not finite`);
  }
}
