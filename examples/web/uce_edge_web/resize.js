// Pillow's BILINEAR resize: a triangle filter that widens when shrinking, first along the rows, then along the columns,
// each pass rounded to 8 bits. Python and this page give a model the same pixels of a photo, but for one level where a
// Pillow that starts with the columns rounds otherwise.

const PRECISION = 22; // bits behind the point: 32, less 8 of the pixel and 2 to spare

/** For every output position: the first input position, and the weights from there on. */
function filter(from, to, whole) {
  const scale = from / to;
  const stretch = Math.max(scale, 1);
  return Array.from({ length: to }, (_, index) => {
    const centre = (index + 0.5) * scale;
    const start = Math.max(0, Math.trunc(centre - stretch + 0.5));
    const end = Math.min(from, Math.trunc(centre + stretch + 0.5));
    const weights = Array.from({ length: end - start }, (_, i) =>
      Math.max(0, 1 - Math.abs((i + start - centre + 0.5) / stretch)),
    );
    const sum = weights.reduce((total, weight) => total + weight, 0);
    const shares = weights.map((weight) => weight / sum);
    // No weight is negative, so that adding a half and cutting rounds.
    return { start, weights: whole ? Int32Array.from(shares, (w) => w * 2 ** PRECISION + 0.5) : Float64Array.from(shares) };
  });
}

/** Writes weighted sums of `input` along one axis; `step` is the distance of two neighbours on it. */
function gather(input, offset, step, { start, weights }, whole) {
  let sum = whole ? 2 ** (PRECISION - 1) : 0;
  let at = offset + start * step;
  for (let i = 0; i < weights.length; i++, at += step) sum += input[at] * weights[i];
  return whole ? Math.min(255, sum >> PRECISION) : sum;
}

/**
 * Resizes an image that is read a few rows at a time, so that a large photo needs no second copy of itself.
 *
 * `readRows(y, count)` gives [count, width, channels] in one flat array. A `whole` result is 8-bit; the other is
 * float32 and is not rounded between the passes.
 */
export function resizeRows(readRows, { width, height, channels }, to, { whole = true, rowsAtOnce = 64 } = {}) {
  const Values = whole ? Uint8Array : Float32Array;
  const across = filter(width, to.width, whole);
  const narrow = new Values(height * to.width * channels);
  for (let top = 0; top < height; top += rowsAtOnce) {
    const count = Math.min(rowsAtOnce, height - top);
    const rows = readRows(top, count);
    if (width === to.width) {
      narrow.set(rows.subarray(0, count * width * channels), top * width * channels);
      continue;
    }
    for (let y = 0; y < count; y++) {
      for (let x = 0; x < to.width; x++) {
        for (let c = 0; c < channels; c++) {
          const value = gather(rows, y * width * channels + c, channels, across[x], whole);
          narrow[((top + y) * to.width + x) * channels + c] = value;
        }
      }
    }
  }
  if (height === to.height) return narrow;
  const down = filter(height, to.height, whole);
  const stride = to.width * channels;
  const result = new Values(to.height * stride);
  for (let y = 0; y < to.height; y++) {
    for (let x = 0; x < stride; x++) result[y * stride + x] = gather(narrow, x, stride, down[y], whole);
  }
  return result;
}
