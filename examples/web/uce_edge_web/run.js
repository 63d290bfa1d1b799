// Draws the passes of one image, a few at a time, so that they can be watched.

import { passesPerCall } from "./contract.js";
import { PooledMaps } from "./heatmap.js";
import { inSet, labelSet } from "./sets.js";
import { summarise } from "./statistics.js";

/**
 * Gives the answer after every call; the last one is `complete`.
 *
 * The engine may be asked by one run at a time: whoever starts another stops reading this one.
 */
export async function* draw(engine, pixels, seeds, seed) {
  const { metadata } = engine;
  const deterministic = metadata.inference === "deterministic";
  const { members } = metadata;
  const classes = metadata.classes.length;
  const each = members * classes; // numbers that one seed gives
  const samples = deterministic ? 1 : seeds.length;
  const all = new Float32Array(samples * each);
  const steps = [];
  const pooled = new PooledMaps();
  const size = passesPerCall(metadata, samples);
  for (let done = 0; done < samples; ) {
    const { values, milliseconds, numbers, maps } = await engine.passes(pixels, seeds.subarray(done, Math.min(done + size, samples)));
    all.set(values, done * each);
    const fresh = values.length / classes;
    done += fresh / members;
    steps.push({ n: done, ms: (steps.at(-1)?.ms ?? 0) + milliseconds });
    const passes = all.subarray(0, done * each);
    // Every call gives the same novelty.
    const { novelty = null, novelty_score: noveltyScore = null } = numbers;
    const merged = summarise(passes, classes, { calibration: metadata.calibration ?? {}, deterministic, members });
    const inside = metadata.sets ? inSet(metadata.sets, merged.probabilities) : null;
    const labels = labelSet(inside, merged.probabilities, metadata.classes);
    pooled.add(maps, values, classes);
    const summary = { ...merged, novelty, noveltyScore, labels, maps: pooled.of(merged.classId) };
    const complete = done === samples;
    yield { metadata, seeds, seed, samples, passes, fresh, steps, summary, complete, device: engine.name };
  }
}
