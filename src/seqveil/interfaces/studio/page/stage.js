// Raw beside released beside decoded: lines over time, or a path on a grid, revealed up to the moment that is looked at.

import { Chart, steps } from "./chart.js";
import { css, palette, shade, short, shorten, svg } from "./dom.js";

const TRAIL = 60; // events of a path that stay visible

export function drawStage(holder, source, picture, decoded, heat) {
  return source.grid ? drawMaps(holder, source, picture, decoded, heat) : drawLines(holder, source, picture, decoded);
}

export const margin = (width) => (width < 520 ? 74 : 104);

function drawLines(holder, source, picture, decoded) {
  const { series, events, done } = picture;
  const [from, to] = visible(source, picture);
  const rows = to - from + 1;
  const height = Math.min(400, Math.max(200, 44 + rows * (rows > 24 ? 6 : 17)));
  const colours = palette();
  const chart = new Chart(holder, {
    height, left: margin(holder.clientWidth), top: 12, title: "The stream raw, released and decoded",
    description: `${done} events over ${rows} symbols; a table of them follows`,
    legend: [{ name: "raw", colour: colours.raw, width: 6 }, { name: "released", colour: colours.released, dot: true }, { name: "decoded", colour: colours.decoded, width: 2.2 }],
  });
  const { box } = chart;
  const y = (code) => box.bottom - ((code - from + 0.5) / rows) * chart.inner.height;
  symbolAxis(chart, source, y, [from, to]);
  const x = chart.events(events, source.event);
  spent(chart, picture, x);
  const width = Math.max(1.6, Math.min(6, chart.inner.width / events / 2.2));
  const clip = `${holder.id}-past`;
  const window = svg("rect", { x: box.left, y: 0, width: 0, height: chart.height });
  chart.add("defs", {}, svg("clipPath", { id: clip }, window));
  const layer = (opacity, attributes) => chart.add("g", { opacity, ...attributes });
  for (const [opacity, attributes] of [[0.16, {}], [1, { "clip-path": `url(#${clip})` }]]) {
    const group = layer(opacity, attributes);
    const line = (d, stroke, wide) => group.append(svg("path", { d, fill: "none", stroke, "stroke-width": wide, "stroke-linejoin": "round" }));
    line(steps(series.raw, x, y, done, source.ordered), colours.raw, source.ordered ? Math.max(3.5, width + 2) : 9);
    let dots = "";
    series.released.forEach((code, k) => {
      if (code >= 0) dots += `M${x(k).toFixed(1)} ${y(code).toFixed(1)}h0`;
    });
    group.append(svg("path", { d: dots, stroke: colours.released, "stroke-width": Math.max(3, Math.min(6.5, width + 2.4)), "stroke-linecap": "round" }));
    const below = source.ordered ? 0 : Math.min(6, chart.inner.height / rows / 2.6); // not to hide behind the dots
    line(steps(decoded, x, (code) => y(code) + below, done, source.ordered), colours.decoded, source.ordered ? 1.4 : 2.2);
  }
  const cursor = chart.cursor(x);
  return (event) => {
    cursor(event);
    window.setAttribute("width", Math.max(0, (x(event) + x(event + 1)) / 2 - box.left));
  };
}

// the symbols to show: of numbers only those near what occurs, so that the rest takes no room
export function visible(source, picture) {
  if (!source.ordered || source.symbols <= 12) return [0, source.symbols - 1];
  const { raw, released, decoded, hindsight } = picture.series;
  const codes = [raw, released, decoded, hindsight].flat().filter((code) => code >= 0);
  const [low, high] = codes.reduce(([a, b], code) => [Math.min(a, code), Math.max(b, code)], [source.symbols, 0]);
  return [Math.max(0, low - 2), Math.min(source.symbols - 1, high + 2)];
}

export function symbolAxis(chart, source, y, [from, to]) {
  const { box } = chart;
  const room = Math.abs(y(1) - y(0));
  const every = Math.max(1, Math.ceil(13 / room));
  const most = box.left < 90 ? 9 : 15;
  for (let code = from; code <= to; code += every) {
    const label = source.grid && box.left > 90 ? `cell ${source.labels[code]}` : source.labels[code];
    chart.text(box.left - 8, y(code) + 4, shorten(label, most), { "text-anchor": "end", "font-size": 10.5 });
    if (room > 9 || code % (every * 2) === 0) chart.line(box.left, y(code), box.right, y(code));
  }
}

// where the budget was first spent
export function spent(chart, picture, x) {
  const at = picture.figures.spent_at;
  if (at === null) return;
  const { colours, box } = chart;
  chart.line(x(at), box.top, x(at), box.bottom, { stroke: colours.bad, "stroke-dasharray": "3 3" });
  const late = x(at) > (box.left + box.right) / 2;
  const halo = { stroke: colours.surface, "stroke-width": 3, "paint-order": "stroke" }; // to be read over what it lies on
  chart.text(x(at) + (late ? -6 : 6), (box.top + box.bottom) / 2, "budget spent", { fill: colours.bad, "text-anchor": late ? "end" : "start", ...halo });
}

function drawMaps(holder, source, picture, decoded, heat) {
  const { series } = picture;
  const [across, down] = source.grid;
  const wide = holder.clientWidth;
  const gap = 16;
  const side = Math.min(340, Math.floor((wide - 2 - (wide < 520 ? gap : 2 * gap)) / (wide < 520 ? 2 : 3)));
  const places = wide < 520 ? [[0, 0], [side + gap, 0], [0, side + 40]] : [[0, 0], [side + gap, 0], [2 * (side + gap), 0]];
  const height = wide < 520 ? 2 * side + 72 : side + 30;
  const chart = new Chart(holder, { height, left: 0, right: 0, title: "The path raw, released and decoded on the grid", description: `${picture.done} events; a table of them follows` });
  const { colours } = chart;
  const maps = [["raw", series.raw, colours.raw], ["released", series.released, colours.released], ["decoded, over the belief", decoded, colours.decoded]].map(
    ([name, codes, colour], k) => {
      const [left, top] = [places[k][0] + 1, places[k][1]];
      chart.text(left, top + 14, name, { "font-weight": 600 });
      const group = chart.add("g", { transform: `translate(${left} ${top + 22})` });
      const cell = side / Math.max(across, down);
      const point = (code) => [(Math.floor(code / down) + 0.5) * cell, (down - (code % down) - 0.5) * cell];
      group.append(svg("rect", { width: across * cell, height: down * cell, fill: colours.surface, stroke: colours.line }));
      const cells = k === 2 ? belief(group, source, cell, point) : null;
      let grid = "";
      for (let line = 1; line < across; line += 1) grid += `M${line * cell} 0V${down * cell}`;
      for (let line = 1; line < down; line += 1) grid += `M0 ${line * cell}H${across * cell}`;
      group.append(svg("path", { d: grid, stroke: colours.grid, "stroke-width": 0.7 }));
      const trail = svg("path", { fill: "none", stroke: colour, "stroke-width": 2.2, "stroke-opacity": 0.75, "stroke-linejoin": "round", "stroke-linecap": "round" });
      const head = svg("circle", { r: Math.max(4, cell / 4), fill: colour, stroke: colours.surface, "stroke-width": 1.5 });
      group.append(trail, head);
      return { codes, point, trail, head, cells };
    },
  );
  return (event) => {
    for (const map of maps) {
      const from = Math.max(0, event - TRAIL);
      const seen = map.codes.slice(from, event + 1).filter((code) => code >= 0).map(map.point);
      map.trail.setAttribute("d", seen.length ? `M${seen.map((p) => p.map((v) => v.toFixed(1)).join(" ")).join("L")}` : "");
      const last = seen.at(-1);
      map.head.setAttribute("visibility", last ? "visible" : "hidden");
      if (last) [map.head.cx.baseVal.value, map.head.cy.baseVal.value] = last;
      map.cells?.(heat, event, colours);
    }
  };
}

function belief(group, source, cell, point) {
  const cells = Array.from({ length: source.symbols }, (_, code) => {
    const [x, y] = point(code);
    const node = svg("rect", { x: x - cell / 2, y: y - cell / 2, width: cell, height: cell });
    group.append(node);
    return node;
  });
  return (heat, event, colours) => {
    const at = event * source.symbols;
    cells.forEach((node, code) => node.setAttribute("fill", css(shade(colours.heat, (0.75 * (heat[at + code] ?? 0)) / 255))));
  };
}

export function tell(source, picture, decoded, event) {
  const { series } = picture;
  const name = (code) => (code < 0 ? "nothing" : source.labels[code]);
  const bounded = picture.configuration.epsilon !== null;
  const used = bounded ? ` (ε ${short(series.epsilons[event])})` : "";
  return `Event ${event + 1} of ${picture.events}: raw ${name(series.raw[event])}, released ${name(series.released[event])}${used}, decoded ${name(decoded[event])}.`;
}
