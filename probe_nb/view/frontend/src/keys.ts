/**
 * Keys belong to the notebook or to us, never to both.
 *
 * A notebook acts on bare letters: typed over a table, `dd` would delete a cell. JupyterLab asks after our own handlers,
 * Notebook 7 before them, so stopping an event is not enough; both skip an element that carries this attribute.
 */
const SUPPRESS = "data-lm-suppress-shortcuts";

/** Keep a key that we acted on from the notebook. */
export function handled(event: Event): void {
  event.preventDefault();
  event.stopPropagation();
}

/** Shield the notebook from keys pressed inside `host`; returns what ends it. */
export function shieldKeys(host: HTMLElement): () => void {
  const before = (event: KeyboardEvent): void => {
    if (event.target === host) host.toggleAttribute(SUPPRESS, !forNotebook(event, typing(host)));
  };
  // the window is asked before the document, where the notebook listens
  window.addEventListener("keydown", before, { capture: true });
  return () => window.removeEventListener("keydown", before, { capture: true });
}

type Keys = Pick<KeyboardEvent, "key" | "shiftKey" | "ctrlKey" | "metaKey" | "altKey">;

/** Running a cell and saving work from everywhere; other chords do unless text is being edited. */
export function forNotebook(event: Keys, inText: boolean): boolean {
  const chord = event.ctrlKey || event.metaKey || event.altKey;
  if (event.key === "Enter") return event.shiftKey || chord;
  return chord && (!inText || event.key.toLowerCase() === "s");
}

function typing(host: HTMLElement): boolean {
  return host.shadowRoot?.activeElement instanceof HTMLInputElement;
}
