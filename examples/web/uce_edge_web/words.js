// How numbers are written, and what an answer means, in words.

import { accepts } from "./contract.js";

/** A share as percent, never rounded to a certainty that was not measured. */
export function percent(value, digits = 1) {
  const text = (100 * value).toFixed(digits);
  const step = 10 ** -digits;
  if (value > 0 && Number(text) === 0) return `<\u00a0${step.toFixed(digits)}\u00a0%`;
  if (value < 1 && Number(text) === 100) return `>\u00a0${(100 - step).toFixed(digits)}\u00a0%`;
  return `${text}\u00a0%`;
}

/** An upper bound as percent, rounded up: rounded down it would promise more than was shown. */
function atMost(value) {
  return `${(Math.ceil(Number((value * 1000).toFixed(6))) / 10).toFixed(1)}\u00a0%`;
}

/** An uncertainty with three decimals. */
export function decimal(value) {
  return value > 0 && value < 0.0005 ? "< 0.001" : value.toFixed(3);
}

export function count(value, noun) {
  return `${value.toLocaleString("en")} ${value === 1 ? noun : noun.endsWith("s") ? `${noun}es` : `${noun}s`}`;
}

export function milliseconds(value) {
  return value < 10 ? `${value.toFixed(1)} ms` : value < 10_000 ? `${value.toFixed(0)} ms` : `${(value / 1000).toFixed(1)} s`;
}

/** A probability of error as people say it: about 1 in 12. */
export function odds(probability) {
  if (probability < 0.001) return "less than 1 time in 1000";
  return probability < 0.4 ? `about 1 time in ${Math.round(1 / probability)}` : `about ${percent(probability, 0)} of the time`;
}

export function standardError({ samples, standardError: error }, deterministic) {
  if (deterministic) return "";
  return samples === 1 ? "± unknown with one pass" : `± ${decimal(error)}`;
}

/** Why an image is accepted or rejected. */
export function reason(summary, threshold, label, deterministic) {
  const { uncertainty, standardError: error, modelUncertainty, samples } = summary;
  const rejected = isRejected(summary, threshold);
  const measured = `Its uncertainty, ${decimal(uncertainty)}, is ${rejected ? "above" : "not above"} the threshold, ${decimal(threshold)}.`;
  const sentences = [measured];
  if (rejected) {
    sentences.push(`The best guess, ${label}, would be wrong ${odds(summary.errorProbability)}.`);
    if (!deterministic && samples > 1) {
      const share = modelUncertainty / uncertainty;
      sentences.push(
        share > 0.5
          ? `Of the uncertainty, ${percent(share, 0)} is the model's own: the passes contradict each other, as they do on images unlike those it learned from.`
          : `Of the uncertainty, ${percent(1 - share, 0)} is in the image: the passes agree that more than one class fits.`,
      );
    }
  } else {
    sentences.push(`An answer like this one is wrong ${odds(summary.errorProbability)}.`);
  }
  if (!deterministic && samples > 1 && Math.abs(uncertainty - threshold) < 2 * error) {
    sentences.push("The threshold is within two standard errors: more passes may decide otherwise.");
  }
  return sentences.join(" ");
}

/** Float32 on both sides: a threshold of 0.3 must not reject an uncertainty of 0.3. */
export const isRejected = ({ uncertainty }, threshold) => !accepts(uncertainty, threshold);

/** What is known of a threshold from images that nothing was fitted on. */
export function aboutThreshold({ reject, held_out: counted }, threshold, samples, seed) {
  if (reject && threshold === reject.threshold) {
    const promise =
      reject.target_error == null
        ? ""
        : ` at most ${atMost(reject.target_error)} of the accepted images are wrong, with ${percent(reject.confidence, 0)} confidence`;
    if (samples === reject.samples && seed === reject.seed) return promise ? `The model's own threshold:${promise}.` : "The model's own threshold.";
    return `The model's own threshold. Its promise holds for ${count(reject.samples, "pass")} and seed ${reject.seed} only.`;
  }
  if (!counted) return reject ? "" : "This model has no threshold of its own.";
  const images = counted.accepted.at(-1);
  const step = Math.floor(threshold * 100 + 1e-9);
  const accepted = counted.accepted[step];
  if (!accepted) return `Accepts none of ${count(images, "held-out image")}.`;
  return (
    `Of ${count(images, "held-out image")}, ${(step / 100).toFixed(2)} accepts ${percent(accepted / images)}, ` +
    `and ${percent(counted.errors[step] / accepted)} of these are wrong.`
  );
}

export function aboutSamples({ calibration, inference }, samples) {
  if (inference === "deterministic") return "This model computes one pass, without noise.";
  const once = inference === "mc" ? "Monte Carlo passes. " : "The image is computed once and every pass is a draw of the last layers, so N is nearly free. ";
  const fitted = calibration?.samples;
  if (fitted && samples !== fitted) {
    return `${once}Calibrated at ${fitted}: at ${samples} the probabilities are a little off.`;
  }
  return `${once}${fitted ? `The model was calibrated at ${fitted}.` : ""}`;
}
