/** Colours of drawings on a canvas: one hue for shares, two about a neutral middle for signed values. */

export type Colour = readonly [red: number, green: number, blue: number];

/** From least to most; every shade stands out from the page, and lightness alone tells the order. */
const SHARES: Record<Theme, readonly Colour[]> = {
  light: [[217, 232, 243], [140, 190, 222], [51, 141, 194], [0, 94, 150], [0, 44, 77]],
  dark: [[28, 52, 69], [34, 92, 130], [56, 140, 190], [118, 192, 236], [205, 234, 253]],
};

/** Purple below zero, green above it, grey where nothing is: the colours of the plots. */
const SIGNED: Record<Theme, readonly Colour[]> = {
  light: [[118, 42, 131], [157, 121, 168], [196, 199, 204], [98, 152, 133], [0, 105, 62]],
  dark: [[216, 166, 240], [156, 133, 172], [95, 99, 104], [111, 162, 136], [127, 224, 168]],
};

export type Theme = "light" | "dark";

/** The colour of a share of the scale, from 0 to 1. */
export function shade(at: number, theme: Theme): Colour {
  return along(SHARES[theme], at);
}

/** The colour of a signed part of the scale, from -1 to 1. */
export function signed(at: number, theme: Theme): Colour {
  return along(SIGNED[theme], (at + 1) / 2);
}

function along(stops: readonly Colour[], at: number): Colour {
  const place = Math.min(1, Math.max(0, at)) * (stops.length - 1);
  const before = Math.min(stops.length - 2, Math.floor(place));
  const [a, b] = [stops[before] as Colour, stops[before + 1] as Colour];
  const part = place - before;
  return [0, 1, 2].map((k) => Math.round((a[k] as number) * (1 - part) + (b[k] as number) * part)) as unknown as Colour;
}

/** Relative luminance, from 0 to 1. */
export function lightness([red, green, blue]: Colour): number {
  const [r, g, b] = [red, green, blue].map((c) => (c <= 10 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * (r as number) + 0.7152 * (g as number) + 0.0722 * (b as number);
}

export function css(colour: Colour): string {
  return `rgb(${colour.join(" ")})`;
}
