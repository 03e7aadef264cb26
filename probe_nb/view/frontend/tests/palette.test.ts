/** The colours, as they stand in the style sheets: readable in both themes, and told apart by everyone. */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "vitest";
import { luminance } from "../src/theme";

const SOURCES = new URL("../src/", import.meta.url);
const SHEETS = readdirSync(SOURCES).filter((name) => name.endsWith(".css"));
const CSS = SHEETS.map((name) => readFileSync(new URL(name, SOURCES), "utf8")).join("\n");

type Rgb = [number, number, number];

/** The last fallback of a variable: what counts where no front end sets a theme. */
function own(value: string): string {
  return /#[0-9a-f]{6}/i.exec(value)?.[0] ?? "";
}

function variables(selector: string): Record<string, string> {
  const block = CSS.slice(CSS.indexOf(`${selector} {`)).split("}")[0] ?? "";
  return Object.fromEntries([...block.matchAll(/--(\w+): (.*);/g)].map(([, name, value]) => [name, own(value ?? "") || value]));
}

/** What pages stand on by default: a browser and Colab, JupyterLab, VS Code. */
const PAGES = { light: ["#ffffff"], dark: ["#111111", "#1e1e1e", "#1f1f1f"] };
const THEMES = [
  { name: "light", colours: variables(".pnb"), pages: PAGES.light },
  { name: "dark", colours: { ...variables(".pnb"), ...variables('.pnb[data-theme="dark"]') }, pages: PAGES.dark },
];
const TONES = ["data", "bad", "warn", "ok"];
const WORDS = ["text", "soft", "bad", "warn", "ok"];

function rgb(hex: string): Rgb {
  assert.match(hex, /^#[0-9a-f]{6}$/i);
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)) as Rgb;
}

function hexOf(colour: Rgb): string {
  return `#${colour.map((part) => Math.round(part).toString(16).padStart(2, "0")).join("")}`;
}

function mix(over: string, share: number, under: string): string {
  const [a, b] = [rgb(over), rgb(under)];
  return hexOf(a.map((part, k) => share * part + (1 - share) * (b[k] ?? 0)) as Rgb);
}

function contrast(a: string, b: string): number {
  const [high = 0, low = 0] = [a, b].map((hex) => luminance(`rgb(${rgb(hex).join()})`)).sort((x, y) => y - x);
  return (high + 0.05) / (low + 0.05);
}

/** How strong the grounds are that words stand on, as the style sheet has them. */
function shares(of: string): number[] {
  const grounds = CSS.matchAll(new RegExp(`(?:background|--under): color-mix\\(in srgb, ${of} (\\d+)%`, "g"));
  return [...grounds].map(([, percent]) => Number(percent) / 100);
}

test("black on white has contrast 21, as the rules define it", () => {
  assert.ok(Math.abs(contrast("#000000", "#ffffff") - 21) < 1e-9);
  assert.ok(Math.abs(contrast("#777777", "#ffffff") - 4.478) < 1e-3);
});

for (const { name, colours, pages } of THEMES) {
  for (const page of pages) {
    test(`every word can be read on ${page}, on the selected row and on its own tint (${name})`, () => {
      const tints = [...shares("var\\(--accent\\)"), ...shares("var\\(--text\\)")];
      assert.ok(tints.length > 2);
      for (const word of WORDS) {
        const colour = colours[word] ?? "";
        const found = (ground: string): void => assert.ok(contrast(colour, ground) >= 4.5, `${word} ${colour} on ${ground}: ${contrast(colour, ground)}`);
        found(page);
        for (const share of shares("var\\(--accent\\)")) found(mix(colours.accent ?? "", share, page));
        for (const share of shares("var\\(--text\\)")) found(mix(colours.text ?? "", share, page));
        for (const share of [parseFloat(colours.veil ?? "") / 100, ...shares("currentColor")]) found(mix(colour, share, page));
      }
      assert.ok(contrast(colours.data ?? "", page) >= 3);
      assert.ok(contrast(colours.accent ?? "", page) >= 3, "the focus is seen");
    });
  }

  for (const [sight, matrix] of Object.entries(sights())) {
    test(`tones are told apart: ${name}, ${sight}`, () => {
      const shown = [...TONES, "soft"].map((tone) => [tone, lab(seen(rgb(colours[tone] ?? ""), matrix))] as const);
      shown.forEach(([a, one], at) =>
        shown.slice(at + 1).forEach(([b, other]) => {
          const apart = Math.hypot(...one.map((part, k) => part - (other[k] ?? 0)));
          assert.ok(apart >= 10, `${a} and ${b} are ${apart.toFixed(1)} apart`);
        }),
      );
    });
  }
}

test("tones that look alike are found: a red and a green of the same lightness", () => {
  const { deuteranopia } = sights();
  const apart = (a: string, b: string): number => {
    const [one, other] = [a, b].map((hex) => lab(seen(rgb(hex), deuteranopia)));
    return Math.hypot(...(one ?? []).map((part, k) => part - (other?.[k] ?? 0)));
  };
  assert.ok(apart("#b34700", "#8a6100") < 5);
  assert.ok(apart("#0072b2", "#99180a") > 50);
});

test("every variable of a front end has a fallback", () => {
  for (const [use] of CSS.matchAll(/var\(--(?:jp|vscode|colab)-[\w-]+\s*\)/g)) {
    // the innermost of a chain may end it only if something follows
    assert.fail(`${use} has none`);
  }
  assert.ok(CSS.includes("var(--vscode-editor-foreground, var(--jp-content-font-color1, #"));
});

/** Machado, Oliveira and Fernandes (2009), severity 1, on linear light. */
function sights(): Record<"everyone" | "protanopia" | "deuteranopia", Rgb[]> {
  return {
    everyone: [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    protanopia: [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    deuteranopia: [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  };
}

function times(matrix: Rgb[], vector: Rgb): Rgb {
  return matrix.map((row) => row.reduce((sum, part, k) => sum + part * (vector[k] ?? 0), 0)) as Rgb;
}

/** Linear light of a colour as it is seen. */
function seen(colour: Rgb, matrix: Rgb[]): Rgb {
  const linear = colour.map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4)) as Rgb;
  return times(matrix, linear).map((part) => Math.min(1, Math.max(0, part))) as Rgb;
}

/** CIE L*a*b* under D65: distances in it are those of the eye, about. */
function lab(linear: Rgb): Rgb {
  const xyz = times([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]], linear);
  const [x = 0, y = 0, z = 0] = xyz.map((part, k) => {
    const t = part / ([0.95047, 1, 1.08883][k] ?? 1);
    return t > 0.008856 ? Math.cbrt(t) : 7.787 * t + 16 / 116;
  });
  return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
}
