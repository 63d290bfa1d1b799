// How numbers are written, and what an answer means, in words.

import { decide, limitOf, REASONS } from "./contract.js";

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
  return isOutOfDistribution(reason) ? "Rejected: unlike anything it was calibrated on" : "Rejected: the model does not know";
}

/** Why an image is accepted or rejected. */
export function explanation(summary, rule, label, deterministic) {
  const { uncertainty, standardError: error, modelUncertainty, samples } = summary;
  const reason = REASONS[decide(rule, summary)];
  const uncertain = reason === "uncertain" || reason === "both";
  const threshold = rule.score === "uncertainty" ? limitOf(rule, summary.classId) : null;
  const measured = comparison(summary, rule, label, uncertain);
  const sentences = [];
  if (isOutOfDistribution(reason)) {
    sentences.push(`${shareAsFar(summary.novelty)}, and at ${percent(rule.cutoff)} or less an image is out of distribution.`);
    if (measured) sentences.push(uncertain ? `Besides, ${measured}.` : `But for that, it would be ${label}: ${measured}.`);
  } else {
    const link = uncertain ? ", but " : ", and ";
    const familiar = (rule.cutoff ?? null) === null ? "" : "The image is like what the model was calibrated on";
    const sentence = familiar && measured ? `${familiar}${link}${measured}` : familiar || measured;
    if (sentence) sentences.push(`${sentence[0].toUpperCase()}${sentence.slice(1)}.`);
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
  if (!deterministic && samples > 1 && threshold !== null && Math.abs(uncertainty - threshold) < 2 * error) {
    sentences.push("The threshold is within two standard errors: more passes may change the decision.");
  }
  return sentences.join(" ");
}

/** A distance from the calibration images, with four digits: 1,302 and not 1.30e+3. */
export function distance(value) {
  return Number.isFinite(value) ? value.toLocaleString("en", { maximumSignificantDigits: 4 }) : "not a number";
}

/** The novelty in words: the share of the calibration images that are at least as far away, the image itself counted. */
function shareAsFar(novelty) {
  if (Number.isNaN(novelty)) return "Its distance from the images that the model was calibrated on is not a number";
  const share = novelty < 0.001 ? "Less than 0.1\u00a0%" : `Only ${percent(novelty)}`;
  return `${share} of the calibration images are at least this unusual`;
}

/** A set of labels: "cat or dog", "cat, dog, frog and 12 more". */
export function setInWords(labels) {
  if (labels.length === 0) return "none of the labels";
  if (labels.length > 3) return `${labels.slice(0, 3).join(", ")} and ${(labels.length - 3).toLocaleString("en")} more`;
  return labels.length === 1 ? labels[0] : `${labels.slice(0, -1).join(", ")} or ${labels.at(-1)}`;
}

/** What a prediction set promises. */
export function aboutSets({ alpha, samples, seed }, drawn, drawnSeed) {
  if (samples !== drawn || seed !== drawnSeed) return `promised for ${count(samples, "pass")} and seed ${seed} only`;
  return `right for at least ${percent(1 - alpha)} of images like those of the calibration`;
}

export const isOutOfDistribution = (reason) => reason === "out-of-distribution" || reason === "both";

/** The score beside its limit; empty where the rule has none. */
function comparison(summary, rule, label, uncertain) {
  const limit = limitOf(rule, summary.classId);
  if (limit === null) return uncertain ? "its uncertainty is not a number" : "";
  if (limit < 0) return `everything with the label ${label} is rejected`;
  const whose = rule.limits.length > 1 ? ` for ${label}` : "";
  if (rule.score === "confidence") {
    return `its confidence, ${percent(summary.confidence)}, is ${uncertain ? "below" : "at least"} the limit${whose}, ${percent(1 - limit)}`;
  }
  return `its uncertainty, ${decimal(summary.uncertainty)}, is ${uncertain ? "above" : "not above"} the threshold${whose}, ${decimal(limit)}`;
}

/** What the rule of the model promises. */
export function aboutRule({ gate, promise }, samples, seed) {
  const sentences = [];
  if (gate) {
    sentences.push(
      `It rejects out-of-distribution images, and with them at most ${atMost(gate.level)} of the images like those of the ` +
        `calibration, with ${percent(gate.confidence, 0)} confidence.`,
    );
  }
  if (promise && (samples !== promise.samples || seed !== promise.seed)) {
    sentences.push(`Its promise about the error holds for ${count(promise.samples, "pass")} and seed ${promise.seed} only.`);
  } else if (promise?.target_error != null) {
    const sure = percent(promise.confidence, 0);
    sentences.push(`At most ${atMost(promise.target_error)} of the accepted images are wrong, with ${sure} confidence.`);
  }
  return sentences.join(" ");
}

/** The held-out images that a threshold accepts, and how many of them are wrong. */
export function aboutThreshold(metadata, threshold) {
  const counted = metadata.held_out;
  if (!counted) return metadata.rule ? "" : "This model has no rule of its own.";
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
