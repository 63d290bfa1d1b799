// Whether an answer may be used, and why not.

/** Why an answer is rejected. */
export const REASONS = ['uncertain', 'foreign', 'both'];
const LIKE = 'like what it was calibrated on';
const UNLIKE = 'unlike anything it was calibrated on';

/** Whether an answer may not be used for its uncertainty: float32 on both sides, and NaN is never accepted. */
export function rejected(uncertainty, threshold) {
  return !(Math.fround(uncertainty) <= Math.fround(threshold));
}

/** 1 - confidence in float32, which a stored threshold on the confidence is compared with. */
export function doubtOf(probabilities) {
  return Math.fround(1 - Math.fround(Math.max(...probabilities)));
}

/** Whether an image is unlike those of the calibration: float32 on both sides; NaN and null are foreign. */
export function isForeign(novelty, cutoff) {
  return !(Math.fround(novelty ?? 0) > Math.fround(cutoff));
}

/** What an answer is compared with: where every class has a threshold of its own, that of its label. */
function limitsOf({ class_id, label }, { threshold, cutoff, doubt = null, perClass = null }) {
  return perClass === null
    ? { threshold, cutoff, doubt, ofLabel: null }
    : { threshold: perClass[class_id], cutoff, doubt: null, ofLabel: label };
}

/** Why an answer may not be used; null when it may. A limit that is null compares nothing. */
export function reasonToReject(answer, limits) {
  const { uncertainty, novelty, probabilities } = answer;
  const { threshold, cutoff, doubt } = limitsOf(answer, limits);
  const unsure = doubt !== null && rejected(doubtOf(probabilities), doubt);
  const uncertain = unsure || Number.isNaN(uncertainty) || (threshold !== null && rejected(uncertainty, threshold));
  const foreign = cutoff !== null && isForeign(novelty, cutoff);
  if (uncertain && foreign) return 'both';
  return uncertain ? 'uncertain' : foreign ? 'foreign' : null;
}

/** What the decision rests on, in words that follow "reject:" or "accept:". */
export function why(answer, limits) {
  const reason = reasonToReject(answer, limits);
  const { threshold, cutoff, doubt, ofLabel } = limitsOf(answer, limits);
  const compared = (uncertain) => {
    if (Number.isNaN(answer.uncertainty)) return 'its uncertainty is not a number';
    if (doubt !== null) return `its confidence is ${uncertain ? 'below' : 'at least'} ${short(100 * (1 - doubt))} %`;
    if (ofLabel !== null && threshold < 0) return `nothing that is labelled ${ofLabel} is accepted`;
    const whose = ofLabel === null ? '' : `, the limit for ${ofLabel}`;
    return `its uncertainty is ${uncertain ? 'above' : 'at most'} ${short(threshold)}${whose}`;
  };
  const above = compared(true);
  if (reason === 'uncertain') return above;
  if (reason === 'foreign') return UNLIKE;
  if (reason === 'both') return `${UNLIKE}, and ${above}`;
  const atMost = compared(false);
  if (cutoff === null) return atMost;
  return threshold === null && doubt === null ? LIKE : `${LIKE}, and ${atMost}`;
}

/** Four digits, small numbers as C and Python write them: 1.234e-05. */
function short(value) {
  const number = Number((value ?? 0).toPrecision(4));
  const small = number !== 0 && Math.abs(number) < 1e-4;
  return small ? number.toExponential().replace(/e-(\d)$/, 'e-0$1') : String(number);
}
