/** Which rows, and in which order. */
import type { Column } from "./cells";
import type { Choice, Data } from "./data";
import { h, setText } from "./dom";
import { count, plural } from "./format";
import { handled } from "./keys";
import { modulesOf } from "./modules";
import { VERDICTS } from "./words";

export interface ToolbarEvents {
  choose(change: Partial<Choice>): void;
  /** Show or hide a column. */
  column(key: string, shown: boolean): void;
  tree(on: boolean): void;
  /** One line per module, or one per tensor. */
  modules(on: boolean): void;
  /** Go to the next place where two runs part. */
  next(): void;
  freeze(frozen: boolean): void;
  leave(): void;
}

export class Toolbar {
  readonly element: HTMLElement;
  private readonly search: HTMLInputElement;
  private readonly role = h("select", { "aria-label": "Role" });
  private readonly order = h(
    "select",
    { "aria-label": "Order" },
    h("option", { value: "execution" }, "execution order"),
    h("option", { value: "worst" }, "worst first"),
    h("option", { value: "column", hidden: true }, "by column"),
  );
  private readonly anomalies: HTMLButtonElement;
  private readonly tree: HTMLButtonElement;
  private readonly modules: HTMLButtonElement;
  private readonly verdicts = h("div", { class: "chips", role: "group", "aria-label": "Verdicts" });
  private readonly jump: HTMLButtonElement;
  private readonly listed = h("div", { class: "choices" });
  private readonly columns = h("details", { class: "columns" }, h("summary", {}, "columns"), this.listed);
  private boxed: readonly Column[] | null = null;
  private readonly frozen: HTMLButtonElement;
  private readonly counter = h("span", { class: "counter", role: "status" });

  constructor(private readonly events: ToolbarEvents) {
    this.search = h("input", {
      type: "search",
      placeholder: "Search  /",
      "aria-label": "Search",
      spellcheck: "false",
      autocomplete: "off",
    });
    this.search.addEventListener("input", () => events.choose({ query: this.search.value }));
    this.search.addEventListener("keydown", (event) => this.searchKey(event));
    this.role.addEventListener("change", () => events.choose({ role: this.role.value }));
    this.order.addEventListener("change", () =>
      events.choose({ order: { by: this.order.value, descending: false } }),
    );
    this.anomalies = toggle("anomalies only", (on) => events.choose({ anomalies: on }));
    this.tree = toggle("tree", (on) => events.tree(on));
    this.modules = toggle("per module", (on) => events.modules(on));
    this.modules.title = "One line per module, its output and the gradient side by side; else one line per tensor";
    this.jump = h("button", { type: "button", class: "toggle jump" });
    this.jump.addEventListener("click", () => events.next());
    this.columns.addEventListener("keydown", (event) => this.columnsKey(event));
    this.frozen = toggle("freeze view", (on) => events.freeze(on));
    this.element = h(
      "div",
      { class: "toolbar", role: "toolbar", "aria-label": "Rows" },
      this.jump,
      this.verdicts,
      this.search,
      this.role,
      this.anomalies,
      this.order,
      this.tree,
      this.modules,
      this.columns,
      this.counter,
      this.frozen,
    );
  }

  show(choice: Choice, data: Data, rows: readonly number[], table: readonly Column[], hidden: ReadonlySet<string>): void {
    const { roles } = data.sites;
    const known = [...this.role.options].slice(1).map((option) => option.value);
    if (known.join() !== roles.join() || !this.role.options.length) {
      const options = roles.map((role) => h("option", { value: role }, role));
      this.role.replaceChildren(h("option", { value: "" }, "all roles"), ...options);
    }
    this.role.value = choice.role;
    if (this.search.value !== choice.query) this.search.value = choice.query;
    const { by } = choice.order;
    this.order.value = by === "execution" || by === "worst" ? by : "column";
    press(this.anomalies, choice.anomalies);
    const modules = this.modules.getAttribute("aria-pressed") === "true" && !data.status.comparison;
    const [total, shown] = [modules ? modulesOf(data.sites) : data.size, rows.length];
    const all = plural(total, modules ? "module" : "row");
    setText(this.counter, shown === total ? all : `${count(shown)} of ${all}`);
    this.frozen.hidden = !data.status.open;
    this.showColumns(table, hidden);
    this.showVerdicts(choice, data);
  }

  showFrozen(on: boolean): void {
    press(this.frozen, on);
  }

  showTree(on: boolean): void {
    press(this.tree, on);
  }

  /** One button per verdict, with its number: what there is, and a filter. */
  private showVerdicts(choice: Choice, data: Data): void {
    const { comparison } = data.status;
    this.verdicts.hidden = this.jump.hidden = !comparison;
    this.anomalies.hidden = this.modules.hidden = comparison !== null;
    if (!comparison) return;
    const places = comparison.divergences.length;
    this.jump.hidden = places === 0;
    setText(this.jump, places === 1 ? "go to first divergence" : `next of ${places} divergences`);
    const counted = data.verdicts;
    const names = Object.keys(VERDICTS).filter((name) => counted.get(name));
    const state = names.map((name) => `${name} ${counted.get(name)} ${choice.verdicts.has(name)}`).join();
    if (this.verdicts.dataset.state === state) return;
    const held = (this.verdicts.getRootNode() as ShadowRoot).activeElement?.getAttribute("data-verdict");
    this.verdicts.dataset.state = state;
    this.verdicts.replaceChildren(...names.map((name) => this.chip(name, counted.get(name) ?? 0, choice)));
    if (held) this.verdicts.querySelector<HTMLElement>(`[data-verdict="${held}"]`)?.focus();
  }

  private chip(name: string, n: number, choice: Choice): HTMLElement {
    const { glyph, word, tone, why } = VERDICTS[name] ?? { glyph: "", word: name, tone: "mute", why: "" };
    const on = choice.verdicts.has(name);
    const chip = h(
      "button",
      { type: "button", class: `chip ${tone}`, title: why, "aria-pressed": String(on), "data-verdict": name },
      h("span", { "aria-hidden": "true" }, glyph),
      h("b", {}, count(n)),
      ` ${word}`,
    );
    chip.addEventListener("click", () => {
      const verdicts = new Set(choice.verdicts);
      if (!verdicts.delete(name)) verdicts.add(name);
      this.events.choose({ verdicts });
    });
    return chip;
  }

  private showColumns(table: readonly Column[], hidden: ReadonlySet<string>): void {
    const state = table.map(({ key }) => `${key}${hidden.has(key)}`).join();
    if (this.listed.dataset.state === state) return;
    if (this.boxed !== table) {
      this.boxed = table;
      this.listed.replaceChildren(...table.slice(1).map((column) => this.box(column)));
    }
    this.listed.dataset.state = state;
    for (const box of this.listed.querySelectorAll("input")) box.checked = !hidden.has(box.value);
  }

  private box({ key, label, title }: Column): HTMLElement {
    const box = h("input", { type: "checkbox", value: key });
    box.addEventListener("change", () => this.events.column(key, box.checked));
    return h("label", { title }, box, ` ${label}`);
  }

  private columnsKey(event: KeyboardEvent): void {
    if (event.key !== "Escape" || !this.columns.open) return;
    handled(event);
    this.columns.open = false;
    this.columns.querySelector("summary")?.focus();
  }

  focusSearch(): void {
    this.search.focus();
    this.search.select();
  }

  private searchKey(event: KeyboardEvent): void {
    if (event.key === "Escape") {
      handled(event);
      if (this.search.value) this.events.choose({ query: "" });
      else this.events.leave();
    } else if (event.key === "Enter" || event.key === "ArrowDown") {
      handled(event);
      this.events.leave();
    }
  }
}

function toggle(label: string, change: (on: boolean) => void): HTMLButtonElement {
  const button = h("button", { type: "button", class: "toggle", "aria-pressed": "false" }, label);
  button.addEventListener("click", () => {
    press(button, button.getAttribute("aria-pressed") !== "true");
    change(button.getAttribute("aria-pressed") === "true");
  });
  return button;
}

function press(button: HTMLElement, on: boolean): void {
  button.setAttribute("aria-pressed", String(on));
}
