/** Whole runs for the test page: what the inspector must look good on. */
import { encode, random, site, sitesJson, status, type Row } from "./fake";
import type { Status } from "../src/types";

const STEPS = 48;
const BLOCK: [name: string, type: string][] = [
  ["input_layernorm", "RMSNorm"],
  ["self_attn.q_proj", "Linear"],
  ["self_attn.k_proj", "Linear"],
  ["self_attn.v_proj", "Linear"],
  ["self_attn.o_proj", "Linear"],
  ["mlp.gate_proj", "Linear"],
  ["mlp.act_fn", "SiLU"],
  ["mlp.down_proj", "Linear"],
];
const ROLES: [role: string, direction: string][] = [
  ["input", "forward"],
  ["output", "forward"],
  ["grad_output", "backward"],
  ["grad_input", "backward"],
];

export interface Scene {
  sites: string;
  status: Status;
  frame: Uint8Array;
}

/** One tensor of normally distributed values of a given size. */
function normal(next: () => number, exponent: number, numel: number, relu = false): Row["histogram"] {
  const bins: Row["histogram"] = [];
  for (const negative of relu ? [0] : [0, 256]) {
    for (let below = -1; below < 20; below++) {
      const share = below < 0 ? 0.16 : 0.42 * 2 ** -below;
      const n = Math.round((numel / (relu ? 1 : 2)) * share * (0.9 + 0.2 * next()));
      if (n > 0) bins.push([exponent - below + 127 + negative, n]);
    }
  }
  return bins.sort((a, b) => a[0] - b[0]);
}

function row(next: () => number, order: number, module: string, type: string, at: [string, string], depth: number): Row {
  const [role, direction] = at;
  const backward = direction === "backward";
  const numel = 8 * 512 * 1024;
  const exponent = Math.round(backward ? -14 - depth / 3 : 0.4 * depth + 2 * next());
  const scale = 2 ** exponent;
  const spark = Array.from({ length: STEPS }, (_, k) => 4 * scale * (0.8 + 0.4 * next()) * 2 ** (k / 24));
  return {
    site: site({ module, type, role, direction, dtype: "bfloat16", shape: [8, 512, 1024], device: "cuda:0" }),
    values: {
      order,
      step: 57,
      calls: 1,
      numel,
      min: -4.1 * scale * (0.9 + 0.2 * next()),
      max: 4.3 * scale * (0.9 + 0.2 * next()),
      mean: 0.02 * scale * (next() - 0.5),
      std: scale * (0.9 + 0.2 * next()),
      l2: scale * Math.sqrt(numel),
      absmax: 4.3 * scale,
      nan_count: 0,
      posinf_count: 0,
      neginf_count: 0,
      zero_count: 0,
      subnormal_count: 0,
      at_max_count: 0,
      status: 0,
      badges: 0,
      first_bad_step: -1,
    },
    spark,
    histogram: normal(next, exponent, numel),
  };
}

/** A transformer that meets a NaN in one projection, with victims behind it. */
export function transformer(layers: number, given: Partial<Status> = {}): Scene {
  const next = random(7);
  const rows: Row[] = [];
  const add = (module: string, type: string, at: [string, string], depth: number): Row => {
    const made = row(next, rows.length, module, type, at, depth);
    rows.push(made);
    return made;
  };
  add("", "LlamaForCausalLM", ["input", "forward"], 0).site.dtype = "int64";
  for (let layer = 0; layer < layers; layer++) {
    for (const [name, type] of BLOCK) {
      for (const at of ROLES) add(`model.layers.${layer}.${name}`, type, at, layer);
    }
  }
  decorate(rows);
  const culprit = Math.min(rows.length - 1, 1 + 32 * 7 + 17);
  spoil(rows, culprit);
  const headline = {
    kind: "bad" as const,
    text: `NaN first appeared at step 57 in ${rows[culprit]?.site.module} (forward output)`,
    detail: "3 of 4,194,304 elements; its inputs were finite, largest |x| 3.2e4",
    row: culprit,
  };
  const base = { headline, open: true, ended: "open", step: 57, steps: 58, records: 58 * rows.length, modules: 1 + 8 * layers };
  return { sites: sitesJson(rows), status: status({ title: "model · LlamaForCausalLM", ...base, ...given }), frame: encode(rows, STEPS) };
}

function spoil(rows: Row[], culprit: number): void {
  rows.forEach((each, index) => {
    if (index < culprit || index % 4 > 2) return;
    const first = index === culprit;
    Object.assign(each.values, { nan_count: first ? 3 : 4194304 - 12 * index, badges: first ? 1 : 1 | 256, first_bad_step: 57 });
    each.spark[STEPS - 1] = Infinity;
    if (first) Object.assign(each.values, { posinf_count: 2, neginf_count: 41, badges: 3 });
    else if (index % 3) {
      each.histogram = [];
      Object.assign(each.values, { min: NaN, max: NaN, mean: NaN, std: NaN, l2: NaN, absmax: NaN, status: 2, nan_count: 4194304 });
    }
  });
  for (let back = 1; back < 8; back++) {
    const each = rows[culprit - back];
    if (each) each.values.badges = back % 2 ? 64 : 64 | 8;
  }
}

/** The odd rows: dead, saturated, vanishing, absent, and names that are no good names. */
function decorate(rows: Row[]): void {
  const set = (index: number, values: Row["values"], names: Partial<Row["site"]> = {}): void => {
    const each = rows[index];
    if (!each) return;
    Object.assign(each.values, values);
    Object.assign(each.site, names);
  };
  const none = { min: NaN, max: NaN, mean: NaN, std: NaN, l2: NaN, absmax: NaN, nan_count: -1, posinf_count: -1, neginf_count: -1, zero_count: -1 };
  set(5, { ...none, status: 5, badges: 128 }, { module: "model.dropout", type: "Dropout" });
  set(6, { ...none, status: 10, badges: 128 }, { module: 'x<b>bold</b>"&amp;<img src=x onerror=alert(1)>', type: "<i>Odd</i>" });
  set(9, { badges: 16, min: 0, max: 0, mean: 0, std: 0, l2: 0, absmax: 0, zero_count: 4194304 });
  if (rows[9]) rows[9].histogram = [];
  set(10, { badges: 32, mean: 1.2e-38, std: 3e-30, min: -1e-29, max: 1e-29 });
  set(13, { badges: 4, at_max_count: 12, min: -448, max: 448 }, { dtype: "float8_e4m3fn" });
  set(14, { badges: 8, max: 60123.5, l2: Infinity }, { dtype: "float16" });
  for (const index of [18, 22, 26]) {
    const each = rows[index];
    if (each) each.histogram = normal(random(index), 1, 2097152, true);
    set(index, { zero_count: 2097152, min: 0 }, { type: "ReLU" });
  }
}

export function healthy(): Scene {
  const next = random(3);
  const names = ["conv1", "bn1", "relu", "layer1.0.conv1", "layer1.0.bn1", "fc"];
  const rows = names.flatMap((name, index) =>
    [0, 1].map((side) => row(next, 2 * index + side, name, "Conv2d", ROLES[side] as [string, string], 0)),
  );
  return {
    sites: sitesJson(rows),
    status: status({
      title: "model · ResNet",
      headline: { kind: "ok", text: "60 steps, 6 modules: no NaN, no Inf", detail: "largest |grad| 0.031 at step 12 in fc", row: null },
      notices: ["2 steps were skipped by the gradient scaler."],
      truncated: "The 12 worst and first of 240 rows are shown.",
      unobserved: [{ module: "head.<b>", reason: "was never called" }, { module: "", reason: "is compiled" }],
    }),
    frame: encode(rows, STEPS),
  };
}

export function empty(): Scene {
  const headline = { kind: "empty" as const, text: "Nothing recorded yet", detail: "", row: null };
  return { sites: sitesJson([]), status: status({ headline, open: true, step: null, steps: 0, records: 0 }), frame: encode([], 0) };
}
