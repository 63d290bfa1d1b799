// Synthetic images that travel with a file, with its answers to them (docs/contract.md).
import { refuse } from './contract.mjs';

const COMPARED = ['probabilities', 'uncertainty', 'model_uncertainty', 'standard_error', 'error_probability', 'novelty_score'];

/** How far an answer may be from the published one: what rounding explains, on a processor. */
export function allowedDifference(about) {
  return (about.precision ?? 'fp32') === 'fp32' ? 1e-4 : 1e-2;
}

/** The pixels of a probe image, as bytes that `Model.predict` takes. */
export function probeImage(pattern, { height, width, channels, dtype }) {
  const longest = Math.max(height + width + channels - 3, 1);
  const values = {
    weyl: (i) => Math.imul(i, 2654435761) >>> 24,
    ramp: (i) => {
      const [row, place] = [Math.floor(i / (width * channels)), i % (width * channels)];
      return Math.floor((255 * (row + Math.floor(place / channels) + (place % channels))) / longest);
    },
  };
  if (!Object.hasOwn(values, pattern)) refuse(`A probe image has the pattern ${pattern}, which is not known here.`);
  const pixels = Uint8Array.from({ length: height * width * channels }, (_, i) => values[pattern](i));
  return dtype === 'float32' ? new Uint8Array(Float32Array.from(pixels).buffer) : pixels;
}

/** The largest difference of an answer from that of a probe; of the novelty score, as a share of it. */
export function differenceFrom({ outputs }, answer) {
  const differences = COMPARED.filter((name) => name in outputs && answer[name] !== null).flatMap((name) => {
    const got = [answer[name]].flat();
    if (got.length !== outputs[name].length) return [Infinity];
    return outputs[name].map((wanted, i) => Math.abs(got[i] - wanted) / (name === 'novelty_score' ? Math.max(1, Math.abs(wanted)) : 1));
  });
  return Math.max(0, ...differences);
}
