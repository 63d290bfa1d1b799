// The betting step of the monitor: an alarm when a stream of answers no longer looks like those of the calibration.
// docs/science.md of uce-edge has the proof, and tests/golden/monitor.json what every port must give. Runs in a browser, too.

const POWERS = [0.1, 0.3, 0.5, 0.7, 0.9];
const SLOPES = [1, 1.8];
const BETS = 2 * (POWERS.length + SLOPES.length);
const NOTHING = -1e9; // the logarithm of nothing
const SCORES = ['uncertainty', 'model_uncertainty', 'novelty_score'];

const mixed = (word) => {
  word = Math.imul(word ^ (word >>> 16), 0x7feb352d);
  word = Math.imul(word ^ (word >>> 15), 0x846ca68b);
  return (word ^ (word >>> 16)) >>> 0;
};

/** A random number strictly between 0 and 1 for a stream, a step and a score. */
export function uniform(seed, step, number) {
  let word = mixed((seed ^ 0x9e3779b9) >>> 0);
  word = mixed((word + Math.imul(step >>> 0, 0x9e3779b1)) >>> 0);
  word = mixed((word ^ Math.imul(number + 1, 0x85ebca6b)) >>> 0);
  return (word + 0.5) / 2 ** 32;
}

/** The share of the money that bets only from a later step on. */
const reserve = (step) => 1 / Math.log2(step + 2);

const logAdd = (a, b) => Math.max(a, b) + Math.log1p(Math.exp(-Math.abs(a - b)));

/** The logarithm of what each bet multiplies its money with: first those on rising scores, then those on falling ones. */
function logGains(p, rest) {
  return [p, rest].flatMap((side) => [
    ...POWERS.map((power) => Math.log(power) + (power - 1) * Math.log(side)),
    ...SLOPES.map((slope) => Math.log1p(slope * (0.5 - side))),
  ]);
}

export class Monitor {
  /**
   * @param {object} reference What the metadata of a model file has under `monitor`.
   * @param {number} alpha Bounds the probability of ever raising a false alarm.
   * @param {number} seed Of the random numbers that place a score among its equals.
   */
  constructor(reference, alpha = 0.01, seed = 0) {
    const names = SCORES.filter((name) => name in reference.statistics);
    if (names.length === 0 || !(alpha > 0 && alpha < 1)) throw new Error('A monitor needs scores, and 0 < alpha < 1.');
    this.seed = seed;
    this.limit = -Math.log(alpha);
    this.step = 0;
    this.logEvidence = 0;
    this.alarm = false;
    this.tracks = names.map((name) => ({
      name,
      number: SCORES.indexOf(name),
      edges: reference.statistics[name].edges.map(Math.fround),
      counts: [...reference.statistics[name].counts],
      wealth: new Array(BETS).fill(NOTHING),
    }));
  }

  /** Bet on one answer, an object with the scores under their names; returns whether the alarm is on. */
  add(answer) {
    for (const { name } of this.tracks) {
      if (!Number.isFinite(answer[name])) throw new Error(`Expected ${name} to be a finite number, but got ${answer[name]}.`);
    }
    this.step += 1;
    const fresh = Math.log(reserve(this.step - 1) - reserve(this.step));
    const totals = this.tracks.map((track) => {
      const gains = logGains(...this.#place(track, Math.fround(answer[track.name])));
      track.wealth = track.wealth.map((had, bet) => logAdd(had, fresh) + gains[bet]);
      const top = Math.max(...track.wealth);
      const mean = top + Math.log(track.wealth.reduce((sum, value) => sum + Math.exp(value - top), 0) / BETS);
      return logAdd(mean, Math.log(reserve(this.step)));
    });
    this.logEvidence = Math.max(...totals) - Math.log(totals.length);
    this.alarm ||= this.logEvidence >= this.limit;
    return this.alarm;
  }

  /** The conformal p-value of a score and one minus it; the score then joins the reference. */
  #place({ edges, counts, number }, value) {
    const bin = edges.filter((edge) => edge < value).length;
    const sum = (some) => some.reduce((total, count) => total + count, 0);
    const [below, equal, above] = [sum(counts.slice(0, bin)), counts[bin], sum(counts.slice(bin + 1))];
    const all = below + equal + above + 1;
    const u = uniform(this.seed, this.step, number);
    counts[bin] += 1;
    return [(above + u * (equal + 1)) / all, (below + (1 - u) * (equal + 1)) / all];
  }
}
