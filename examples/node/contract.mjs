// The model contract, version 1 (docs/contract.md): names, limits, and what a description must say.
import { existsSync, readFileSync } from 'node:fs';
import { checkDigests } from './integrity.mjs';

export const CONTRACT = 1;
export const MAX_SAMPLES = 4096;
export const MAX_SEED = 4095;
export const NUMBERS = ['uncertainty', 'model_uncertainty', 'standard_error', 'error_probability'];
/** What every file is asked for. A file may have more outputs, and its description more keys: they are ignored. */
export const OUTPUTS = ['probabilities', 'class_id', ...NUMBERS];
/** What a file is asked for when its description lists it. */
export const OPTIONAL = ['novelty', 'novelty_score'];
export const INFERENCE = ['mc', 'moments', 'deterministic'];
/** What a stored rule may compare with its threshold. */
export const SCORES = ['uncertainty'];
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
  if (version !== CONTRACT) refuse(`${model} follows model contract ${version}, and this program reads contract ${CONTRACT}.`);
  const damaged = (what) => refuse(`${path} has damaged metadata: ${what}.`);
  const missing = REQUIRED.find((key) => !(key in about));
  if (missing) damaged(`it lacks the key ${missing}`);
  if (!INFERENCE.includes(about.inference)) damaged(`its inference is ${about.inference}`);
  const { range } = about.image ?? {};
  if (range != null && !(Number.isFinite(range.low) && Number.isFinite(range.high) && range.low < range.high)) damaged('its range ends before it starts');
  checkRejection(about, damaged);
  checkDigests(model, path, text, about);
  return about;
}

/** Refuses a stored threshold or rule that nothing can be compared with. */
function checkRejection(about, damaged) {
  const member = (record, key, type) => {
    const value = record[key];
    if (value === undefined) damaged(`it lacks the key ${key}`);
    const kind = Array.isArray(value) ? 'array' : value === null ? 'null' : typeof value;
    return kind === type ? value : damaged(`its key ${key} has the wrong type`);
  };
  const whole = (record, key, low, high) => {
    const value = member(record, key, 'number');
    if (!(Number.isInteger(value) && value >= low && value <= high)) damaged(`its key ${key} is out of range`);
  };
  const threshold = (stored) => {
    const value = member(stored, 'threshold', 'number');
    if (!(value >= 0 && value <= 1)) damaged('its threshold is not between 0 and 1');
    whole(stored, 'samples', 1, MAX_SAMPLES);
    whole(stored, 'seed', 0, MAX_SEED);
  };
  const has = (record, key) => (record[key] ?? null) !== null;

  if (has(about, 'outputs')) member(about, 'outputs', 'array');
  if (has(about, 'reject')) threshold(member(about, 'reject', 'object'));
  if (has(about, 'doubt')) threshold(member(about, 'doubt', 'object'));
  if (has(about, 'per_class')) {
    const stored = member(about, 'per_class', 'object');
    const limits = member(stored, 'limits', 'array');
    if (limits.length !== about.classes.length) damaged('it has not one limit for every class');
    for (const limit of limits) {
      const value = member(limit ?? {}, 'threshold', 'number');
      if (!(value >= -1 && value <= 1)) damaged('the limit of a class is not between -1 and 1');
    }
    whole(stored, 'samples', 1, MAX_SAMPLES);
    whole(stored, 'seed', 0, MAX_SEED);
  }
  if (!has(about, 'rule')) return;
  if (!about.outputs?.includes('novelty')) damaged('its rule needs the output novelty');
  const rule = member(about, 'rule', 'object');
  const score = has(rule, 'score') ? member(rule, 'score', 'string') : SCORES[0];
  if (!SCORES.includes(score)) damaged(`its rule compares ${score}`);
  const cutoff = member(member(rule, 'foreign', 'object'), 'cutoff', 'number');
  if (!(cutoff > 0 && cutoff < 1)) damaged('its cutoff is not strictly between 0 and 1');
  if (has(rule, 'uncertain')) threshold(member(rule, 'uncertain', 'object'));
}
