// Where the model looked: the maps of all calls together, and the drawing over what it saw.

/** Viridis: brightness rises with the value, so that it also reads in gray and for colour-blind people. */
const COLOURS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const OPAQUE = 0.75;

/** Sums of the maps of several calls, each of which is about the class that its own passes predict. */
export class PooledMaps {
  constructor() {
    this.passes = 0;
    this.classes = new Set();
  }

  /** Adds a call: its maps, and the probabilities of its passes. */
  add({ heatmap, heatmap_spread: spread }, probabilities, classes) {
    if (!heatmap) return;
    const n = probabilities.length / classes;
    const total = new Float64Array(classes);
    probabilities.forEach((value, index) => (total[index % classes] += value));
    this.classes.add(total.indexOf(Math.max(...total)));
    this.size ??= { height: heatmap.height, width: heatmap.width };
    this.sums ??= new Float64Array(heatmap.values.length);
    this.squares ??= spread ? new Float64Array(heatmap.values.length) : null;
    heatmap.values.forEach((value, index) => {
      this.sums[index] += n * value;
      if (spread) this.squares[index] += n * (value ** 2 + spread.values[index] ** 2);
    });
    this.passes += n;
  }

  /** Mean and deviation of all passes; null without maps, and where calls are about other classes. */
  of(classId) {
    if (!this.passes || this.classes.size > 1 || !this.classes.has(classId)) return null;
    const heatmap = this.sums.map((sum) => sum / this.passes);
    const deviation = (sum, index) => Math.sqrt(Math.max(0, sum / this.passes - heatmap[index] ** 2));
    return { ...this.size, heatmap, spread: this.squares?.map(deviation) ?? null };
  }
}

/** A map from 0 to 1; what speaks against the class is 0. */
const scaled = (values, largest) => [...values].map((value) => (largest > 0 ? Math.min(1, Math.max(0, value / largest)) : 0));

/** Draws a map over a canvas with the pixels that the model saw, in gray. */
export function drawMap(canvas, seen, values, largest, { height, width }) {
  const scale = Math.max(1, Math.ceil(128 / Math.max(seen.width, seen.height)));
  canvas.width = scale * seen.width;
  canvas.height = scale * seen.height;
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.filter = "grayscale(1)";
  context.drawImage(seen, 0, 0, canvas.width, canvas.height);
  context.filter = "none";
  const layer = context.createImageData(canvas.width, canvas.height);
  const unit = scaled(values, largest);
  for (let y = 0; y < canvas.height; y++) {
    for (let x = 0; x < canvas.width; x++) {
      const value = between(unit, height, width, ((y + 0.5) * height) / canvas.height - 0.5, ((x + 0.5) * width) / canvas.width - 0.5);
      const place = value * (COLOURS.length - 1);
      const first = Math.min(COLOURS.length - 2, Math.floor(place));
      const colour = COLOURS[first].map((low, c) => low + (place - first) * (COLOURS[first + 1][c] - low));
      layer.data.set([...colour, 255 * OPAQUE * value], 4 * (y * canvas.width + x));
    }
  }
  const over = document.createElement("canvas");
  over.width = canvas.width;
  over.height = canvas.height;
  over.getContext("2d").putImageData(layer, 0, 0);
  context.drawImage(over, 0, 0);
}

/** The bilinear value between the centres of places. */
function between(values, height, width, y, x) {
  const clamp = (value, most) => Math.min(most, Math.max(0, value));
  const [top, left] = [Math.floor(y), Math.floor(x)];
  const at = (row, column) => values[clamp(row, height - 1) * width + clamp(column, width - 1)];
  const [down, right] = [y - top, x - left];
  const upper = at(top, left) * (1 - right) + at(top, left + 1) * right;
  const lower = at(top + 1, left) * (1 - right) + at(top + 1, left + 1) * right;
  return upper * (1 - down) + lower * down;
}
