/** All that is known about the selected row: pictures first, then numbers, then what stands around it. */
import { histogramChart } from "./chart";
import { bothOf } from "./compared";
import { copying, expression } from "./copy";
import type { Data } from "./data";
import { h } from "./dom";
import { ABSENT, count, plural } from "./format";
import { advices, findings } from "./findings";
import { HeatView } from "./heatview";
import { histogramOf } from "./histogram";
import { numbers } from "./numbers";
import { legend, pairFindings, pairNumbers } from "./pairdetail";
import type { Pictures } from "./picture";
import { PictureView } from "./pictureview";
import { neighbours, Siblings } from "./related";
import { stackView } from "./stack";
import { TrendView } from "./trendview";

/** Charts are drawn as wide as there is room, within these. */
const NARROW = 240;
const WIDE = 420;
/** From here on two charts stand side by side. */
const TWO = 560;

export class Detail {
  private readonly who = h("div", { class: "who" });
  private readonly heat = new HeatView();
  private readonly histogram = h("div", { class: "canvas" });
  private readonly key = h("div", {});
  private readonly trend = new TrendView(() => this.again());
  private readonly kept: PictureView;
  private readonly advice = h("div", { class: "advices" });
  private readonly numbers = h("div", { class: "numbers" });
  private readonly siblings: Siblings;
  private readonly around = h("div", {});
  private readonly values = h(
    "figure",
    { class: "values" },
    h("figcaption", {}, h("b", {}, "values"), " log2 scale, √ counts; what other dtypes can hold"),
    this.histogram,
    this.key,
  );
  private readonly whole: HTMLElement[];
  readonly element = h("section", { class: "detail", "aria-label": "Selected tensor" });
  private shown: [data: Data, row: number] | null = null;
  private width = 0;
  /** The room that there is: to measure it in the midst of an update takes longer than the rest. */
  private inside = 0;
  private readonly sizes = new ResizeObserver(() => this.resized());
  private readonly theme = new MutationObserver(() => this.redraw());

  constructor(
    private readonly onSelect: (row: number) => void,
    private readonly pictures: Pictures,
  ) {
    this.kept = new PictureView(pictures);
    this.siblings = new Siblings(onSelect);
    const charts = h("div", { class: "charts" }, this.heat.element, this.values, this.trend.element, this.kept.element);
    const related = h("div", { class: "related" }, this.siblings.element, this.around);
    this.whole = [this.who, charts, this.advice, this.numbers, related];
    this.sizes.observe(this.element);
  }

  /** Follow the theme of the root, which canvases do not do by themselves. */
  follow(root: HTMLElement): void {
    this.theme.observe(root, { attributes: true, attributeFilter: ["data-theme", "style"] });
  }

  destroy(): void {
    this.sizes.disconnect();
    this.theme.disconnect();
    this.pictures.stop();
  }

  show(data: Data, row: number): void {
    if (row < 0 || row >= data.size) {
      this.shown = null;
      this.element.replaceChildren(h("p", { class: "hint" }, "Select a row to see all its numbers."));
      return;
    }
    this.shown = [data, row];
    if (this.who.parentElement !== this.element) this.element.replaceChildren(...this.whole);
    this.who.replaceChildren(...this.about(data, row));
    this.paint(data, row);
    const compared = data.frame.compared !== null;
    // pictures before advice: what is seen says what is wrong
    this.advice.replaceChildren(...(compared ? [] : advices(data, row)));
    this.numbers.replaceChildren(...(compared ? pairNumbers(data, row) : numbers(data, row)));
    this.siblings.show(data, row);
    const stack = stackView(data.site(row).stack ?? "", data.sites.stacks);
    this.around.replaceChildren(
      neighbours(data, row, this.onSelect),
      ...(stack ? [stack] : []),
      copying(expression(data, row)),
    );
  }

  private paint(data: Data, row: number): void {
    this.width = this.room();
    const before = data.frame.compared?.baseline;
    const setting = data.setting(row);
    this.heat.show(data, row, this.width);
    const limits = limitsOf(data, row);
    this.histogram.replaceChildren(
      histogramChart(histogramOf(data.frame, row), limits, this.width, before && histogramOf(before, row)),
    );
    this.key.replaceChildren(...(before ? [legend()] : []));
    this.trend.show(data, row, this.width);
    this.kept.show(data, row, this.width);
    // of one number there is nothing to draw but how it went on
    this.values.hidden = setting;
    this.trend.element.hidden = setting && before !== undefined;
    if (setting) this.heat.element.hidden = this.kept.element.hidden = true;
  }

  /** The width that a chart has. */
  private room(): number {
    this.inside ||= this.element.clientWidth;
    const inside = this.inside - 24;
    const each = inside >= TWO ? (inside - 28) / 2 : inside;
    return Math.round(Math.min(WIDE, Math.max(NARROW, each)));
  }

  private again(): void {
    if (this.shown) this.paint(...this.shown);
  }

  private resized(): void {
    this.inside = this.element.clientWidth;
    if (this.room() !== this.width) this.again();
  }

  private redraw(): void {
    this.heat.draw();
    this.kept.draw();
  }

  private about(data: Data, row: number): HTMLElement[] {
    const site = data.site(row);
    const compared = data.status.comparison !== null;
    const both = (name: "type" | "shape" | "dtype" | "device"): string => bothOf(data, row, name);
    const facts = [`${data.role(row)} ${site.leaf}`.trim(), both("type"), both("shape"), both("dtype"), both("device")];
    const now = data.value("step", row);
    const step = count(Number.isNaN(now) ? data.before("step", row) : now);
    const when = [
      step === ABSENT ? "" : `numbers of step ${step}`,
      data.value("calls", row) > 1 ? plural(data.value("calls", row), "call") : "",
      data.value("numel", row) >= 0 ? plural(data.value("numel", row), "element") : "",
    ];
    const line = (words: string[]): HTMLElement => h("p", { class: "facts" }, words.filter(Boolean).join(" · "));
    return [
      h("h3", {}, data.sites.paths[row] ?? ""),
      ...(compared ? pairFindings(data, row, this.onSelect) : findings(data, row)),
      line(facts),
      line(when),
    ];
  }
}

/** Ranges of dtypes are drawn for what could be stored in them: not for integers. */
function limitsOf(data: Data, row: number) {
  return /float|complex/.test(data.site(row).dtype) ? data.status.dtype_limits : {};
}
