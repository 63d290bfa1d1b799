// The settings: a number and a slider for the same value, checked before anything runs.

import { checkThreshold, limitOf, MAX_SAMPLES, passSeeds, ruleOf, takesSeeds } from "./contract.js";
import { aboutRule, aboutSamples, aboutThreshold, decimal } from "./words.js";

const DEFAULT_THRESHOLD = 0.3;
const element = (id) => document.getElementById(id);

export class Controls {
  constructor({ onPasses, onThreshold, onThresholdSettled, onDevice }) {
    this.metadata = null;
    this.pair("samples", () => onPasses());
    this.pair("threshold", () => {
      element("own-rule").checked = false;
      onThreshold();
    }, () => onThresholdSettled());
    element("own-rule").addEventListener("change", () => {
      onThreshold();
      onThresholdSettled();
    });
    element("seed").addEventListener("change", () => onPasses());
    element("device").addEventListener("change", () => onDevice());
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
    const { rule } = metadata;
    element("own-rule-setting").hidden = !rule;
    element("own-rule").checked = Boolean(rule);
    this.write("threshold", (rule?.score === "uncertainty" && rule.limits?.length === 1 && limitOf(rule, 0)) || DEFAULT_THRESHOLD);
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

  /** The rule to apply: that of the model, or the threshold, which is marked and refused out of range. */
  rule() {
    if (element("own-rule").checked) return this.metadata.rule;
    return ruleOf(this.checked(["threshold"], () => checkThreshold(element("threshold").valueAsNumber)));
  }

  /** The same, or null while the threshold is out of range. */
  get validRule() {
    const threshold = element("threshold").valueAsNumber;
    return element("own-rule").checked || (threshold >= 0 && threshold <= 1) ? this.rule() : null;
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
    const own = element("own-rule").checked;
    const threshold = element("threshold").valueAsNumber;
    const valid = threshold >= 0 && threshold <= 1;
    element("samples-note").textContent = samples >= 1 ? aboutSamples(metadata, samples) : "";
    element("own-rule-note").textContent = metadata.rule ? aboutRule(metadata.rule, samples, seed) : "";
    element("threshold-note").textContent = valid && !own ? aboutThreshold(metadata, threshold) : "";
    element("threshold-slider").setAttribute("aria-valuetext", valid ? decimal(threshold) : "");
  }
}
