// Resizes 8-bit images as Pillow does, to the byte (docs/contract.md). Node and the page have the same copy of this file.

export const MODES = ["stretch", "crop", "pad"];
export const FILTERS = ["bilinear", "bicubic", "lanczos"];

const MAX_SIDE = 65535; // of a resized image, before a cut
const BITS = 22; // behind the point of a weight: 32, less 8 of the pixel and 2 to spare

/**
 * What is wrong with the `resize` of a description; null for a good one, and where there is none.
 *
 * An unknown mode or filter must be refused: another one would give other pixels, and so other answers.
 */
export function wrongResize({ resize, height, width, channels }) {
  if ((resize ?? null) === null) return null;
  if (typeof resize !== "object" || Array.isArray(resize)) return "its key resize has the wrong type";
  const { mode = MODES[0], filter, size, fill } = resize;
  if (!MODES.includes(mode)) return `its resize mode is ${mode}`;
  if (!FILTERS.includes(filter ?? FILTERS[0])) return `its resize filter is ${filter}`;
  if (mode === "crop") {
    if (size === undefined) return "it lacks the key size";
    if (!(Number.isInteger(size) && size >= Math.max(height, width) && size <= MAX_SIDE)) return "its key size is out of range";
  } else if ((size ?? null) !== null) {
    return "its resize has a size that only crop takes";
  }
  const colour = [fill ?? 0].flat();
  const known = colour.every((level) => Number.isInteger(level) && level >= 0 && level <= 255);
  if (!known || ![1, channels].includes(colour.length)) return "its resize fill is no colour";
  return mode === "pad" || colour.join() === "0" ? null : "its resize has a fill that only pad takes";
}

const sinc = (x) => (x === 0 ? 1 : Math.sin(x * Math.PI) / (x * Math.PI));

/** By filter: how far it reaches, and its value at a distance below that. */
const SHAPES = {
  bilinear: [1, (x) => 1 - x],
  bicubic: [2, (x) => (x < 1 ? (1.5 * x - 2.5) * x * x + 1 : (((x - 5) * x + 8) * x - 4) * -0.5)],
  lanczos: [3, (x) => sinc(x) * sinc(x / 3)],
};

/**
 * Width and height of the resized image; which of its pixels are used, `first` and `count`; and their `place` in the
 * model's image.
 */
function axes(from, to, { mode, size }) {
  const whole = (side) => ({ from: from[side], to: to[side], first: 0, place: 0, count: to[side] });
  const cut = (side) => {
    const full = Math.floor((size * from[side]) / Math.min(from.width, from.height));
    return { from: from[side], to: full, first: Math.floor((full - to[side]) / 2), place: 0, count: to[side] };
  };
  const padded = (side, other) => {
    const full = Math.max(1, Math.floor((2 * from[side] * to[other] + from[other]) / (2 * from[other])));
    return { from: from[side], to: full, first: 0, place: Math.floor((to[side] - full) / 2), count: full };
  };
  if (mode === "crop") return [cut("width"), cut("height")];
  if (mode !== "pad") return [whole("width"), whole("height")];
  const wide = from.width * to.height >= from.height * to.width;
  return wide ? [whole("width"), padded("height", "width")] : [padded("width", "height"), whole("height")];
}

/** Why an image cannot be resized, as a sentence; null when it can. */
export function tooNarrow(from, to, resize) {
  const [across, down] = axes(from, to, resize ?? {});
  if (Math.max(across.to, down.to) <= MAX_SIDE) return null;
  return (
    `The image is ${from.width} x ${from.height} pixels, and would be ${across.to} x ${down.to} before the middle is cut ` +
    `out; at most ${MAX_SIDE} on a side are made. Cut out a less narrow part first.`
  );
}

/** For every used pixel of an axis: the first pixel that it is made of, and the weights from there on. */
function taps({ from, to, first, count }, filter, exact) {
  const [reach, value] = SHAPES[filter];
  const scale = from / to;
  const wide = Math.max(scale, 1);
  return Array.from({ length: count }, (_, index) => {
    if (from === to) return { start: first + index, weights: [exact ? 1 : 2 ** BITS] };
    const centre = (first + index + 0.5) * scale;
    const start = Math.max(0, Math.trunc(centre - reach * wide + 0.5));
    const end = Math.min(from, Math.trunc(centre + reach * wide + 0.5));
    const weights = Float64Array.from({ length: end - start }, (_, i) => {
      const distance = Math.abs((i + start - centre + 0.5) * (1 / wide));
      return distance < reach ? value(distance) : 0;
    });
    const sum = weights.reduce((total, weight) => total + weight, 0);
    const shares = weights.map((weight) => weight / sum);
    return { start, weights: exact ? shares : Int32Array.from(shares, (w) => w * 2 ** BITS + (w < 0 ? -0.5 : 0.5)) };
  });
}

/**
 * Resizes an image that is read a few rows at a time. Memory grows with the result and with the sides of the image, not
 * with its area.
 *
 * `readRows(y, count)` gives [count, width, channels] in one flat array, or more. The result is a Uint8Array, or for an
 * `exact` one a Float32Array, which is not rounded to 8 bits. `resize` is that of the model's description; `tooNarrow` must be null.
 */
export function resizeRows(readRows, from, to, { resize, exact = false, rowsAtOnce = 64 } = {}) {
  const { mode = MODES[0], filter, size, fill } = resize ?? {};
  const [across, down] = axes(from, to, { mode, size });
  const [columns, rows] = [across, down].map((axis) => taps(axis, filter ?? FILTERS[0], exact));
  const { width, channels } = from;
  const length = across.count * channels;
  const Values = exact ? Float32Array : Uint8Array;
  const zero = exact ? 0 : 2 ** (BITS - 1);
  const pixel = exact ? (sum) => sum : (sum) => Math.max(0, Math.min(255, sum >> BITS));
  const sums = new (exact ? Float64Array : Int32Array)(down.count * length).fill(zero);
  const line = new Values(length);
  const ends = rows.map(({ start, weights }) => start + weights.length);
  let top = 0; // the first row of the result that this row of the image is a part of
  for (let y = rows[0].start; y < ends.at(-1); ) {
    const count = Math.min(rowsAtOnce, ends.at(-1) - y);
    const read = readRows(y, count);
    for (let offset = 0; offset < count * width * channels; offset += width * channels, y++) {
      columns.forEach(({ start, weights }, x) => {
        for (let c = 0; c < channels; c++) {
          let sum = zero;
          let at = offset + start * channels + c;
          for (let i = 0; i < weights.length; i++, at += channels) sum += read[at] * weights[i];
          line[x * channels + c] = pixel(sum);
        }
      });
      while (ends[top] <= y) top++;
      for (let i = top; i < down.count && rows[i].start <= y; i++) {
        const weight = rows[i].weights[y - rows[i].start];
        for (let x = 0; x < length; x++) sums[i * length + x] += line[x] * weight;
      }
    }
  }
  const colour = [fill ?? 0].flat();
  const result = new Values(to.height * to.width * channels);
  if (mode === "pad") result.forEach((_, i) => (result[i] = colour[i % colour.length]));
  for (let y = 0; y < down.count; y++) {
    const place = ((down.place + y) * to.width + across.place) * channels;
    for (let x = 0; x < length; x++) result[place + x] = pixel(sums[y * length + x]);
  }
  return result;
}

/** An 8-bit pixel as gray: Pillow's L, ITU-R 601. */
export const gray = (red, green, blue) => (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16;
