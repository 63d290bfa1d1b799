// The few parts that all charts are made of. Charts are drawn at their real width, so that text stays readable.

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Puts a drawing of this height into a container, with a text for those who cannot see it. */
export function drawing(container, height, label) {
  const width = Math.max(220, container.clientWidth);
  const node = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  container.replaceChildren(node);
  return { node, width, height };
}

export const text = (x, y, content, attributes = {}) => svg("text", { x, y, ...attributes }, content);

/** One path with a dot at every place: thousands of dots are one element. */
export function dots(places, attributes) {
  const d = places.map(([x, y]) => `M${x.toFixed(1)} ${y.toFixed(1)}h0`).join("");
  return svg("path", { d, ...attributes });
}

export function line(places, attributes) {
  return svg("path", { d: places.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join(""), ...attributes });
}

/** Round numbers from 0 to at most `top`. */
export function ticks(top, count) {
  const rough = top / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  return Array.from({ length: Math.floor(top / step + 1e-9) + 1 }, (_, i) => Number((i * step).toPrecision(12)));
}

/** Axes from 0 with a grid; gives the functions from values to places. */
export function axes({ node, width, height }, { xTop, yTop, xName, yName }) {
  const box = { left: 46, right: width - 12, top: 20, bottom: height - 36 };
  const x = (value) => box.left + (value / xTop) * (box.right - box.left);
  const y = (value) => box.bottom - (value / yTop) * (box.bottom - box.top);
  for (const value of ticks(yTop, 4)) {
    node.append(svg("line", { x1: box.left, x2: box.right, y1: y(value), y2: y(value), class: value ? "grid" : "axis" }));
    node.append(text(box.left - 6, y(value) + 4, String(value), { class: "tick", "text-anchor": "end" }));
  }
  for (const value of ticks(xTop, 5).filter(Number.isInteger)) {
    node.append(text(x(value), box.bottom + 16, String(value), { class: "tick", "text-anchor": "middle" }));
  }
  node.append(text(box.right, height - 4, xName, { class: "label", "text-anchor": "end" }));
  node.append(text(2, 11, yName, { class: "label" }));
  return { x, y, ...box };
}
