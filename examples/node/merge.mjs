// Passes that are split over several calls: how many a call takes, and what follows from all of them together.

// As in Python: one call holds so many passes, about so many bytes, and so many probabilities at most.
const PASSES_PER_CALL = 32;
const BYTES_PER_CALL = 256 * 2 ** 20;
const CACHED = 25 * 2 ** 20; // bytes of the passes of a call whose maps hardly leave a processor's caches
const DRAWN_PER_CALL = 2 ** 20;
const LEAST = 1e-30; // the logarithm ends here
const EDGE = 1e-6; // the error map keeps this far from 0 and 1

/** How many passes of an image one call may hold: more where a pass is hardly more than a draw. */
export function callSize({ classes, costs, inference, members }) {
  const { macs_once: once = 0, macs_per_pass: each = 0, bytes_per_pass: bytes } = costs ?? {};
  const cached = costs?.bytes_per_draw ? Math.max(1, Math.floor(CACHED / costs.bytes_per_draw)) : PASSES_PER_CALL;
  const rows = bytes ? Math.min(Math.max(1, Math.floor(BYTES_PER_CALL / bytes)), cached, PASSES_PER_CALL) : PASSES_PER_CALL;
  const draw = costs?.bytes_per_draw ?? (inference === 'moments' ? 1 : null); // older files do not say
  if (100 * each >= once || draw === null) return rows;
  return Math.max(rows, Math.min(Math.floor(BYTES_PER_CALL / draw), Math.floor(DRAWN_PER_CALL / (classes.length * (members ?? 1)))));
}

/**
 * What the graph gives for the probabilities of these passes when one call draws them all.
 *
 * `passes` is [seeds * members, classes] in one flat array, seed by seed. The members of an ensemble are no draws: the
 * standard error is that of the seeds' averages over them.
 */
export function summarise(passes, { classes: { length: classes }, members, calibration }) {
  const together = members ?? 1;
  const rows = passes.length / classes;
  const seeds = rows / together;
  const scale = -1 / Math.log(classes);
  const log = (p) => Math.log(Math.max(p, LEAST));
  const mean = new Float64Array(classes);
  passes.forEach((p, i) => { mean[i % classes] += p / rows; });
  const total = clip(mean.reduce((sum, p) => sum + scale * p * log(p), 0));
  // Delta method: the entropy of the mean is the mean of the passes' cross-entropies to it.
  const cross = new Float64Array(seeds);
  let data = 0;
  passes.forEach((p, i) => {
    data += (scale * p * log(p)) / rows;
    cross[Math.floor(i / classes / together)] += (scale * p * log(mean[i % classes])) / together;
  });
  const centre = cross.reduce((sum, value) => sum + value, 0) / seeds;
  const variance = cross.reduce((sum, value) => sum + (value - centre) ** 2, 0) / (seeds - 1);
  const probabilities = Array.from(Float32Array.from(mean));
  const class_id = Math.max(0, probabilities.indexOf(Math.max(...probabilities))); // NaN is nowhere
  const uncertainty = Math.fround(total);
  return {
    probabilities,
    class_id,
    uncertainty,
    model_uncertainty: Math.fround(clip(total - data)),
    standard_error: Math.fround(seeds === 1 ? 1 : Math.min(Math.sqrt(variance / seeds), 1)),
    error_probability: Math.fround(errorAt(uncertainty, Math.fround(1 - probabilities[class_id]), calibration ?? {})),
  };
}

/**
 * The expected probability of a wrong label: sigmoid(a + b log e - c log(1 - e)).
 *
 * e is the doubt, 1 - confidence, and c is b; in older files e is the uncertainty. Without a map it is the doubt itself.
 */
function errorAt(uncertainty, doubt, { error = null, confidence_error: ofConfidence = null }) {
  if (!ofConfidence && !error) return doubt;
  const [a, b, c = b] = ofConfidence ?? error;
  const inside = Math.min(Math.max(ofConfidence ? doubt : uncertainty, EDGE), 1 - EDGE);
  return 1 / (1 + Math.exp(-(a + b * Math.log(inside) - c * Math.log1p(-inside))));
}

/** The output `decision` for all passes together. A comparison with NaN is false, so NaN rejects. */
export function decide({ score, limits, cutoff }, { probabilities, class_id, uncertainty, novelty }) {
  const compared = score === 'confidence' ? Math.fround(1 - probabilities[class_id]) : uncertainty;
  const limit = limits ? limits[limits.length === 1 ? 0 : class_id] : 2; // scores are at most 1
  const uncertain = !(compared <= Math.fround(limit));
  const outOfDistribution = (cutoff ?? null) !== null && !(novelty > Math.fround(cutoff));
  return Number(uncertain) + 2 * Number(outOfDistribution);
}

const clip = (value) => Math.min(Math.max(value, 0), 1);
