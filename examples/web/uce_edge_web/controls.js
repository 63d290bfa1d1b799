// The settings: a number and a slider for the same value, checked before anything runs.

import { checkThreshold, MAX_SAMPLES, ownThreshold, passSeeds, takesSeeds } from "./contract.js";
import { aboutGate, aboutSamples, aboutThreshold, decimal } from "./words.js";

const DEFAULT_THRESHOLD = 0.3;
const element = (id) => document.getElementById(id);

export class Controls {
  constructor({ onPasses, onThreshold, onThresholdSettled, onDevice }) {
    this.metadata = null;
    this.pair("samples", () => onPasses());
    this.pair("threshold", () => onThreshold(), () => onThresholdSettled());
    element("gate").addEventListener("change", () => {
      onThreshold();
      onThresholdSettled();
    });
    element("seed").addEventListener("change", () => onPasses());
    element("device").addEventListener("change", () => onDevice());
    element("own-threshold").addEventListener("click", () => {
      this.write("threshold", ownThreshold(this.metadata, this.cutoff).threshold);
      onThreshold();
      onThresholdSettled();
      element("threshold").focus(); // the button hides itself
    });
  }

  /** A number field and its slider. Passes run when a value is settled; a threshold is applied while it moves. */
  pair(id, onChange, onSettled) {
    const [field, slider] = [element(id), element(`${id}-slider`)];
    field.addEventListener("change", () => {
      slider.value = field.value;
      onChange();
      onSettled?.();
    });
    slider.addEventListener("input", () => {
      field.value = slider.value;
      if (onSettled) onChange();
      this.describe();
    });
    slider.addEventListener("change", () => (onSettled ?? onChange)());
  }

  /** Takes over what the model says of itself. */
  use(metadata) {
    this.metadata = metadata;
    element("gate-setting").hidden = !metadata.rule;
    element("gate-note").textContent = metadata.rule ? aboutGate(metadata.rule) : "";
    // A rule without a threshold turns nothing away for its uncertainty.
    this.write("threshold", ownThreshold(metadata, this.cutoff)?.threshold ?? (metadata.rule ? 1 : DEFAULT_THRESHOLD));
    element("samples-slider").max = Math.min(MAX_SAMPLES, Math.max(256, 2 * metadata.samples));
    this.write("samples", metadata.inference === "deterministic" ? 1 : metadata.samples);
    this.describe();
  }

  write(id, value) {
    element(id).value = value;
    element(`${id}-slider`).value = value;
  }

  enable(on) {
    const fixed = this.metadata && !takesSeeds(this.metadata) ? ["samples", "samples-slider", "seed"] : [];
    for (const control of document.querySelectorAll(".setting input, .setting select, #file, #camera, #noise")) {
      control.disabled = !on || fixed.includes(control.id);
    }
  }

  get device() {
    return element("device").value;
  }

  get samples() {
    return element("samples").valueAsNumber;
  }

  get seed() {
    return element("seed").valueAsNumber;
  }

  /** The seeds of all passes; marks and refuses what is out of range. */
  seeds() {
    return this.checked(["samples", "seed"], () => passSeeds(this.samples, this.seed));
  }

  /** What the novelty must be above; null when foreign images are not rejected. */
  get cutoff() {
    const { rule } = this.metadata;
    return rule && element("gate").checked ? rule.foreign.cutoff : null;
  }

  /** What an answer is compared with; marks and refuses a threshold out of range. */
  limits() {
    const threshold = this.checked(["threshold"], () => checkThreshold(element("threshold").valueAsNumber));
    return { threshold, cutoff: this.cutoff };
  }

  /** The same, or null while the threshold is out of range. */
  get validLimits() {
    const threshold = element("threshold").valueAsNumber;
    return threshold >= 0 && threshold <= 1 ? { threshold, cutoff: this.cutoff } : null;
  }

  checked(ids, read) {
    try {
      const value = read();
      for (const id of ids) element(id).removeAttribute("aria-invalid");
      return value;
    } catch (error) {
      for (const id of ids) element(id).setAttribute("aria-invalid", String(!(element(id).value && element(id).validity.valid)));
      throw error;
    }
  }

  /** Says below each setting what it means for this model. */
  describe() {
    const { metadata, samples, seed } = this;
    const limits = this.validLimits;
    element("samples-note").textContent = samples >= 1 ? aboutSamples(metadata, samples) : "";
    element("threshold-note").textContent = limits ? aboutThreshold(metadata, limits, samples, seed) : "";
    element("threshold-slider").setAttribute("aria-valuetext", limits ? decimal(limits.threshold) : "");
    const own = ownThreshold(metadata, this.cutoff);
    element("own-threshold").hidden = own === null || limits?.threshold === own.threshold;
  }
}
