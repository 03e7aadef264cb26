/** The first thing to read: the worst finding in one sentence, and under it how far the run has come. */
import { h, setAttribute, setText } from "./dom";
import { count, plural } from "./format";
import type { Kind, Status } from "./types";

const GLYPHS: Record<Kind, string> = { bad: "✕", warn: "!", ok: "✓", empty: "○" };
const ENDINGS: Record<string, string> = {
  finished: "finished",
  stopped: "stopped",
  restarted: "closed by a later start on the same model",
};

export class HeadlineView {
  readonly element: HTMLElement;
  private readonly glyph = h("span", { class: "glyph", "aria-hidden": "true" });
  private readonly sentence = h("span", { class: "sentence" });
  private readonly button: HTMLButtonElement;
  private readonly detail = h("div", { class: "detail-line" });
  private readonly state = h("span", { class: "state" });
  private readonly facts = h("span", {});
  private readonly notices = h("ul", { class: "notices" });

  constructor(onOpen: () => void) {
    this.button = h("button", { type: "button", class: "headline", onclick: onOpen }, this.glyph, this.sentence);
    this.element = h(
      "header",
      { class: "top" },
      h("div", { role: "status", "aria-live": "polite" }, this.button, this.detail),
      h("div", { class: "facts" }, this.state, this.facts),
      this.notices,
    );
  }

  show(status: Status, frozen: boolean): void {
    const { kind, text, detail, row } = status.headline;
    this.element.dataset.kind = kind;
    setText(this.glyph, GLYPHS[kind] ?? GLYPHS.empty);
    setText(this.sentence, text);
    this.button.disabled = row === null;
    setAttribute(this.button, "title", row === null ? null : "Show this row");
    setText(this.detail, detail);
    this.detail.hidden = detail === "";
    this.showState(status, frozen);
    this.showNotices(status);
  }

  private showState(status: Status, frozen: boolean): void {
    const state = status.open ? (frozen ? "view frozen" : "live") : ending(status.ended);
    this.state.dataset.state = status.open ? (frozen ? "frozen" : "live") : "ended";
    setText(this.state, state);
    const facts = [
      status.open && status.step !== null ? `step ${count(status.step)}` : plural(status.steps, "step"),
      plural(status.modules, "module"),
      plural(status.records, "record"),
      status.title,
    ];
    setText(this.facts, facts.filter(Boolean).join(" · "));
  }

  private showNotices({ notices, truncated, unobserved, missed_text }: Status): void {
    const lines = [...(truncated ? [truncated] : []), ...notices];
    const words = JSON.stringify([lines, unobserved, missed_text]);
    if (this.notices.dataset.words === words) return; // an opened list stays open
    this.notices.dataset.words = words;
    const items = lines.map((line) => h("li", {}, line));
    if (unobserved.length) items.push(h("li", {}, unobservedList(unobserved, missed_text)));
    this.notices.replaceChildren(...items);
    this.notices.hidden = items.length === 0;
  }
}

function ending(ended: string): string {
  if (!ended || ended === "open") return "ended";
  return ENDINGS[ended] ?? `ended by ${ended}`;
}

function unobservedList(unobserved: Status["unobserved"], words: string): HTMLElement {
  const lines = unobserved.map(({ module, reason }) =>
    h("li", {}, h("code", {}, module || "(root)"), ` ${reason}`),
  );
  const summary = h("summary", {}, words || `${plural(unobserved.length, "module")} not seen`);
  return h("details", {}, summary, h("ul", {}, ...lines));
}
