// What follows from the probabilities of all passes: the same as the graph gives when it draws them in one call.

const LEAST = 1e-30; // the logarithm ends here
const EDGE = 1e-6; // the error map keeps this far from 0 and 1

/**
 * Merges calibrated probabilities of passes that were split over several calls.
 *
 * `passes` is [samples * members, classes] in one flat array, seed by seed. `calibration` is that of the metadata, whose
 * error map counts. The members of an ensemble are no draws: the standard error is that of the seeds' averages over them.
 */
export function summarise(passes, classes, { calibration = {}, deterministic = false, members = 1 } = {}) {
  const rows = passes.length / classes;
  const samples = rows / members;
  const scale = -1 / Math.log(classes);
  const mean = new Float64Array(classes);
  for (let i = 0; i < passes.length; i++) mean[i % classes] += passes[i] / rows;
  const logMean = mean.map((p) => Math.log(Math.max(p, LEAST)));
  const uncertainty = clip(scale * mean.reduce((sum, p, c) => sum + p * logMean[c], 0));

  // Delta method: the entropy of the mean is the mean of the passes' cross-entropies to it.
  const cross = new Float64Array(samples);
  let data = 0;
  for (let i = 0; i < rows; i++) {
    const row = passes.subarray(i * classes, (i + 1) * classes);
    data += entropy(row) / rows;
    cross[Math.floor(i / members)] += (scale / members) * row.reduce((sum, p, c) => sum + p * logMean[c], 0);
  }
  const centre = cross.reduce((sum, value) => sum + value, 0) / samples;
  const variance = cross.reduce((sum, value) => sum + (value - centre) ** 2, 0) / (samples - 1);
  const standardError = deterministic ? 0 : samples === 1 ? 1 : Math.min(Math.sqrt(variance / samples), 1);

  const probabilities = Float32Array.from(mean);
  const classId = probabilities.indexOf(Math.max(...probabilities));
  return {
    samples,
    rows,
    probabilities,
    classId,
    confidence: probabilities[classId],
    uncertainty: Math.fround(uncertainty),
    modelUncertainty: Math.fround(clip(uncertainty - data)),
    standardError: Math.fround(standardError),
    errorProbability: Math.fround(errorAt(uncertainty, Math.fround(1 - probabilities[classId]), calibration)),
  };
}

/** The normalised entropy of one row of probabilities. */
export function entropy(row) {
  return -row.reduce((sum, p) => sum + p * Math.log(Math.max(p, LEAST)), 0) / Math.log(row.length);
}

/** The uncertainty and its standard error after some of the passes, at no more than `points` numbers of them. */
export function running(passes, classes, members, points = 40) {
  const samples = passes.length / (classes * members);
  const count = Math.min(points, samples);
  return Array.from({ length: count }, (_, index) => {
    const n = Math.round(((index + 1) * samples) / count);
    const { uncertainty, standardError } = summarise(passes.subarray(0, n * classes * members), classes, { members });
    return { n, uncertainty, standardError };
  });
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

const clip = (value) => Math.min(Math.max(value, 0), 1);
