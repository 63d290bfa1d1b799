// Gray values of more than 8 bits: which of them is black, and which white (docs/contract.md, "More than 8 bits").

/** What 16 bits hold: counts where a file stores no range. */
export const FULL = { low: 0, high: 65535 };

/** A value from 0 to 255, not rounded: what a float32 model takes. */
export function shown(value, { low, high }) {
  return Math.min(255, Math.max(0, ((value - low) * 255) / (high - low)));
}

/**
 * 16-bit gray values as a uint8 model takes them; resize them afterwards.
 *
 * @param {Iterable<number>} gray a Uint16Array, as a camera delivers it
 * @param {object} image what the model's description says under `image`
 */
export function to8Bits(gray, image) {
  const range = image.range ?? FULL;
  return Uint8Array.from(gray, (value) => Math.floor(shown(value, range) + 0.5));
}
