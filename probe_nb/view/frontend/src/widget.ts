/** The door: what anywidget, and a saved report, call. */
import { h } from "./dom";
import { Inspector } from "./inspector";
import { shieldKeys } from "./keys";
import { followTheme } from "./theme";
import type { Model } from "./types";
import detail from "./detail.css";
import slider from "./slider.css";
import table from "./table.css";
import css from "./widget.css";

const KEYS = ["sites", "status", "frame", "trend", "history", "picture", "refused"];

/** What stands on a page for one model. */
interface View {
  host: HTMLElement;
  /** The place that it stands in now; whoever gives up another one takes nothing away. */
  place: HTMLElement;
  /** Come to stand where it stood, after it was moved. */
  arrive: () => void;
  end: () => void;
}

const views = new Map<unknown, View[]>();

/**
 * Mount one view; any number of them may stand on a page, on the same model or on others.
 *
 * A notebook whose output is written anew draws a second view, and then takes the first off the page without a word to
 * it: each half minute of a training. So the second waits for a frame, and where the first is off the page by then it
 * takes that into its place, with all that the reader had chosen.
 */
function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const key = model.get("key") || model; // each view is given a model of its own that speaks for one widget
  const known = views.get(key) ?? [];
  views.set(key, known);
  let view: View | null = null;
  const begin = (): void => {
    waiting = 0;
    view = known.find(({ host }) => !host.isConnected && el.isConnected) ?? null;
    if (view) {
      view.place = el;
      el.append(view.host);
      view.arrive();
    } else known.push((view = mounted(model, el)));
  };
  let waiting = known.length ? requestAnimationFrame(begin) : 0;
  if (!waiting) begin();
  return () => {
    cancelAnimationFrame(waiting);
    if (view?.place !== el) return;
    known.splice(known.indexOf(view), 1);
    if (!known.length) views.delete(key);
    view.end();
  };
}

function mounted(model: Model, el: HTMLElement): View {
  const host = h("div", { class: "probe-nb-inspector" });
  // the shadow keeps the notebook's styles for tables, buttons and lists out, and our names to ourselves
  const shadow = host.attachShadow({ mode: "open" });
  const probe = h("span", { class: "probe", "aria-hidden": "true" });
  const inspector = new Inspector(model);
  shadow.append(h("style", {}, table, css, slider, detail), probe, inspector.element);
  el.append(host);
  const stopKeys = shieldKeys(host);
  const stopTheme = followTheme(host, probe, inspector.element);

  let waiting = 0;
  const changed = (): void => {
    // the traits change one after the other: they are read together, at most once per frame
    waiting ||= requestAnimationFrame(() => {
      waiting = 0;
      inspector.update();
    });
  };
  for (const key of KEYS) model.on(`change:${key}`, changed);
  inspector.update();

  const end = (): void => {
    for (const key of KEYS) model.off(`change:${key}`, changed);
    cancelAnimationFrame(waiting);
    stopTheme();
    stopKeys();
    inspector.destroy();
    host.remove();
  };
  // what is taken off a page forgets how far it was scrolled
  const scrolled = new Map<Element, number>();
  const remember = ({ target }: Event): void => void (target instanceof Element && scrolled.set(target, target.scrollTop));
  shadow.addEventListener("scroll", remember, { capture: true });
  const arrive = (): void => scrolled.forEach((top, element) => (element.scrollTop = top));
  return { host, place: el, arrive, end };
}

export default { render };
