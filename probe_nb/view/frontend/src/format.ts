/** Numbers and names as people read them. A value that is not 0 is never written as 0. */

export const ABSENT = "—";

/**
 * Write a number with three significant digits (integers below a million in full).
 *
 * NaN here is a value; whoever knows it to mean "absent" writes `ABSENT`.
 */
export function number(x: number, digits = 3): string {
  if (Number.isNaN(x)) return "NaN";
  if (!Number.isFinite(x)) return x > 0 ? "Inf" : "-Inf";
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (Number.isInteger(x) && size < 1e6) return String(x);
  if (size < 1e-3 || size >= 1e5) return scientific(x, digits);
  const rounded = Number(size.toPrecision(digits)); // 0.9996 takes the decimals of 1.00
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(rounded)));
  return x.toFixed(decimals);
}

function scientific(x: number, digits: number): string {
  return x.toExponential(digits - 1).replace("e+", "e");
}

/** Write a number with all the digits that tell a float32 from its neighbours. */
export function exact(x: number): string {
  if (!Number.isFinite(x) || x === 0) return number(x);
  const size = Math.abs(x);
  if (Number.isInteger(x) && size < 1e15) return String(x);
  return size < 1e-4 || size >= 1e9 ? scientific(x, 9) : String(Number(x.toPrecision(9)));
}

/** Write a count with thousands separators; absent counts are -1. */
export function count(n: number): string {
  if (Number.isNaN(n) || n < 0) return ABSENT;
  return String(Math.round(n)).replace(/\B(?=(\d{3})+$)/g, ",");
}

/** Write a large count in few characters, never rounded up: 4.19M. */
export function compact(n: number): string {
  if (!(n >= 1e6)) return count(n);
  const [unit, name] = n >= 1e12 ? [1e12, "T"] : n >= 1e9 ? [1e9, "G"] : [1e6, "M"];
  const size = n / unit;
  const decimals = size >= 100 ? 0 : size >= 10 ? 1 : 2;
  return `${(Math.floor(size * 10 ** decimals) / 10 ** decimals).toFixed(decimals)}${name}`;
}

/** Write a share in percent; only exactly none is 0 and only exactly all is 100. */
export function percent(part: number, whole: number): string {
  if (!(part >= 0) || !(whole > 0)) return ABSENT;
  if (part === 0) return "0";
  if (part >= whole) return "100";
  const share = (100 * part) / whole;
  if (share > 99.9) return ">99.9";
  if (share < 0.01) return scientific(share, 2);
  return share.toFixed(share < 1 ? 2 : 1);
}

/** Write a shape; a scalar has an empty one. */
export function shape(sizes: readonly number[]): string {
  return sizes.length ? sizes.join("×") : "scalar";
}

/** Write a power of two as a label: 2^-14 with a raised exponent. */
export function power(exponent: number): string {
  const raised = "⁰¹²³⁴⁵⁶⁷⁸⁹";
  const digits = [...String(Math.abs(exponent))].map((digit) => raised[Number(digit)]).join("");
  return `2${exponent < 0 ? "⁻" : ""}${digits}`;
}

/** Write a dtype in the width of a table column. */
export function shortDtype(dtype: string): string {
  return dtype.replace(/^torch\./, "");
}

export function plural(n: number, word: string): string {
  return `${count(n)} ${word}${n === 1 ? "" : "s"}`;
}
