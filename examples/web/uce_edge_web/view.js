// Shows an answer, while its passes come and when it is complete.

import { drawGauge, drawLatency, drawPasses, drawRunning, listBars, ranked } from "./charts.js";
import { decide, limitOf, REASONS } from "./contract.js";
import { drawMap } from "./heatmap.js";
import { entropy } from "./statistics.js";
import { aboutSets, count, decimal, distance, explanation, isOutOfDistribution, milliseconds, odds, percent, setInWords, standardError, verdict } from "./words.js";

const MOST_BARS = 10;
const element = (id) => document.getElementById(id);

/** A number as text, with its full precision beside it. */
function put(id, value, shown) {
  element(id).textContent = shown;
  element(id).dataset.value = value;
}

/** Everything about an answer: `answer` as `draw` gives it, and the rule to apply. */
export function showAnswer(answer, rule, earlier) {
  const { summary, metadata, samples, complete } = answer;
  const deterministic = metadata.inference === "deterministic";
  const label = metadata.classes[summary.classId];
  const reason = REASONS[decide(rule, summary)];
  const threshold = drawnLimit(rule, summary);

  element("placeholder").hidden = true;
  for (const id of ["answered", "charts", "record"]) element(id).hidden = false;
  const box = element("answer");
  box.dataset.state = reason === null ? "accept" : "reject";
  box.dataset.reason = reason ?? "";
  box.dataset.label = label;
  box.dataset.classId = summary.classId;
  box.dataset.source = answer.source;
  box.dataset.samples = samples;
  box.dataset.seed = answer.seed;
  box.dataset.complete = complete;
  box.ariaBusy = String(!complete);

  element("headline").textContent = verdict(reason, label);
  const { n, ms } = answer.steps.at(-1);
  element("progress").textContent = !complete
    ? `${summary.samples} of ${count(samples, "pass")}`
    : deterministic
      ? `${count(samples, "pass")}, ${milliseconds(ms)}`
      : `${count(samples, "pass")}, seed ${answer.seed}`;
  element("reason").textContent = explanation(summary, rule, label, deterministic);
  put("confidence", summary.confidence, `${percent(summary.confidence)} for ${label}`);
  put("uncertainty", summary.uncertainty, decimal(summary.uncertainty));
  put("standard-error", summary.standardError, standardError(summary, deterministic));
  put("model-uncertainty", summary.modelUncertainty, deterministic && metadata.members === 1 ? "none: one pass" : decimal(summary.modelUncertainty));
  put("error-probability", summary.errorProbability, percent(summary.errorProbability));
  element("error-supposed").hidden = !isOutOfDistribution(reason); // its map was fitted on in-distribution images
  element("set-view").hidden = summary.labels === null;
  if (summary.labels !== null) {
    element("set").textContent = setInWords(summary.labels);
    element("set-promise").textContent = aboutSets(metadata.sets, summary.samples, answer.seed);
  }
  for (const id of ["novelty-view", "novelty-score-view"]) element(id).hidden = summary.novelty === null;
  if (summary.novelty !== null) {
    const unknown = Number.isNaN(summary.novelty);
    put("novelty", summary.novelty, unknown ? "not a number" : percent(summary.novelty));
    element("novelty-share").hidden = unknown;
    put("novelty-score", summary.noveltyScore, distance(summary.noveltyScore));
  }
  drawGauge(element("gauge"), summary, threshold, deterministic, reason === null);
  showMaps(summary.maps);

  listBars(element("bars"), summary.probabilities, metadata.classes, MOST_BARS);
  const more = metadata.classes.length - MOST_BARS;
  element("bars-more").textContent = more > 0 ? `The other ${count(more, "class")} are less probable.` : "";
  drawPasses(element("passes"), answer.passes, summary, metadata.classes, answer.fresh);
  drawRunning(element("running"), answer.passes, metadata, threshold, samples);
  drawLatency(element("latency"), answer.steps, earlier, samples);
  element("latency-note").textContent =
    `${count(n, "pass")} in ${milliseconds(ms)}, ${milliseconds(ms / n)} a pass, on ${answer.device}.` +
    (earlier.length ? " Rings are earlier runs." : "");
}

/** Where the model looked, and where its passes disagree, over what it saw. */
function showMaps(maps) {
  for (const [id, values] of [["heatmap", maps?.heatmap], ["heatmap-spread", maps?.spread]]) {
    element(`${id}-view`).hidden = !values;
    if (values) drawMap(element(id), element("seen"), values, Math.max(...values), maps);
  }
}

/** The limit on the uncertainty, for the drawings; null for a rule without one. */
const drawnLimit = (rule, { classId }) => (rule.score === "uncertainty" ? limitOf(rule, classId) : null);

/** Back to the empty page. */
export function hideAnswer() {
  element("placeholder").hidden = false;
  for (const id of ["answered", "charts", "record", "heatmap-view", "heatmap-spread-view"]) element(id).hidden = true;
  element("answer").dataset.state = "empty";
}

/** The complete answer as one sentence for those who listen. */
export function speak({ summary, metadata, samples }, rule) {
  const label = metadata.classes[summary.classId];
  const reason = REASONS[decide(rule, summary)];
  const rejected = isOutOfDistribution(reason) ? verdict(reason, label) : "Rejected";
  const outcome = reason === null ? verdict(reason, label) : `${rejected}. Best guess ${label}`;
  const sure = `confidence ${percent(summary.confidence)}, uncertainty ${decimal(summary.uncertainty)}`;
  const limit = drawnLimit(rule, summary);
  const compared = limit === null ? "" : ` threshold ${decimal(limit)},`;
  const wrong = isOutOfDistribution(reason) ? "" : ` expected to be wrong ${odds(summary.errorProbability)},`;
  element("spoken").textContent = `${outcome}, ${sure},${compared}${wrong} ${count(samples, "pass")}.`;
}

/** The passes as a table; made only when it is looked at. */
export function fillTable({ passes, seeds, summary, metadata }) {
  const size = metadata.classes.length;
  const best = ranked(summary.probabilities, 5);
  const table = element("table");
  table.replaceChildren();
  const head = table.createTHead().insertRow();
  for (const name of ["pass", "entropy", ...best.map((index) => metadata.classes[index])]) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = name;
    head.append(cell);
  }
  const body = table.createTBody();
  for (let i = 0; i < summary.rows; i++) {
    const row = passes.subarray(i * size, (i + 1) * size);
    const line = body.insertRow();
    const values = [String(seeds[Math.floor((i * summary.samples) / summary.rows)]), decimal(entropy(row)), ...best.map((index) => percent(row[index]))];
    for (const value of values) line.insertCell().textContent = value;
  }
}

/** The complete answer as a document; the names are those of the contract and of `uce-edge predict --json`. */
export function asDocument({ source, passes, seeds, seed, summary, metadata, steps, device }, rule) {
  const size = metadata.classes.length;
  const reason = REASONS[decide(rule, summary)];
  return {
    path: source,
    label: metadata.classes[summary.classId],
    class_id: summary.classId,
    confidence: summary.confidence,
    uncertainty: summary.uncertainty,
    model_uncertainty: summary.modelUncertainty,
    standard_error: summary.standardError,
    error_probability: summary.errorProbability,
    novelty: summary.novelty,
    novelty_score: summary.noveltyScore,
    threshold: drawnLimit(rule, summary),
    cutoff: rule.cutoff ?? null,
    decision: reason === null ? "accept" : "reject",
    reason,
    set: summary.labels,
    samples: summary.samples,
    seed,
    seeds: [...seeds],
    classes: metadata.classes,
    probabilities: [...summary.probabilities],
    heatmap: summary.maps && [...summary.maps.heatmap],
    heatmap_spread: summary.maps?.spread ? [...summary.maps.spread] : null,
    pass_probabilities: Array.from({ length: summary.rows }, (_, i) => [...passes.subarray(i * size, (i + 1) * size)]),
    milliseconds: steps.at(-1).ms,
    device,
  };
}
