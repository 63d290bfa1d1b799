// The model contract, version 1: what a model file must promise, and which passes may be asked for.

export const VERSION = 1;
export const MAX_SAMPLES = 4096;
export const MAX_SEED = 4095;
/** What every file has. A file may have more outputs, and its description more keys: they are ignored. */
export const OUTPUTS = [
  "probabilities", "class_id", "uncertainty", "model_uncertainty", "standard_error", "error_probability",
  "pass_probabilities", "logits",
];
/** What a file is asked for when its description lists it. */
export const OPTIONAL = ["novelty", "novelty_score"];
/** What a stored rule may compare with its threshold. */
export const SCORES = ["uncertainty"];
/** Why an answer is rejected. */
export const REASONS = ["uncertain", "foreign", "both"];
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
        `${VERSION}. ${AGAIN}, or use the page of the uce-edge that wrote it.`,
    );
  }
  const missing = REQUIRED.filter((key) => !(key in document));
  if (missing.length) throw new Refusal(`model.json lacks ${missing.join(", ")}. ${AGAIN}`);
  const wrong = firstWrong(document);
  if (wrong) throw new Refusal(`model.json cannot be used: ${wrong}. ${AGAIN}`);
  return { calibration: {}, costs: {}, outputs: [], reject: null, rule: null, held_out: null, members: 1, ...document };
}

function firstWrong({ classes, image, inference, samples, members = 1, noise, outputs = [], reject, rule }) {
  if (!Array.isArray(classes) || classes.length < 2) return "it has no list of classes";
  if (!["height", "width"].every((key) => Number.isInteger(image?.[key]) && image[key] > 0)) {
    return "the size of its image is unknown";
  }
  if (![1, 3].includes(image.channels)) return `an image of ${image.channels} channels is neither gray nor RGB`;
  if (!["uint8", "float32"].includes(image.dtype ?? "uint8")) return `it takes images of type ${image.dtype}`;
  if (!INFERENCE.includes(inference)) return `it has the unknown inference ${inference}`;
  if (!(Number.isInteger(samples) && samples >= 1 && samples <= MAX_SAMPLES)) return `its samples are ${samples}`;
  if (!(Number.isInteger(members) && members >= 1)) return `its members are ${members}`;
  if (noise === "input") return "it takes its noise as inputs, for experiments";
  if (!Array.isArray(outputs)) return "its outputs are no list";
  return wrongThreshold(reject) ?? wrongRule(rule, outputs);
}

/** What is wrong with a stored threshold; null for a good one, and where there is none. */
function wrongThreshold(stored) {
  const value = (stored ?? { threshold: 0 }).threshold;
  return typeof value === "number" && value >= 0 && value <= 1 ? null : "its threshold is not between 0 and 1";
}

function wrongRule(rule, outputs) {
  if ((rule ?? null) === null) return null;
  if (!outputs.includes("novelty")) return "its rule needs the output novelty";
  if (!SCORES.includes(rule.score ?? SCORES[0])) return `its rule compares ${rule.score}`;
  for (const key of ["cutoff", "level", "confidence"]) {
    const value = rule.foreign?.[key];
    if (!(typeof value === "number" && value > 0 && value < 1)) return `its ${key} is not strictly between 0 and 1`;
  }
  return wrongThreshold(rule.uncertain);
}

/** The optional outputs of a file that are known here. */
export const optionalOutputs = ({ outputs }) => OPTIONAL.filter((name) => outputs.includes(name));

/** The stored threshold, or null: of the rule, where foreign images are rejected, too; else that of the uncertainty alone. */
export const ownThreshold = ({ reject, rule }, cutoff) => (cutoff === null ? reject : rule.uncertain) ?? null;

/** Whether the graph has the input `seeds`: a deterministic one does not, nor one whose passes are baked in. */
export function takesSeeds({ inference, baked }) {
  return inference !== "deterministic" && !baked;
}

/** Refuses a graph that does not keep what the metadata promises. */
export function checkSignature(metadata, graph) {
  const wanted = takesSeeds(metadata) ? ["image", "seeds"] : ["image"];
  const inputs = [...graph.inputs].sort();
  const absent = [...OUTPUTS, ...optionalOutputs(metadata)].filter((name) => !graph.outputs.includes(name));
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

/** Whether an answer may be used: float32 on both sides, and NaN is never accepted. */
export function accepts(uncertainty, threshold) {
  return Math.fround(uncertainty) <= Math.fround(threshold);
}

/** Whether an image is unlike those of the calibration: float32 on both sides; NaN and null are foreign. */
export function isForeign(novelty, cutoff) {
  return !(Math.fround(novelty ?? 0) > Math.fround(cutoff));
}

/** Why an answer may not be used; null when it may. A cutoff that is null compares nothing. */
export function reasonToReject({ uncertainty, novelty }, { threshold, cutoff }) {
  const uncertain = !accepts(uncertainty, threshold);
  const foreign = cutoff !== null && isForeign(novelty, cutoff);
  if (uncertain && foreign) return "both";
  return uncertain ? "uncertain" : foreign ? "foreign" : null;
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
