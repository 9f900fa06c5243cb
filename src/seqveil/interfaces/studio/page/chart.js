// The frame all pictures share: an SVG as wide as its place, scales, axes, and colours as attributes, so that a picture
// looks the same when it is saved.

import { palette, short, svg } from "./dom.js";

export const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif";

const ROW = 18; // of a legend

export class Chart {
  // entries of the legend are {name, colour, width, dashes}, or {name, colour, dot: true}; its rows come before the rest
  constructor(holder, { height, left, right = 12, top = 10, bottom = 30, title, description, legend = [] }) {
    this.width = Math.max(240, Math.floor(holder.clientWidth));
    const places = placed(legend, left, this.width);
    const above = places.length ? places.at(-1).y + ROW / 2 : 0;
    this.height = height += above;
    this.box = { left, top: top + above, right: this.width - right, bottom: height - bottom };
    this.colours = palette();
    const id = `${holder.id}-described`;
    this.svg = svg("svg", {
      width: this.width, height, viewBox: `0 0 ${this.width} ${height}`, role: "img", "aria-labelledby": id,
      "font-family": FONT, "font-size": 11.5,
    });
    this.svg.append(svg("title", { id }, `${title}. ${description}`));
    holder.replaceChildren(this.svg);
    for (const { x, y, name, colour, width = 2, dashes, dot } of places) {
      if (dot) this.add("circle", { cx: x + 9, cy: y, r: 3.2, fill: colour });
      else this.line(x, y, x + 18, y, { stroke: colour, "stroke-width": width, "stroke-dasharray": dashes || "none" });
      this.text(x + 24, y + 4, name);
    }
  }

  get inner() {
    const { left, right, top, bottom } = this.box;
    return { width: right - left, height: bottom - top };
  }

  add(name, attributes = {}, ...children) {
    const node = svg(name, attributes, ...children);
    this.svg.append(node);
    return node;
  }

  text(x, y, content, attributes = {}) {
    return this.add("text", { x, y, fill: this.colours.quiet, ...attributes }, content);
  }

  line(x1, y1, x2, y2, attributes = {}) {
    return this.add("line", { x1, y1, x2, y2, stroke: this.colours.grid, ...attributes });
  }

  path(d, attributes = {}) {
    return this.add("path", { d, fill: "none", "stroke-linejoin": "round", ...attributes });
  }

  // ticks of a value axis, with lines across
  values(scale, ticks, write = short) {
    const { left, right } = this.box;
    for (const tick of ticks) {
      const y = scale(tick);
      this.line(left, y, right, y);
      this.text(left - 8, y + 4, write(tick), { "text-anchor": "end" });
    }
  }

  // the axis of events, the same for all pictures of one stream
  events(count) {
    const { left, right, bottom } = this.box;
    const x = (event) => left + ((event + 0.5) / count) * (right - left);
    const step = pleasant(count / Math.max(2, Math.floor((right - left) / 90)));
    this.line(left, bottom, right, bottom, { stroke: this.colours.line });
    for (let tick = step; tick <= count; tick += step) {
      this.line(x(tick - 1), bottom, x(tick - 1), bottom + 4, { stroke: this.colours.line });
      if (x(tick - 1) > left + 47) this.text(x(tick - 1), bottom + 17, String(tick), { "text-anchor": "middle" });
    }
    this.text(left, bottom + 17, "event", { "text-anchor": "start" });
    return x;
  }

  cursor(x) {
    const { top, bottom } = this.box;
    const line = this.line(0, top, 0, bottom, { stroke: this.colours.limit, "stroke-width": 1, "stroke-opacity": 0.55 });
    return (event) => {
      line.setAttribute("x1", x(event));
      line.setAttribute("x2", x(event));
    };
  }
}

// where the entries of a legend stand: side by side, and on the next row where there is no room
function placed(entries, left, width) {
  let [x, y] = [left, 10];
  return entries.map((entry) => {
    const room = 38 + entry.name.length * 6.7;
    if (x + room > width && x > left) [x, y] = [left, y + ROW];
    const place = { ...entry, x, y };
    x += room;
    return place;
  });
}

// steps 1, 2, 5, 10, …, not less than wanted
function pleasant(wanted) {
  const size = 10 ** Math.floor(Math.log10(Math.max(wanted, 1e-9)));
  const factor = [1, 2, 5, 10].find((each) => each * size >= wanted * 0.999);
  return Math.max(factor * size, 0);
}

export function ticksTo(most, about) {
  const step = pleasant(most / about);
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, k) => Number((k * step).toPrecision(10)));
}

// a line of steps through codes, nothing where there is none; without order there is no way from one symbol to the next
export function steps(codes, x, y, until, ordered) {
  let d = "";
  for (let k = 0; k < until; k += 1) {
    if (codes[k] < 0) continue;
    const before = k > 0 && codes[k - 1] >= 0 && (ordered || codes[k - 1] === codes[k]);
    const [from, to] = [(x(k) + x(k - 1)) / 2, (x(k) + x(k + 1)) / 2];
    d += `${before ? "L" : "M"}${from.toFixed(1)} ${y(codes[k]).toFixed(1)}L${to.toFixed(1)} ${y(codes[k]).toFixed(1)}`;
  }
  return d;
}
