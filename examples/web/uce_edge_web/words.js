// How numbers are written, and what an answer means, in words.

import { ownThreshold, reasonToReject } from "./contract.js";

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

/** What became of an answer, for its headline. */
export function verdict(reason, label) {
  if (reason === null) return `Accepted: ${label}`;
  return isForeignBy(reason) ? "Rejected: unlike anything it was calibrated on" : "Rejected: the model does not know";
}

/** Why an image is accepted or rejected. */
export function explanation(summary, limits, label, deterministic) {
  const { uncertainty, standardError: error, modelUncertainty, samples } = summary;
  const { threshold, cutoff } = limits;
  const reason = reasonToReject(summary, limits);
  const uncertain = reason === "uncertain" || reason === "both";
  const measured = `its uncertainty, ${decimal(uncertainty)}, is ${uncertain ? "above" : "not above"} the threshold, ${decimal(threshold)}`;
  const sentences = [];
  if (isForeignBy(reason)) {
    sentences.push(`${shareAsFar(summary.novelty)}, and what has ${percent(cutoff)} or less is foreign.`);
    sentences.push(uncertain ? `Besides, ${measured}.` : `But for that, it would be ${label}: ${measured}.`);
  } else {
    const familiar = cutoff === null ? "" : `The image is like what the model was calibrated on, ${uncertain ? "but" : "and"} `;
    sentences.push(familiar ? `${familiar}${measured}.` : `${measured[0].toUpperCase()}${measured.slice(1)}.`);
  }
  if (reason === "uncertain") {
    sentences.push(`The best guess, ${label}, would be wrong ${odds(summary.errorProbability)}.`);
    if (!deterministic && samples > 1) {
      const share = modelUncertainty / uncertainty;
      sentences.push(
        share > 0.5
          ? `Of the uncertainty, ${percent(share, 0)} is the model's own: the passes contradict each other, as they do on images unlike those it learned from.`
          : `Of the uncertainty, ${percent(1 - share, 0)} is in the image: the passes agree that more than one class fits.`,
      );
    }
  } else if (reason === null) {
    sentences.push(`An answer like this one is wrong ${odds(summary.errorProbability)}.`);
  }
  if (!deterministic && samples > 1 && Math.abs(uncertainty - threshold) < 2 * error) {
    sentences.push("The threshold is within two standard errors: more passes may decide otherwise.");
  }
  return sentences.join(" ");
}

/** The novelty in words: the share of the reference images that are at least as far away, the image itself counted. */
function shareAsFar(novelty) {
  if (Number.isNaN(novelty)) return "Its distance from the images that the model was calibrated on is not a number";
  const share = novelty < 0.001 ? "Less than 0.1\u00a0%" : `Only ${percent(novelty)}`;
  return `${share} of the images that the model was calibrated on are as far away`;
}

export const isForeignBy = (reason) => reason === "foreign" || reason === "both";

/** What the gate against foreign images keeps. */
export function aboutGate({ foreign }) {
  return (
    `Images unlike anything it was calibrated on. At most ${atMost(foreign.level)} of the images that are like those are ` +
    `rejected as well, with ${percent(foreign.confidence, 0)} confidence.`
  );
}

/** What is known of a threshold from images that nothing was fitted on. */
export function aboutThreshold(metadata, { threshold, cutoff }, samples, seed) {
  const own = ownThreshold(metadata, cutoff);
  if (own && threshold === own.threshold) {
    const promise =
      own.target_error == null
        ? ""
        : ` at most ${atMost(own.target_error)} of the accepted images are wrong, with ${percent(own.confidence, 0)} confidence`;
    if (samples === own.samples && seed === own.seed) return promise ? `The model's own threshold:${promise}.` : "The model's own threshold.";
    return `The model's own threshold. Its promise holds for ${count(own.samples, "pass")} and seed ${own.seed} only.`;
  }
  const counted = metadata.held_out;
  if (!counted) return own ? "" : "This model has no threshold of its own.";
  const images = counted.accepted.at(-1);
  const step = Math.floor(threshold * 100 + 1e-9);
  const accepted = counted.accepted[step];
  const alone = cutoff === null ? "" : " by the uncertainty alone";
  if (!accepted) return `Accepts none of ${count(images, "held-out image")}.`;
  return (
    `Of ${count(images, "held-out image")}, ${(step / 100).toFixed(2)} accepts ${percent(accepted / images)}${alone}, ` +
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
