// From an 8-bit image of any size to the bytes that a model takes.
import { refuse } from './contract.mjs';
import { gray, resizeRows, tooNarrow } from './resize.mjs';

/**
 * The bytes that `Model.predict` takes, resized as in Python.
 *
 * @param {object} frame `data` (bytes; rows from the top, channels last, gray or RGB), `width`, `height`, `channels`, and
 *   `stride`, the bytes from one row to the next; without one, rows have no gap
 * @param {object} image what the model's description says under `image`
 */
export function prepare({ data, width, height, channels, stride = width * channels }, image) {
  const between = (name, value, low, rule = `at least ${low}`) => {
    if (!(Number.isInteger(value) && value >= low)) refuse(`Expected \`${name}\` to be ${rule}, but got ${value}.`, 2);
  };
  between('width', width, 1);
  between('height', height, 1);
  const colours = [1, 3].includes(image.channels) ? [1, 3] : [image.channels];
  const rule = colours.length === 2 ? '1 (gray) or 3 (RGB)' : `${image.channels}`;
  if (!colours.includes(channels)) refuse(`Expected \`channels\` to be ${rule}, but got ${channels}.`, 2);
  const row = width * channels;
  between('stride', stride, row, `at least the ${row} bytes of a row`);
  const size = stride * (height - 1) + row;
  if (!(data instanceof Uint8Array || data instanceof Uint8ClampedArray) || data.length < size) {
    refuse(`Expected \`data\` to be a Uint8Array of at least ${size} bytes (${height} x ${width} x ${channels}), but got ${data?.length ?? data}.`, 2);
  }
  const read = (top, count) => {
    const rows = new Uint8Array(count * width * image.channels);
    for (let y = 0; y < count; y++) recolour(data.subarray((top + y) * stride, (top + y) * stride + row), rows.subarray(y * width * image.channels), channels, image.channels);
    return rows;
  };
  const from = { width, height, channels: image.channels };
  const narrow = tooNarrow(from, image, image.resize);
  if (narrow) refuse(narrow, 2);
  const pixels = resizeRows(read, from, image, { resize: image.resize, exact: image.dtype === 'float32', rowsAtOnce: 1 });
  return new Uint8Array(pixels.buffer);
}

/** Copies a row as gray or RGB. */
function recolour(row, to, has, wanted) {
  if (has === wanted) to.set(row);
  else if (wanted === 3) row.forEach((value, x) => to.fill(value, 3 * x, 3 * x + 3));
  else for (let x = 0; 3 * x < row.length; x++) to[x] = gray(row[3 * x], row[3 * x + 1], row[3 * x + 2]);
}
