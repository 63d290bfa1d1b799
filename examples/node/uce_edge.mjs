// Runs a uce-edge model file (docs/contract.md, version 1) with onnxruntime-node.
import './telemetry.mjs'; // before onnxruntime-node, which reads it once
import { existsSync, readFileSync } from 'node:fs';
import * as ort from 'onnxruntime-node';

export const CONTRACT = 1;
export const MAX_SAMPLES = 4096;
export const MAX_SEED = 4095;
const NUMBERS = ['uncertainty', 'model_uncertainty', 'standard_error', 'error_probability'];
/** What is asked for. A file may have more outputs, and its description more keys: they are ignored. */
export const OUTPUTS = ['probabilities', 'class_id', ...NUMBERS];
export const INFERENCE = ['mc', 'moments', 'deterministic'];
const REQUIRED = ['classes', 'image', 'inference', 'samples'];

/** What a user is told, in one sentence; `code` is 2 when the request itself is wrong. */
export class UceEdgeError extends Error {
  constructor(sentence, code = 1) {
    super(sentence);
    this.code = code;
  }
}

function refuse(sentence, code) {
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

// JavaScript runtimes cannot read ONNX metadata, so the exporter writes the same document beside the model.
function describe(model) {
  if (!existsSync(model)) refuse(`There is no model file ${model}.`);
  const path = model.replace(/\.onnx$/, '') + '.json';
  if (!existsSync(path)) refuse(`${model} has no description beside it: ${path} is missing. Write it with: uce-edge info ${model} --json > ${path}`);
  let about;
  try {
    about = JSON.parse(readFileSync(path, 'utf8'));
  } catch {
    refuse(`${path} has damaged metadata: it is not JSON.`);
  }
  const version = about?.contract ?? null;
  if (version !== CONTRACT) refuse(`${model} follows model contract ${version}, and this program reads contract ${CONTRACT}.`);
  const missing = REQUIRED.find((key) => !(key in about));
  if (missing) refuse(`${path} has damaged metadata: it lacks the key ${missing}.`);
  if (!INFERENCE.includes(about.inference)) refuse(`${path} has damaged metadata: its inference is ${about.inference}.`);
  return about;
}

/** A model file, ready to predict. */
export class Model {
  static async load(path) {
    const about = describe(path);
    // Errors are told by exceptions, once: level 4 keeps the runtime's own log quiet.
    const session = await ort.InferenceSession.create(path, { logSeverityLevel: 4 }).catch(() =>
      refuse(`${path} is not an ONNX file that can be loaded: it is damaged, incomplete or something else.`));
    return new Model(path, about, session);
  }

  constructor(path, about, session) {
    const deterministic = about.inference === 'deterministic';
    Object.assign(this, { path, about, session, deterministic, takesSeeds: !deterministic && !about.baked });
    const { height, width, channels, dtype } = about.image;
    this.shape = [1, height, width, channels];
    const image = session.inputMetadata.find(({ name }) => name === 'image');
    const same = image?.type === dtype && image.shape.slice(1).join() === this.shape.slice(1).join();
    const names = session.inputNames.toSorted().join() === (this.takesSeeds ? 'image,seeds' : 'image');
    if (!same || !names || !OUTPUTS.every((name) => session.outputNames.includes(name))) this.#breaks();
  }

  #breaks() {
    refuse(`${this.path} breaks the contract: its graph is not what its metadata says.`);
  }

  /** The passes of a request; without one, the number stored in the file. */
  seeds(samples = this.about.samples, seed = 0) {
    const kind = this.deterministic ? 'a deterministic model' : 'a model with its passes baked in';
    if (!this.takesSeeds && samples !== this.about.samples) {
      refuse(`Expected \`samples\` to be left out for ${kind}, but got ${samples}.`, 2);
    }
    if (!this.takesSeeds && !this.deterministic && seed !== 0) {
      refuse(`Expected \`seed\` to be left out for ${kind}, but got ${seed}.`, 2);
    }
    return passSeeds(samples, seed);
  }

  /** Classify one image: raw pixels as bytes, rows from the top, channels last, not normalised. */
  async predict(bytes, seeds) {
    const { height, width, channels, dtype } = this.about.image;
    const size = height * width * channels * (dtype === 'float32' ? 4 : 1);
    const shape = `${height} x ${width} x ${channels}, ${dtype}`;
    if (bytes.length !== size) refuse(`Expected \`image\` to be ${size} bytes (${shape}), but got ${bytes.length}.`);
    const many = seeds.length;
    if (many < 1 || many > MAX_SAMPLES) refuse(`Expected \`seeds\` to be 1 to ${MAX_SAMPLES} numbers, but got ${many}.`, 2);
    const pixels = dtype === 'float32' ? new Float32Array(Uint8Array.from(bytes).buffer) : Uint8Array.from(bytes);
    const feed = { image: new ort.Tensor(dtype, pixels, this.shape) };
    if (this.takesSeeds) feed.seeds = new ort.Tensor('int32', seeds, [many]);
    const found = await this.session.run(feed, OUTPUTS);
    const probabilities = Array.from(found.probabilities.data);
    const [class_id] = found.class_id.data;
    const label = this.about.classes[class_id];
    if (probabilities.length !== this.about.classes.length || label === undefined) this.#breaks();
    const numbers = Object.fromEntries(NUMBERS.map((name) => [name, found[name].data[0]]));
    return { label, class_id, probabilities, ...numbers };
  }
}

/** Whether an answer may not be used: float32 on both sides, and NaN is never accepted. */
export function rejected(uncertainty, threshold) {
  return !(Math.fround(uncertainty) <= Math.fround(threshold));
}
