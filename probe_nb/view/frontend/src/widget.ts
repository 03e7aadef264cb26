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

const KEYS = ["sites", "status", "frame", "history", "picture", "refused"];

/** Mount one view; any number of them may stand on a page, on the same model or on others. */
function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
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

  return () => {
    for (const key of KEYS) model.off(`change:${key}`, changed);
    cancelAnimationFrame(waiting);
    stopTheme();
    stopKeys();
    inspector.destroy();
    host.remove();
  };
}

export default { render };
