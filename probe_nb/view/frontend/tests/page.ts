/** The test page: `?scene=nan|large|healthy|empty|broken&live=1`; `?twice=1` mounts two views of one model. */
import widget from "../src/widget";
import { empty, healthy, transformer, type Scene } from "./scenes";

const options = new URLSearchParams(location.search);
const scenes: Record<string, () => Scene> = {
  nan: () => transformer(10),
  large: () => transformer(63),
  huge: () => transformer(625),
  healthy,
  empty,
  broken: () => ({ ...healthy(), frame: new Uint8Array(20) }),
};
const scene = (scenes[options.get("scene") ?? "nan"] ?? healthy)();
const listeners = new Map<string, Set<() => void>>();
const state: Record<string, unknown> = {};
const model = {
  get: (key: string) => state[key],
  on: (event: string, callback: () => void) => {
    listeners.set(event, (listeners.get(event) ?? new Set()).add(callback));
  },
  off: (event: string, callback: () => void) => {
    listeners.get(event)?.delete(callback);
  },
};

/** Set the traits as Jupyter does: frame as a DataView that begins anywhere in its buffer. */
function set(next: Scene): void {
  const buffer = new Uint8Array(next.frame.byteLength + 12);
  buffer.set(next.frame, 12);
  const frame = new DataView(buffer.buffer, 12, next.frame.byteLength);
  Object.assign(state, { sites: next.sites, status: JSON.stringify(next.status), frame });
  for (const key of Object.keys(state)) for (const callback of listeners.get(`change:${key}`) ?? []) callback();
}

set(scene);
const started = performance.now();
const views = Array.from({ length: options.has("twice") ? 2 : 1 }, () => {
  const el = document.createElement("div");
  document.body.append(el);
  return widget.render({ model, el });
});
const mounted = performance.now() - started;

/** Move every number a little, so that a live update has something to do. */
function tick(): void {
  const view = new DataView(scene.frame.buffer);
  const rows = view.getUint32(8, true);
  for (let cell = rows * 4; cell < rows * 9; cell++) {
    const at = 32 + 8 * cell;
    view.setFloat64(at, view.getFloat64(at, true) * (0.95 + 0.1 * Math.random()), true);
  }
  scene.status.step = (scene.status.step ?? 0) + 1;
  set(scene);
}
if (options.has("live")) setInterval(tick, 250);

Object.assign(window, { page: { set, tick, model, views, scene, listeners, mounted, transformer } });
