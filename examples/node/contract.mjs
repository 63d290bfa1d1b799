// The model contract, version 2 (docs/contract.md): names, limits, and what a description must say.
import { existsSync, readFileSync } from 'node:fs';
import { checkDigests } from './integrity.mjs';
import { wrongResize } from './resize.mjs';
import { wrongSets } from './sets.mjs';

export const CONTRACT = 2;
export const MAX_SAMPLES = 4096;
export const MAX_SEED = 4095;
export const NUMBERS = ['uncertainty', 'model_uncertainty', 'standard_error', 'error_probability'];
/** What every file is asked for. A file may have more outputs, and its description more keys: they are ignored. */
export const OUTPUTS = ['probabilities', 'class_id', ...NUMBERS, 'decision'];
/** What a file is asked for when its description lists it. */
export const OPTIONAL = ['novelty', 'novelty_score', 'in_set', 'heatmap', 'heatmap_spread'];
export const INFERENCE = ['mc', 'moments', 'deterministic'];
/** Why an image is rejected, by the output `decision`; null where it is accepted. */
export const REASONS = [null, 'uncertain', 'out-of-distribution', 'both'];
/** What a stored rule may compare with its limits. */
export const SCORES = ['uncertainty', 'confidence'];
const REQUIRED = ['classes', 'image', 'inference', 'samples'];

/** What a user is told, in one sentence; `code` is 2 when the request itself is wrong. */
export class UceEdgeError extends Error {
  constructor(sentence, code = 1) {
    super(sentence);
    this.code = code;
  }
}

export function refuse(sentence, code) {
  throw new UceEdgeError(sentence, code);
}

/** The text as a number from `low` to `high`. */
export function check(name, text, low, high, rule = `between ${low} and ${high}`, pattern = /^-?\d+$/) {
  const value = pattern.test(text) ? Number(text) : NaN;
  return value >= low && value <= high ? value : refuse(`Expected \`${name}\` to be ${rule}, but got ${text}.`, 2);
}

/** The seeds that `--samples N --seed S` stands for: the first N of the 4096 passes that S owns. */
export function passSeeds(samples, seed) {
  check('samples', samples, 1, MAX_SAMPLES);
  check('seed', seed, 0, MAX_SEED);
  return Int32Array.from({ length: samples }, (_, i) => seed * MAX_SAMPLES + i);
}

/**
 * What a model says of itself, checked. JavaScript runtimes cannot read ONNX metadata, so the exporter writes the same
 * document beside the model.
 */
export function describe(model) {
  if (!existsSync(model)) refuse(`There is no model file ${model}.`);
  const path = model.replace(/\.onnx$/, '') + '.json';
  if (!existsSync(path)) refuse(`${model} has no description beside it: ${path} is missing. Write it with: uce-edge info ${model} --json > ${path}`);
  let [text, about] = ['', null];
  try {
    text = readFileSync(path, 'utf8');
    about = JSON.parse(text);
  } catch {
    refuse(`${path} has damaged metadata: it is not JSON.`);
  }
  const version = about?.contract ?? null;
  if (version !== CONTRACT) {
    const remedy = version < CONTRACT && version !== null ? ` Convert it: uce-edge export ${model} --out new.onnx` : '';
    refuse(`${model} follows model contract ${version}, and this program reads contract ${CONTRACT}.${remedy}`);
  }
  const damaged = (what) => refuse(`${path} has damaged metadata: ${what}.`);
  const missing = REQUIRED.find((key) => !(key in about));
  if (missing) damaged(`it lacks the key ${missing}`);
  if (!INFERENCE.includes(about.inference)) damaged(`its inference is ${about.inference}`);
  const { range } = about.image ?? {};
  if (range != null && !(Number.isFinite(range.low) && Number.isFinite(range.high) && range.low < range.high)) damaged('its range ends before it starts');
  const wrong = wrongResize(about.image ?? {}) ?? wrongRule(about) ?? wrongSets(about);
  if (wrong) damaged(wrong);
  checkDigests(model, path, text, about);
  return about;
}

/** What is wrong with the stored rule; null for a good one, and where there is none. */
function wrongRule({ rule, outputs, classes }) {
  if ((rule ?? null) === null) return null;
  if (typeof rule !== 'object' || Array.isArray(rule)) return 'its key rule has the wrong type';
  if (!SCORES.includes(rule.score)) return `its rule compares ${rule.score}`;
  if (rule.limits && ![1, classes.length].includes(rule.limits.length)) return 'its rule has not one limit for every class';
  return (rule.cutoff ?? null) !== null && !outputs?.includes('novelty') ? 'its rule needs the output novelty' : null;
}

/** Whether an uncertainty is above a threshold of your own: float32 on both sides, and NaN is. */
export function isUncertain(uncertainty, threshold) {
  return !(Math.fround(uncertainty) <= Math.fround(threshold));
}
