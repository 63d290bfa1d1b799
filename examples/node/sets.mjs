// Prediction sets: which labels an image may have. The same code in the page and in the Node port.

const GRAINS = 2 ** 22; // the cumulative scores count probabilities in parts of 1 / GRAINS: their sums are exact
const RANKED = 128; // the labels that such a score adds up
const MOST_PENALTY = 2;
const SCORES = ['lac', 'aps', 'raps'];

/** What is wrong with stored sets; null for good ones, and where there are none. */
export function wrongSets({ sets, outputs, classes }) {
  if (((sets ?? null) !== null) !== (outputs ?? []).includes('in_set')) return 'its sets and its outputs contradict each other';
  if ((sets ?? null) === null) return null;
  if (!SCORES.includes(sets.score)) return `its sets compare ${sets.score}`;
  return [1, classes.length].includes(sets.limits?.length) ? null : 'its sets have not one limit for every label';
}

/** Whether each label is in the set, as the output `in_set`; a comparison with NaN is false, so NaN has an empty set. */
export function inSet({ score, limits, penalty = 0, free = 0 }, probabilities) {
  const numbers = Array.from(probabilities);
  const scores = score === 'lac' ? numbers.map((p) => Math.fround(1 - p)) : sums(numbers, penalty, free);
  const whole = !numbers.some(Number.isNaN);
  return scores.map((value, label) => whole && value <= Math.fround(limits[limits.length === 1 ? 0 : label]));
}

/** The sum of the larger probabilities, and a penalty by rank. */
function sums(probabilities, penalty, free) {
  const coarse = probabilities.map((p) => Math.floor(p * GRAINS) / GRAINS);
  const likely = coarse.toSorted((a, b) => b - a).slice(0, RANKED);
  return coarse.map((own) => {
    const total = likely.reduce((sum, p) => (p > own ? sum + p : sum), 0);
    const rank = likely.filter((p) => p >= own).length; // equal ones have the worst rank
    return total + Math.min(penalty * Math.max(rank - free, 0), MOST_PENALTY);
  });
}

/** The labels of a set, the likeliest first; null without sets. */
export function labelSet(inside, probabilities, classes) {
  if (!inside) return null;
  const numbers = Array.from(inside, (contained, label) => (contained ? label : -1)).filter((label) => label >= 0);
  return numbers.sort((a, b) => probabilities[b] - probabilities[a] || a - b).map((label) => classes[label]);
}
