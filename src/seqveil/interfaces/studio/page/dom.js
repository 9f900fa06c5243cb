// Small helpers: elements, numbers as people read them, and colours as the style sheet has them.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

export function el(name, options = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (key === "class") node.className = value;
    else if (key in node) node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

export function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const NAMES = ["surface", "sunk", "line", "grid", "ink", "quiet", "accent", "raw", "released", "decoded", "limit", "good", "warn", "bad"];

export function palette() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  const found = Object.fromEntries(NAMES.map((name) => [name, read(name)]));
  found.heat = [rgb(read("heat-low")), rgb(read("heat-high"))];
  return found;
}

function rgb(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

export const shade = ([low, high], part) => low.map((from, k) => Math.round(from + (high[k] - from) * part));
export const css = (triple) => `rgb(${triple.join(" ")})`;

export function short(value, digits = 3) {
  if (value === null || value === undefined) return "∞"; // JSON has no infinity
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 10000 || size < 0.0005) return value.toExponential(1).replace("e+", "e");
  return String(Number(value.toPrecision(Math.max(digits, Math.ceil(Math.log10(size))))));
}

export function cost(value, unit) {
  if (value === null || value === undefined) return "–";
  return unit === "wrong" ? `${(100 * value).toFixed(1)} %` : short(value);
}

// what an error is measured in, for a source and the chosen cost
export const UNITS = { hamming: "wrong", absolute: "off", squared: "off, squared", euclidean: "apart", metres: "m" };

export function replace(node, ...children) {
  node.replaceChildren(...children);
}

// the entries of a select, and which of them is chosen
export function options(select, entries, chosen) {
  replace(select, ...entries.map(([value, text]) => el("option", { value: String(value) }, text)));
  if (entries.some(([value]) => String(value) === String(chosen))) select.value = String(chosen);
}

export function save(name, content, type) {
  const blob = content instanceof Blob ? content : new Blob([content], { type });
  const address = URL.createObjectURL(blob);
  const link = el("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
