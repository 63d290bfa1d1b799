// The drawings of an answer.

import { entropy, running } from "./statistics.js";
import { axes, dots, drawing, line, svg, text } from "./svg.js";
import { decimal, milliseconds, percent } from "./words.js";

const GOLDEN = 0.618033988749895;
const ROWS = 5; // classes in the chart of the passes

/** The most probable classes, best first. */
export function ranked(probabilities, count) {
  return [...probabilities.keys()].sort((a, b) => probabilities[b] - probabilities[a]).slice(0, count);
}

/** The uncertainty between 0 and 1 with its standard error, and the threshold; a root scale shows small values too. */
export function drawGauge(container, summary, threshold, deterministic, accepted) {
  const compared = threshold === null ? "" : `, threshold ${decimal(threshold)}`;
  const label = `Uncertainty ${decimal(summary.uncertainty)}${compared}, on a scale from 0 to 1.`;
  const chart = drawing(container, 82, label);
  const { node, width } = chart;
  const x = (value) => 10 + Math.sqrt(value) * (width - 20);
  const [top, bottom] = [30, 52];
  const end = Math.max(0, threshold ?? 1);
  // Without a limit on the uncertainty, no part of the scale is accepted or rejected.
  const accepts = threshold === null ? "zone" : "zone accept";
  node.append(
    svg("rect", { x: x(0), y: top, width: x(end) - x(0), height: bottom - top, class: accepts }),
    svg("rect", { x: x(end), y: top, width: x(1) - x(end), height: bottom - top, class: "zone reject" }),
  );
  const marks = width < 420 ? [0, 0.05, 0.25, 0.5, 1] : [0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1];
  for (const value of marks) {
    const anchor = value === 0 ? "start" : value === 1 ? "end" : "middle";
    node.append(svg("line", { x1: x(value), x2: x(value), y1: bottom, y2: bottom + 4, class: "axis" }));
    node.append(text(x(value), bottom + 17, String(value), { class: "tick", "text-anchor": anchor }));
  }
  const { uncertainty, standardError, samples } = summary;
  if (!deterministic && samples > 1) {
    const [low, high] = [x(Math.max(0, uncertainty - standardError)), x(Math.min(1, uncertainty + standardError))];
    node.append(svg("rect", { x: low, y: top + 5, width: Math.max(1, high - low), height: bottom - top - 10, class: "spread" }));
  }
  const at = x(uncertainty);
  node.append(svg("path", { d: `M${at} ${top - 3}V${bottom + 3}`, class: "needle" }));
  node.append(svg("path", { d: `M${at - 6} ${top - 11}h12l-6 9z`, class: `pointer ${accepted ? "good" : "bad"}` }));
  if (threshold === null) return;
  node.append(svg("line", { x1: x(end), x2: x(end), y1: top - 6, y2: bottom + 5, class: "threshold" }));
  const left = x(end) > width - 130;
  const side = { class: "label", "text-anchor": left ? "end" : "start" };
  node.append(text(x(end) + (left ? -5 : 5), 12, `reject above ${decimal(threshold)}`, side));
}

/** Bars of the most probable classes, as a list that can be read aloud. */
export function listBars(list, probabilities, classes, most) {
  const rows = ranked(probabilities, most).map((index) => {
    const row = document.createElement("li");
    const [name, track, fill, value] = ["span", "span", "span", "span"].map((tag) => document.createElement(tag));
    name.className = "name";
    name.textContent = classes[index];
    name.title = classes[index];
    track.className = "track";
    track.ariaHidden = "true";
    fill.style.width = `${100 * probabilities[index]}%`;
    track.append(fill);
    value.className = "value";
    value.textContent = percent(probabilities[index]);
    row.dataset.class = index;
    row.dataset.value = probabilities[index];
    row.append(name, track, value);
    return row;
  });
  list.replaceChildren(...rows);
}

/** One dot a pass and class: how far the passes agree. The dots of the last call are marked. */
export function drawPasses(container, passes, summary, classes, fresh) {
  const best = ranked(summary.probabilities, ROWS);
  const shown = best.map((index) => `${classes[index]} ${percent(summary.probabilities[index])}`).join(", ");
  const rowHeight = 38;
  const height = 20 + (best.length + 1) * rowHeight + 34;
  const chart = drawing(container, height, `Probability in each of ${summary.rows} passes; means: ${shown}.`);
  const { node, width } = chart;
  const [left, right] = [Math.min(96, width * 0.24), width - 14];
  const x = (value) => left + value * (right - left);
  const size = passes.length / summary.rows;
  for (const value of [0, 0.25, 0.5, 0.75, 1]) {
    node.append(svg("line", { x1: x(value), x2: x(value), y1: 14, y2: height - 34, class: "grid" }));
    node.append(text(x(value), height - 19, String(value), { class: "tick", "text-anchor": "middle" }));
  }
  node.append(text(right, height - 3, "probability, and entropy, of one pass", { class: "label", "text-anchor": "end" }));
  const row = (order, name, values, mean, colour) => {
    const middle = 20 + (order + 0.5) * rowHeight;
    const place = (value, i) => [x(value), middle + (((i + 1) * GOLDEN) % 1 - 0.5) * rowHeight * 0.56 - 3];
    const places = values.map(place);
    node.append(text(left - 12, middle + 4, clipped(name, left - 16), { "text-anchor": "end" }));
    node.append(dots(places.slice(0, places.length - fresh), { class: `dots ${colour}` }));
    node.append(dots(places.slice(places.length - fresh), { class: `dots fresh ${colour}` }));
    node.append(svg("path", { d: `M${x(mean)} ${middle + 13}l4.5 7h-9z`, class: "mean" }));
  };
  const rows = Array.from({ length: summary.rows }, (_, i) => passes.subarray(i * size, (i + 1) * size));
  best.forEach((index, order) => row(order, classes[index], rows.map((p) => p[index]), summary.probabilities[index], "c1"));
  const split = 20 + best.length * rowHeight;
  node.append(svg("line", { x1: 0, x2: right, y1: split, y2: split, class: "axis" }));
  row(best.length, "entropy", rows.map(entropy), summary.uncertainty - summary.modelUncertainty, "c2");
}

/** The uncertainty after 1, 2, ... N passes, with its standard error. */
export function drawRunning(container, passes, { classes, members }, threshold, samples) {
  const points = running(passes, classes.length, members).filter(({ n }) => n > 1 || passes.length === classes.length * members);
  const last = points.at(-1);
  const spread = (point) => (point.n > 1 ? point.standardError : 0);
  const most = Math.max(...points.map((point) => point.uncertainty + spread(point)));
  const yTop = Math.min(1, Math.max(1.25 * (threshold ?? 0), 1.1 * most, 0.01)) || 0.01;
  const label = `Uncertainty after ${last.n} of ${samples} passes: ${decimal(last.uncertainty)}${threshold === null ? "" : `, threshold ${decimal(threshold)}`}.`;
  const chart = drawing(container, 210, label);
  const { x, y, right } = axes(chart, { xTop: Math.max(samples, 2), yTop, xName: "passes", yName: "uncertainty" });
  const upper = points.map((p) => [x(p.n), y(Math.min(yTop, p.uncertainty + spread(p)))]);
  const lower = points.map((p) => [x(p.n), y(Math.max(0, p.uncertainty - spread(p)))]);
  if (points.length > 1) chart.node.append(line([...upper, ...lower.reverse()], { class: "band c1" }));
  chart.node.append(line(points.map((p) => [x(p.n), y(p.uncertainty)]), { class: "line c1" }));
  chart.node.append(dots([[x(last.n), y(last.uncertainty)]], { class: "dots big c1" }));
  if (threshold !== null && threshold >= 0 && threshold <= yTop) {
    chart.node.append(svg("line", { x1: x(0), x2: right, y1: y(threshold), y2: y(threshold), class: "threshold" }));
    chart.node.append(text(right, y(threshold) - 5, "reject above", { class: "note", "text-anchor": "end" }));
  }
}

/** Time against the number of passes: this run as it goes, and the runs before it. */
export function drawLatency(container, steps, finished, samples) {
  const all = [...steps, ...finished];
  const last = steps.at(-1);
  const label = `${last.n} passes took ${milliseconds(last.ms)}; ${finished.length} earlier runs are marked.`;
  const chart = drawing(container, 210, label);
  const xTop = Math.max(samples, 2, ...all.map(({ n }) => n));
  const yTop = 1.15 * Math.max(...all.map(({ ms }) => ms), 0.1);
  const { x, y } = axes(chart, { xTop, yTop, xName: "passes", yName: "milliseconds" });
  for (const run of finished) chart.node.append(svg("circle", { cx: x(run.n), cy: y(run.ms), r: 4, class: "earlier" }));
  const places = steps.map(({ n, ms }) => [x(n), y(ms)]);
  chart.node.append(line(places, { class: "line c3" }), dots(places, { class: "dots big c3" }));
}

/** A name that fits into so many pixels. */
function clipped(name, width) {
  const most = Math.max(3, Math.floor(width / 7));
  return name.length > most ? `${name.slice(0, most - 1)}…` : name;
}
