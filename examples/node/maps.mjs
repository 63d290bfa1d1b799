// Heatmaps: what the outputs `heatmap` and `heatmap_spread` hold, and how those of several calls are merged.

export const MAPS = ['heatmap', 'heatmap_spread'];

/** The maps of one call for one image: rows from the top; null for those that the file does not have. */
export function mapsOf(values) {
  const read = (tensor) => tensor && { height: tensor.dims[1], width: tensor.dims[2], values: Array.from(tensor.data) };
  return Object.fromEntries(MAPS.map((name) => [name, read(values[name]) ?? null]));
}

/** Sums of the maps of several calls, each of which is about the class that its own passes predict. */
export class PooledMaps {
  #calls = [];

  /** Adds a call of so many passes: its outputs `class_id` and the maps. */
  add(values, passes) {
    this.#calls.push({ ...mapsOf(values), class_id: values.class_id?.data[0], passes });
  }

  /** Mean and deviation of all passes; null without maps, and where a call is about another class. */
  of(class_id) {
    const [first] = this.#calls;
    if (!first?.heatmap || this.#calls.some((call) => call.class_id !== class_id)) return { heatmap: null, heatmap_spread: null };
    const mean = this.#mean((call, index) => call.heatmap.values[index]);
    const squares = first.heatmap_spread && this.#mean((call, index) => call.heatmap.values[index] ** 2 + call.heatmap_spread.values[index] ** 2);
    const spread = squares?.map((square, index) => Math.sqrt(Math.max(0, square - mean[index] ** 2)));
    const { height, width } = first.heatmap;
    return { heatmap: { height, width, values: mean }, heatmap_spread: spread ? { height, width, values: spread } : null };
  }

  #mean(value) {
    const passes = this.#calls.reduce((sum, call) => sum + call.passes, 0);
    const sum = (index) => this.#calls.reduce((total, call) => total + call.passes * value(call, index), 0);
    return this.#calls[0].heatmap.values.map((_, index) => sum(index) / passes);
  }
}
