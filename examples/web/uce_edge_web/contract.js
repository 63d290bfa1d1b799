// The model contract, version 2: what a model file must promise, and which passes may be asked for.

import { wrongResize } from "./resize.js";
import { wrongSets } from "./sets.js";

export const VERSION = 2;
export const MAX_SAMPLES = 4096;
export const MAX_SEED = 4095;
/** What every file has. A file may have more outputs, and its description more keys: they are ignored. */
export const OUTPUTS = [
  "probabilities", "class_id", "uncertainty", "model_uncertainty", "standard_error", "error_probability",
  "pass_probabilities", "logits", "decision",
];
/** What a file is asked for when its description lists it. */
export const OPTIONAL = ["novelty", "novelty_score", "in_set"];
/** The same, for outputs with a number for every place of the image. */
export const MAPS = ["heatmap", "heatmap_spread"];
/** What a stored rule may compare with its limits. */
export const SCORES = ["uncertainty", "confidence"];
/** Why an image is rejected, by the output `decision`; null where it is accepted. */
export const REASONS = [null, "uncertain", "out-of-distribution", "both"];
export const REQUIRED = ["classes", "image", "inference", "samples"];
export const INFERENCE = ["mc", "moments", "deterministic"];
const AGAIN = "Export the model again: uce-edge export";
// As the Python runtime: one call holds so many image-passes, and about so many bytes, at most.
const PASSES_PER_CALL = 32;
const BYTES_PER_CALL = 256 * 2 ** 20;
const DRAWN_PER_CALL = 2 ** 20;

/** Something that cannot be done, as a sentence for the user. */
export class Refusal extends Error {}

/** The one shape of a message about a value: its name, the rule, the value and the way out. */
export function expected(name, rule, value, remedy) {
  return new Refusal(`Expected ${name} to be ${rule}, but got ${value}. ${remedy}`);
}

/** The metadata document of a model, checked. */
export function readMetadata(text) {
  let document;
  try {
    document = JSON.parse(text);
  } catch (error) {
    throw new Refusal(`model.json is damaged (${error.message}). ${AGAIN}`);
  }
  if (document?.contract !== VERSION) {
    throw new Refusal(
      `The model follows contract ${JSON.stringify(document?.contract ?? null)}, and this page reads contract ` +
        `${VERSION}. ${document?.contract === 1 ? "Convert it: uce-edge export old.onnx --out new.onnx" : AGAIN}`,
    );
  }
  const missing = REQUIRED.filter((key) => !(key in document));
  if (missing.length) throw new Refusal(`model.json lacks ${missing.join(", ")}. ${AGAIN}`);
  const wrong = firstWrong(document);
  if (wrong) throw new Refusal(`model.json cannot be used: ${wrong}. ${AGAIN}`);
  return { calibration: {}, costs: {}, outputs: [], rule: null, sets: null, held_out: null, members: 1, ...document };
}

function firstWrong({ classes, image, inference, samples, members = 1, noise, outputs = [], rule, sets }) {
  if (!Array.isArray(classes) || classes.length < 2) return "it has no list of classes";
  if (!["height", "width"].every((key) => Number.isInteger(image?.[key]) && image[key] > 0)) {
    return "the size of its image is unknown";
  }
  if (![1, 3].includes(image.channels)) return `an image of ${image.channels} channels is neither gray nor RGB`;
  if (!["uint8", "float32"].includes(image.dtype ?? "uint8")) return `it takes images of type ${image.dtype}`;
  const wrong = wrongResize(image);
  if (wrong) return wrong;
  if (!INFERENCE.includes(inference)) return `it has the unknown inference ${inference}`;
  if (!(Number.isInteger(samples) && samples >= 1 && samples <= MAX_SAMPLES)) return `its samples are ${samples}`;
  if (!(Number.isInteger(members) && members >= 1)) return `its members are ${members}`;
  if (noise === "input") return "it takes its noise as inputs, for experiments";
  if (!Array.isArray(outputs)) return "its outputs are no list";
  return wrongRule(rule, outputs, classes) ?? wrongSets({ sets, outputs, classes });
}

/** What is wrong with the stored rule; null for a good one, and where there is none. */
function wrongRule(rule, outputs, classes) {
  if ((rule ?? null) === null) return null;
  if (!SCORES.includes(rule.score)) return `its rule compares ${rule.score}`;
  if (rule.limits && ![1, classes.length].includes(rule.limits.length)) return "its rule has not one limit for every class";
  return (rule.cutoff ?? null) !== null && !outputs.includes("novelty") ? "its rule needs the output novelty" : null;
}

/** The optional outputs of a file that are known here. */
export const optionalOutputs = ({ outputs }) => OPTIONAL.filter((name) => outputs.includes(name));
export const mapOutputs = ({ outputs }) => MAPS.filter((name) => outputs.includes(name));

/** Whether the graph has the input `seeds`: a deterministic one does not, nor one whose passes are baked in. */
export function takesSeeds({ inference, baked }) {
  return inference !== "deterministic" && !baked;
}

/** Refuses a graph that does not keep what the metadata promises. */
export function checkSignature(metadata, graph) {
  const wanted = takesSeeds(metadata) ? ["image", "seeds"] : ["image"];
  const inputs = [...graph.inputs].sort();
  const absent = [...OUTPUTS, ...optionalOutputs(metadata), ...mapOutputs(metadata)].filter((name) => !graph.outputs.includes(name));
  if (inputs.join() !== wanted.join() || absent.length) {
    throw new Refusal(
      `model.onnx has the inputs ${inputs.join(", ")} and the outputs ${graph.outputs.join(", ")}, which is not ` +
        `contract ${VERSION}. ${AGAIN}`,
    );
  }
  const { height, width, channels, dtype } = metadata.image;
  const promised = [dtype ?? "uint8", height, width, channels, metadata.classes.length];
  if (graph.shape && graph.shape.join() !== promised.join()) {
    throw new Refusal(
      `model.onnx is damaged or of another model than model.json, which promises ${promised.join(", ")} (image type, ` +
        `height, width, channels; classes): the graph has ${graph.shape.join(", ")}. ${AGAIN}`,
    );
  }
}

/** The seeds of `--samples N --seed S`: the first N of the 4096 passes that S owns. */
export function passSeeds(samples, seed) {
  if (!(Number.isInteger(samples) && samples >= 1 && samples <= MAX_SAMPLES)) {
    throw expected("the number of passes", `a whole number from 1 to ${MAX_SAMPLES}`, shown(samples), "25 is a good start.");
  }
  if (!(Number.isInteger(seed) && seed >= 0 && seed <= MAX_SEED)) {
    throw expected("the seed", `a whole number from 0 to ${MAX_SEED}`, shown(seed), "Any fixed value will do, such as 0.");
  }
  return Int32Array.from({ length: samples }, (_, index) => MAX_SAMPLES * seed + index);
}

/** The limit of a class on the score of a rule; null where every score is accepted. */
export const limitOf = ({ limits }, classId) => (limits ? limits[limits.length === 1 ? 0 : classId] : null);

/** The rule of a threshold of one's own, which is about the uncertainty alone. */
export const ruleOf = (threshold) => ({ score: "uncertainty", limits: [threshold], cutoff: null });

/**
 * The output `decision` for all passes together, an index of `REASONS`. It is computed here because the page draws a few
 * passes at a time. A comparison with NaN is false, so NaN rejects.
 */
export function decide(rule, { uncertainty, confidence, novelty, classId }) {
  const score = rule.score === "confidence" ? Math.fround(1 - confidence) : uncertainty;
  const uncertain = !(Math.fround(score) <= Math.fround(limitOf(rule, classId) ?? 2)); // scores are at most 1
  const cutoff = rule.cutoff ?? null;
  return Number(uncertain) + 2 * Number(cutoff !== null && !(Math.fround(novelty) > Math.fround(cutoff)));
}

export function checkThreshold(threshold) {
  if (!(typeof threshold === "number" && threshold >= 0 && threshold <= 1)) {
    throw expected("the threshold", "a number from 0 to 1", shown(threshold), "For example 0.3.");
  }
  return threshold;
}

const shown = (value) => (Number.isNaN(value) ? "no number" : value);

/** How many passes one call draws: few, so that they can be watched, but all where a pass is only a draw. */
export function passesPerCall({ baked, classes, costs, inference, members }, samples) {
  if (baked) return samples;
  const { macs_once: once = 0, macs_per_pass: each = 1, bytes_per_pass: bytes = 1 } = costs;
  const { bytes_per_draw: draw = inference === "moments" ? 1 : Infinity } = costs; // older files do not say
  if (100 * each < once && draw < Infinity) {
    const drawn = Math.min(DRAWN_PER_CALL / (classes.length * members), BYTES_PER_CALL / draw);
    return Math.max(PASSES_PER_CALL, Math.floor(drawn));
  }
  const affordable = Math.max(1, Math.floor(BYTES_PER_CALL / bytes));
  return Math.min(affordable, PASSES_PER_CALL, Math.ceil(samples / 12));
}
