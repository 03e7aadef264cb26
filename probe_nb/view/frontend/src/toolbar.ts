/** Which rows, and in which order. */
import type { Choice } from "./data";
import { h, setText } from "./dom";
import { count } from "./format";
import { handled } from "./keys";

export interface ToolbarEvents {
  choose(change: Partial<Choice>): void;
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
    this.frozen = toggle("freeze view", (on) => events.freeze(on));
    this.element = h(
      "div",
      { class: "toolbar", role: "toolbar", "aria-label": "Rows" },
      this.search,
      this.role,
      this.anomalies,
      this.order,
      this.counter,
      this.frozen,
    );
  }

  show(choice: Choice, roles: readonly string[], shown: number, total: number, live: boolean): void {
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
    setText(this.counter, shown === total ? `${count(total)} rows` : `${count(shown)} of ${count(total)} rows`);
    this.frozen.hidden = !live;
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
