import assert from "node:assert/strict";
import { test } from "vitest";
import { compact, count, exact, number, percent, power, shape } from "../src/format";
import { random } from "./fake";

const NUMBERS: [number, string][] = [
  [0, "0"],
  [1, "1"],
  [65504, "65504"],
  [-0.014, "-0.0140"],
  [0.953, "0.953"],
  [4.3, "4.30"],
  [0.9996, "1.00"],
  [999.7, "1000"],
  [1234.56, "1235"],
  [99999.5, "100000"],
  [123456.7, "1.23e5"],
  [1e6, "1.00e6"],
  [0.000999, "9.99e-4"],
  [1.2e-38, "1.20e-38"],
  [5e-324, "4.94e-324"],
  [-1e-45, "-1.00e-45"],
  [1e300, "1.00e300"],
  [NaN, "NaN"],
  [Infinity, "Inf"],
  [-Infinity, "-Inf"],
];

for (const [value, text] of NUMBERS) test(`${value} is written ${text}`, () => assert.equal(number(value), text));

test("nothing but 0 is written as 0, and three digits are right", () => {
  const next = random(5);
  for (let k = 0; k < 5000; k++) {
    const value = (next() - 0.5) * 10 ** (600 * (next() - 0.5));
    if (value === 0) continue;
    for (const text of [number(value), exact(value)]) {
      assert.notEqual(Number(text), 0, text);
      assert.ok(Math.abs(Number(text) / value - 1) <= 5.1e-3, `${value} became ${text}`);
    }
    assert.ok(Math.abs(Number(exact(value)) / value - 1) <= 1e-6, `${value} became ${exact(value)}`);
  }
});

test("a float of any size keeps its sign and its size in every column", () => {
  const next = random(11);
  const words = new DataView(new ArrayBuffer(8));
  for (let k = 0; k < 20000; k++) {
    words.setUint32(0, next() * 2 ** 32);
    words.setUint32(4, next() * 2 ** 32);
    const value = words.getFloat64(0); // every exponent is as likely: subnormal numbers and 1e300 as well
    if (!Number.isFinite(value) || value === 0) continue;
    for (const [text, digits] of [[number(value), 3], [number(value, 2), 2], [exact(value), 9]] as const) {
      const back = Number(text);
      assert.ok(back !== 0 && Number.isFinite(back) && Math.sign(back) === Math.sign(value), `${value} became ${text}`);
      assert.ok(Math.abs(back / value - 1) <= 0.5001 * 10 ** (1 - digits), `${value} became ${text}`);
      assert.ok(text.length <= 7 + digits, text);
    }
  }
});

test("larger numbers are never written as smaller ones", () => {
  // whole numbers below a million are written in full, so they may stand between two rounded ones
  for (const start of [0.0009, 0.0095, 0.95, 9.9, 99.4, 995, 9990, 99900, 999000]) {
    let before = -Infinity;
    for (let k = 0; k < 400; k++) {
      const now = Number(number(start * (1 + k / 3000) + 1e-9 * start));
      assert.ok(now >= before, `${start} ${k}`);
      before = now;
    }
  }
});

test("a share is never rounded to none or to all, and a large count never up", () => {
  const next = random(3);
  for (let k = 0; k < 5000; k++) {
    const whole = 2 + Math.floor(next() * 2 ** Math.floor(40 * next()));
    const part = 1 + Math.floor(next() * (whole - 1));
    const text = percent(part, whole);
    assert.notEqual(Number(text), 0, `${part} of ${whole}`);
    assert.equal(Number(text) === 100, part >= whole, `${part} of ${whole} became ${text}`);
    const shown = compact(part);
    const unit = { M: 1e6, G: 1e9, T: 1e12 }[shown.slice(-1)];
    if (unit) assert.ok(parseFloat(shown) * unit <= part * (1 + 1e-12) && parseFloat(shown) * unit > 0.98 * part, shown);
    else assert.equal(shown.replaceAll(",", ""), String(part));
  }
});

test("counts are exact, and absent ones say so", () => {
  assert.equal(count(4194304), "4,194,304");
  assert.equal(count(999), "999");
  assert.equal(count(0), "0");
  assert.equal(count(-1), "—");
  assert.equal(count(NaN), "—");
  assert.equal(compact(999999), "999,999");
  assert.equal(compact(4194304), "4.19M");
  assert.equal(compact(1.5e10), "15.0G");
  assert.equal(compact(99999999), "99.9M");
  assert.equal(compact(999999999999), "999G");
});

test("a share is 0 only for none and 100 only for all", () => {
  assert.equal(percent(0, 10), "0");
  assert.equal(percent(10, 10), "100");
  assert.equal(percent(1, 4194304), "2.4e-5");
  assert.equal(percent(4194303, 4194304), ">99.9");
  assert.equal(percent(1, 3), "33.3");
  assert.equal(percent(1, 400), "0.25");
  assert.equal(percent(-1, 10), "—");
  assert.equal(percent(1, 0), "—");
});

test("shapes and powers", () => {
  assert.equal(shape([8, 512, 1024]), "8×512×1024");
  assert.equal(shape([]), "scalar");
  assert.equal(power(-14), "2⁻¹⁴");
  assert.equal(power(15), "2¹⁵");
});
