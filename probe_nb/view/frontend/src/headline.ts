/** The first thing to read: the worst finding in one sentence, and under it how far the run has come. */
import { h, setAttribute, setText } from "./dom";
import { count, plural, shortDtype } from "./format";
import type { Facts, Found, Kind, Status } from "./types";

const GLYPHS: Record<Kind, string> = { bad: "✕", warn: "!", ok: "✓", empty: "○" };
const MARKS: Record<Found["severity"], string> = { error: "✕", warning: "!", note: "·" };
const ENDINGS: Record<string, string> = {
  finished: "finished",
  restarted: "closed by a later start on the same model",
};

const NOT_MEASURED =
  "Memory of the records. How much longer a step takes is not measured here: probe.self_check() measures it.";

export class HeadlineView {
  readonly element: HTMLElement;
  private readonly glyph = h("span", { class: "glyph", "aria-hidden": "true" });
  private readonly sentence = h("span", { class: "sentence" });
  private readonly button: HTMLButtonElement;
  private readonly detail = h("div", { class: "detail-line" });
  private readonly state = h("span", { class: "state" });
  private readonly facts = h("span", {});
  private readonly cost = h("span", { title: NOT_MEASURED });
  private readonly fed = h("div", { class: "fed", hidden: true });
  private readonly further = h("ul", { class: "further", hidden: true });
  private readonly notices = h("ul", { class: "notices" });

  constructor(
    onOpen: () => void,
    private readonly open: (row: number) => void,
  ) {
    this.button = h("button", { type: "button", class: "headline", onclick: onOpen }, this.glyph, this.sentence);
    this.element = h(
      "header",
      { class: "top" },
      h("div", { role: "status", "aria-live": "polite" }, this.button, this.detail),
      this.further,
      this.fed,
      h("div", { class: "facts" }, this.state, h("span", {}, this.facts, this.cost)),
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
    this.showFurther(status);
    this.showFed(status);
    this.showState(status, frozen);
    this.showNotices(status);
  }

  /** What was found besides: the next findings, each with the way to its row. */
  private showFurther({ findings, further, left }: Status): void {
    const found = further.flatMap((at) => findings[at] ?? []);
    const words = JSON.stringify([found.map(({ severity, text, row }) => [severity, text, row]), left]);
    if (this.further.dataset.words === words) return; // what has the focus stays
    this.further.dataset.words = words;
    const items = found.map(({ severity, text, row }) => {
      const line = [h("span", { class: "glyph", "aria-hidden": "true" }, MARKS[severity]), h("span", { class: "sentence" }, text)];
      if (row === null) return h("li", { class: severity }, ...line);
      const go = { type: "button", title: "Show this row", onclick: () => this.open(row) };
      return h("li", { class: severity }, h("button", go, ...line));
    });
    if (left) items.push(h("li", {}, `and ${left} more: run.findings()`));
    this.further.replaceChildren(...items);
    this.further.hidden = items.length === 0;
  }

  /** Whether both runs were fed the same: without that nothing else means much. */
  private showFed({ comparison }: Status): void {
    this.fed.hidden = !comparison?.fed_text;
    if (!comparison) return;
    const { fed, fed_text: words } = comparison;
    if (this.fed.dataset.words === words) return;
    this.fed.dataset.words = words;
    this.fed.dataset.kind = fed === null ? "empty" : fed ? "ok" : "bad";
    const cut = words.indexOf(". ") + 1 || words.length;
    const glyph = h("span", { class: "glyph", "aria-hidden": "true" }, fed === null ? "○" : fed ? "✓" : "✕");
    const rest = words.slice(cut).trim();
    const summary = h("summary", {}, glyph, ` ${words.slice(0, cut)}`);
    this.fed.replaceChildren(h("details", {}, summary, h("p", {}, rest)));
  }

  private showState(status: Status, frozen: boolean): void {
    const state = status.open ? (frozen ? "view frozen" : "live") : ending(status.ended);
    this.state.dataset.state = status.open ? (frozen ? "frozen" : "live") : "ended";
    setText(this.state, state);
    const facts = [
      status.open && status.step !== null ? `step ${count(status.step)}` : plural(status.steps, "step"),
      plural(status.modules, "module"),
      ...(status.facts ? [plural(status.facts.rows, "row")] : []),
      plural(status.records, "record"),
      ...(status.comparison
        ? [`baseline: ${status.comparison.baseline}`, `candidate: ${status.comparison.candidate}`]
        : [status.title]),
      ...(status.facts ? made(status.facts) : []),
    ];
    setText(this.facts, facts.filter(Boolean).join(" · "));
    setText(this.cost, status.facts ? ` · ${cost(status.facts)}` : "");
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

/** Devices and dtypes; of many the first ones. */
function made({ devices, dtypes }: Facts): string[] {
  const first = (names: string[], most: number): string =>
    names.slice(0, most).join(", ") + (names.length > most ? ` and ${names.length - most} more` : "");
  return [first(devices, 2), first(dtypes.map(shortDtype), 3)];
}

/** What is known of the cost; how much longer a step takes is not known without a step that is not watched. */
function cost({ memory, spilled }: Facts): string {
  return `the records take ${memory}${spilled ? `, ${plural(spilled, "record")} on disk` : ""}`;
}

function ending(ended: string): string {
  if (!ended || ended === "open") return "ended";
  if (ended.startsWith("stopped")) return ended;
  return ENDINGS[ended] ?? `ended by ${ended}`;
}

function unobservedList(unobserved: Status["unobserved"], words: string): HTMLElement {
  const lines = unobserved.map(({ module, reason }) =>
    h("li", {}, h("code", {}, module || "(root)"), ` ${reason}`),
  );
  const summary = h("summary", {}, words || `${plural(unobserved.length, "module")} not seen`);
  return h("details", {}, summary, h("ul", {}, ...lines));
}
