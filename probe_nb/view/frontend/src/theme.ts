/**
 * Light or dark, as measured.
 *
 * Front ends disagree about how they say it, and some put a white box behind widgets in a dark page. So the
 * background that we will stand on is looked up, and text and background are then chosen together.
 */

/** VS Code first: its renderer also defines JupyterLab's variables, in their light version. */
const BACKGROUND = "var(--vscode-editor-background, var(--jp-layout-color0, var(--colab-primary-surface-color, transparent)))";

/** Keep `data-theme` of `root` true; returns what stops it. */
export function followTheme(host: HTMLElement, probe: HTMLElement, root: HTMLElement): () => void {
  const update = (): void => {
    const background = measured(host, probe);
    // a host that is not in the page yet has no colours: nothing is written, and nothing is guessed
    if (!opaque(background)) return;
    root.dataset.theme = luminance(background) < 0.4 ? "dark" : "light";
    root.style.setProperty("--page", background);
  };
  // stylesheets of a new theme may arrive after the attribute that announces them
  let late: ReturnType<typeof setTimeout> | undefined;
  const changed = (): void => {
    update();
    clearTimeout(late);
    late = setTimeout(update, 250);
  };
  const observer = new MutationObserver(changed);
  const { body, documentElement } = document;
  for (const element of [documentElement, body]) observer.observe(element, { attributes: true });
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", changed);
  // front ends draw a view before they put it in the page, and some move it later: its size tells when it is there
  const arrived = new ResizeObserver(changed);
  arrived.observe(host);
  update();
  return () => {
    observer.disconnect();
    arrived.disconnect();
    clearTimeout(late);
    dark.removeEventListener("change", changed);
  };
}

function measured(host: HTMLElement, probe: HTMLElement): string {
  const own = resolved(probe, BACKGROUND);
  if (opaque(own)) return own;
  for (let at: Element | null = host; at; at = parent(at)) {
    const colour = getComputedStyle(at).backgroundColor;
    if (opaque(colour)) return colour;
  }
  return resolved(probe, "Canvas"); // follows the page's color-scheme
}

function resolved(probe: HTMLElement, colour: string): string {
  probe.style.backgroundColor = colour;
  return getComputedStyle(probe).backgroundColor;
}

function parent(element: Element): Element | null {
  const root = element.getRootNode();
  return element.parentElement ?? (root instanceof ShadowRoot ? root.host : null);
}

function channels(colour: string): number[] {
  return (colour.match(/[\d.]+/g) ?? []).map(Number);
}

export function opaque(colour: string): boolean {
  const [, , , alpha = 1] = channels(colour);
  return colour !== "" && colour !== "transparent" && alpha > 0.5;
}

/** Relative luminance of a computed `rgb()` colour, from 0 to 1. */
export function luminance(colour: string): number {
  const scale = colour.startsWith("color(") ? 1 : 255;
  const [red = scale, green = scale, blue = scale] = channels(colour.replace(/^color\(\S+/, "")).map((c) => {
    const part = c / scale;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
