// Runs a uce-edge model file (docs/contract.md, version 2) with onnxruntime-node.
import './telemetry.mjs'; // before onnxruntime-node, which reads it once
import * as ort from 'onnxruntime-node';
import { describe, MAX_SAMPLES, NUMBERS, OPTIONAL, OUTPUTS, passSeeds, refuse } from './contract.mjs';
import { MAPS, mapsOf, PooledMaps } from './maps.mjs';
import { callSize, decide, summarise } from './merge.mjs';
import { prepare } from './prepare.mjs';
import { inSet, labelSet } from './sets.mjs';
import { allowedDifference, differenceFrom, probeImage } from './probe.mjs';

export * from './contract.mjs';
export { to8Bits } from './range.mjs';

/** A model file, ready to predict. */
export class Model {
  /** `options` are those of onnxruntime-node's sessions, such as `intraOpNumThreads` or `executionProviders`. */
  static async load(path, options = {}) {
    const about = describe(path);
    // Errors are told by exceptions, once: level 4 keeps the runtime's own log quiet.
    const session = await ort.InferenceSession.create(path, { logSeverityLevel: 4, ...options }).catch(({ message }) =>
      refuse(`${path} is not an ONNX file that can be loaded: it is damaged, incomplete or something else. ONNX Runtime says: ${firstLine(message)}`));
    return new Model(path, about, session);
  }

  constructor(path, about, session) {
    const deterministic = about.inference === 'deterministic';
    Object.assign(this, { path, about, session, deterministic, takesSeeds: !deterministic && !about.baked });
    const { height, width, channels, dtype } = about.image;
    this.shape = [1, height, width, channels];
    this.optional = OPTIONAL.filter((name) => about.outputs?.includes(name));
    this.outputs = [...OUTPUTS, ...this.optional];
    this.passesPerCall = this.takesSeeds ? callSize(about) : MAX_SAMPLES;
    const image = session.inputMetadata.find(({ name }) => name === 'image');
    const same = image?.type === dtype && image.shape.slice(1).join() === this.shape.slice(1).join();
    const names = session.inputNames.toSorted().join() === (this.takesSeeds ? 'image,seeds' : 'image');
    if (!same || !names || ![...this.outputs, PASSES].every((name) => session.outputNames.includes(name))) this.#breaks();
  }

  #breaks() {
    refuse(`${this.path} breaks the contract: its graph is not what its metadata says.`);
  }

  /**
   * Answer the file's own probe images here, and compare with what it answered when it was published: a broken driver or
   * a wrong kernel answers otherwise. Null for a file without probe images.
   */
  async selfTest() {
    const probes = this.about.probe ?? [];
    if (probes.length === 0) return null;
    let difference = 0;
    for (const probe of probes) {
      const answer = await this.predict(probeImage(probe.pattern, this.about.image), passSeeds(probe.samples, 0));
      difference = Math.max(difference, differenceFrom(probe, answer)); // a NaN stays one
    }
    const allowed = allowedDifference(this.about);
    return { images: probes.length, difference, allowed, passed: difference <= allowed };
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

  /** The bytes that `predict` takes, of an 8-bit image of any size: `{ data, width, height, channels, stride }`. */
  prepare(frame) {
    return prepare(frame, this.about.image);
  }

  /**
   * Classify one image: raw pixels as bytes, rows from the top, channels last, not normalised.
   *
   * A call of ONNX Runtime holds 32 passes at most, or as many as the file's costs allow, and what is split is merged:
   * memory stays flat. `decision` is that of the rule in the file: an index of `REASONS`, 0 for an accepted image.
   * `novelty` and `novelty_score` are null for a file that does not have them, and so is `set`: the labels of the
   * prediction set, the likeliest first. `heatmap` and `heatmap_spread` are `{ height, width, values }`, or null: also
   * where calls that were merged predict different classes.
   */
  async predict(bytes, seeds) {
    const { height, width, channels, dtype } = this.about.image;
    const size = height * width * channels * (dtype === 'float32' ? 4 : 1);
    const shape = `${height} x ${width} x ${channels}, ${dtype}`;
    if (bytes.length !== size) refuse(`Expected \`image\` to be ${size} bytes (${shape}), but got ${bytes.length}.`);
    const many = seeds.length;
    if (many < 1 || many > MAX_SAMPLES) refuse(`Expected \`seeds\` to be 1 to ${MAX_SAMPLES} numbers, but got ${many}.`, 2);
    const pixels = dtype === 'float32' ? new Float32Array(Uint8Array.from(bytes).buffer) : Uint8Array.from(bytes);
    const image = new ort.Tensor(dtype, pixels, this.shape);
    return many <= this.passesPerCall ? this.#whole(image, seeds) : this.#split(image, seeds);
  }

  async #run(image, seeds, outputs) {
    const feed = { image };
    if (this.takesSeeds) feed.seeds = new ort.Tensor('int32', seeds, [seeds.length]);
    return this.session.run(feed, outputs).catch(({ message }) => refuse(`${this.path} could not be run: ${firstLine(message)}`));
  }

  /** All passes in one call. */
  async #whole(image, seeds) {
    const values = await this.#run(image, seeds, this.outputs);
    const numbers = [...NUMBERS, 'decision', ...NOVELTY].map((name) => [name, values[name]?.data[0] ?? null]);
    const inside = values.in_set?.data ?? null;
    const rest = { ...Object.fromEntries(numbers), ...mapsOf(values) };
    return this.#answer(Array.from(values.probabilities.data), values.class_id.data[0], rest, inside);
  }

  async #split(image, seeds) {
    const each = this.about.classes.length * (this.about.members ?? 1);
    const passes = new Float32Array(seeds.length * each);
    const optional = Object.fromEntries(NOVELTY.map((name) => [name, null]));
    const maps = MAPS.filter((name) => this.optional.includes(name));
    if (maps.length > 0) maps.push('class_id');
    const pooled = new PooledMaps();
    for (let first = 0; first < seeds.length; first += this.passesPerCall) {
      const some = seeds.slice(first, first + this.passesPerCall);
      // Every call gives the same novelty.
      const asked = first === 0 ? NOVELTY.filter((name) => this.optional.includes(name)) : [];
      const values = await this.#run(image, some, [PASSES, ...asked, ...maps]);
      if (values[PASSES].data.length !== some.length * each) this.#breaks();
      passes.set(values[PASSES].data, first * each);
      pooled.add(values, some.length);
      for (const name of asked) optional[name] = values[name].data[0];
    }
    const { probabilities, class_id, ...numbers } = summarise(passes, this.about);
    const decision = decide(this.about.rule ?? {}, { probabilities, class_id, ...numbers, ...optional });
    const inside = this.about.sets ? inSet(this.about.sets, probabilities) : null;
    return this.#answer(probabilities, class_id, { ...numbers, decision, ...optional, ...pooled.of(class_id) }, inside);
  }

  #answer(probabilities, class_id, numbers, inside) {
    const label = this.about.classes[class_id];
    if (probabilities.length !== this.about.classes.length || label === undefined) this.#breaks();
    if (inside && inside.length !== probabilities.length) this.#breaks();
    return { label, class_id, probabilities, ...numbers, set: labelSet(inside, probabilities, this.about.classes) };
  }
}

const PASSES = 'pass_probabilities';
const NOVELTY = ['novelty', 'novelty_score'];
const firstLine = (text) => String(text).split('\n')[0];
