// From what a user gives, a file, a camera frame or raw bytes, to the pixels a model takes.

import { expected, Refusal } from "./contract.js";
import { gray, resizeRows, tooNarrow } from "./resize.js";

const MAX_PIXELS = 100_000_000;
const TILE = 4096; // canvases of phones have limits that photos reach

/** Decodes an image file, upright by its EXIF orientation. */
export async function decode(file, spec) {
  if (file.size === 0) throw new Refusal(`${file.name} is empty (0 bytes). Copy or download it again.`);
  if (spec.range && (await isDeep(file))) {
    const { low, high } = spec.range;
    throw new Refusal(
      `${file.name} has 16 bits a value, of which a browser keeps 8, and this model takes ${low} to ${high} for black ` +
        "and white. Ask uce-edge predict, or save it with 8 bits.",
    );
  }
  let bitmap;
  try {
    // As Pillow: neither colour profiles nor anything else changes the values in the file.
    bitmap = await createImageBitmap(file, { imageOrientation: "from-image", colorSpaceConversion: "none" });
  } catch {
    throw new Refusal(
      `${file.name} is not an image that this browser can read, or it is damaged. ` +
        "Check that it opens in an image viewer, and save it as PNG or JPEG.",
    );
  }
  const { width, height } = bitmap;
  if (width * height > MAX_PIXELS) {
    bitmap.close();
    const size = Math.round((width * height) / 1e6);
    throw new Refusal(`${file.name} has ${size} megapixels, and at most ${MAX_PIXELS / 1e6} are read. Make it smaller first.`);
  }
  return bitmap;
}

/** Whether a file is a PNG of 16 bits a value: its header says so in byte 24. */
async function isDeep(file) {
  const head = new Uint8Array(await file.slice(0, 25).arrayBuffer());
  return String.fromCharCode(...head.slice(1, 4)) === "PNG" && head[24] === 16;
}

/** Brings a bitmap into the model's shape, [height, width, channels]: transparent parts on white, then resized as it asks. */
export function fit(bitmap, spec) {
  const rowsAtOnce = Math.max(1, Math.floor((1 << 20) / bitmap.width));
  const read = rowReader(bitmap, spec.channels, rowsAtOnce);
  const from = { width: bitmap.width, height: bitmap.height, channels: spec.channels };
  const narrow = tooNarrow(from, spec, spec.resize);
  if (narrow) throw new Refusal(narrow);
  return resizeRows(read, from, spec, { resize: spec.resize, exact: spec.dtype === "float32", rowsAtOnce });
}

/** Pixels as raw bytes, exactly as the model takes them. */
export function raw(buffer, spec, name) {
  const whole = (spec.dtype ?? "uint8") === "uint8";
  const count = spec.height * spec.width * spec.channels;
  const bytes = whole ? count : 4 * count;
  if (buffer.byteLength !== bytes) {
    const rule = `${bytes} bytes, ${spec.height} x ${spec.width} x ${spec.channels} of ${whole ? "uint8" : "float32"}`;
    throw expected(name, rule, `${buffer.byteLength} bytes`, "An image file of any size is resized for you.");
  }
  return whole ? new Uint8Array(buffer) : new Float32Array(buffer);
}

/** Pixels of pure chance: a question without an answer. */
export function noise(spec) {
  const values = crypto.getRandomValues(new Uint8Array(spec.height * spec.width * spec.channels));
  return (spec.dtype ?? "uint8") === "uint8" ? values : Float32Array.from(values);
}

/** Shows pixels as the model sees them. */
export function paint(canvas, pixels, { height, width, channels }) {
  const shown = new ImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    for (let c = 0; c < 3; c++) shown.data[4 * i + c] = pixels[i * channels + (channels === 1 ? 0 : c)];
    shown.data[4 * i + 3] = 255;
  }
  canvas.width = width;
  canvas.height = height;
  canvas.getContext("2d").putImageData(shown, 0, 0);
}

function rowReader(bitmap, channels, rowsAtOnce) {
  const canvas = document.createElement("canvas");
  canvas.width = Math.min(bitmap.width, TILE);
  canvas.height = Math.min(rowsAtOnce, bitmap.height);
  const context = canvas.getContext("2d", { alpha: false, willReadFrequently: true });
  context.imageSmoothingEnabled = false;
  context.fillStyle = "white"; // the paper that a browser and a print put behind transparent pixels
  return (top, count) => {
    const rows = new Uint8Array(count * bitmap.width * channels);
    for (let left = 0; left < bitmap.width; left += canvas.width) {
      const wide = Math.min(canvas.width, bitmap.width - left);
      context.fillRect(0, 0, wide, count);
      context.drawImage(bitmap, left, top, wide, count, 0, 0, wide, count);
      const { data } = context.getImageData(0, 0, wide, count);
      for (let y = 0; y < count; y++) {
        copyRow(data, 4 * y * wide, wide, rows, (y * bitmap.width + left) * channels, channels);
      }
    }
    return rows;
  };
}

function copyRow(rgba, from, count, rows, to, channels) {
  for (let x = 0; x < count; x++, from += 4) {
    const red = rgba[from], green = rgba[from + 1], blue = rgba[from + 2];
    if (channels === 1) {
      rows[to++] = gray(red, green, blue);
    } else {
      rows[to++] = red;
      rows[to++] = green;
      rows[to++] = blue;
    }
  }
}
