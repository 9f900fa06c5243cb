// Raw beside released beside decoded: lines over time, or a path on a map, revealed up to the moment that is looked at.

import { Chart, steps } from "./chart.js";
import { css, palette, shade, short, svg } from "./dom.js";

const TRAIL = 60; // events of a path that stay visible
const LETTER = 6.1; // pixels of a letter of a label, about
const ALL = 24; // symbols that are shown whether they occur or not

// `pick` gets the symbol of a cell of the map that somebody clicks
export function drawStage(holder, source, picture, pick) {
  return source.boxes.length ? drawMaps(holder, source, picture, pick) : drawLines(holder, source, picture);
}

export const margin = (width) => (width < 520 ? 48 : 56);

// Where each symbol stands: labels beside the rows where they fit, else above them, so that none is cut.
export function layout(holder, source, picture) {
  const codes = visible(source, picture);
  const wide = Math.max(...codes.map((code) => source.labels[code].length)) * LETTER + 16;
  const beside = wide < 0.35 * holder.clientWidth;
  const row = beside ? (codes.length > ALL ? 6 : 17) : 30;
  const place = new Map(codes.map((code, k) => [code, k]));
  return { codes, place, beside, left: beside ? Math.max(wide, 40) : 10, height: Math.min(1200, Math.max(140, row * codes.length)) };
}

// the symbols to show: of numbers those near what occurs, of many names those that occur
function visible(source, picture) {
  const all = source.labels.map((_, code) => code);
  if (all.length <= (source.ordered ? 12 : ALL)) return all;
  const { raw, released, decoded } = picture.series;
  const seen = new Set([raw, released, decoded].flat().filter((code) => code >= 0));
  if (!source.ordered) return all.filter((code) => seen.has(code));
  const [low, high] = [...seen].reduce(([a, b], code) => [Math.min(a, code), Math.max(b, code)], [all.length, 0]);
  return all.slice(Math.max(0, low - 2), high + 3);
}

export const rowOf = (chart, laid) => (code) => chart.box.bottom - ((laid.place.get(code) + 0.5) / laid.codes.length) * chart.inner.height;

export function symbolAxis(chart, source, y, laid) {
  const { box, colours } = chart;
  const room = chart.inner.height / laid.codes.length;
  const every = laid.beside ? Math.max(1, Math.ceil(13 / room)) : Math.max(1, Math.ceil(26 / room));
  const halo = { stroke: colours.surface, "stroke-width": 3, "paint-order": "stroke" }; // to be read over what it lies on
  for (let k = 0; k < laid.codes.length; k += every) {
    const [code, label] = [laid.codes[k], source.labels[laid.codes[k]]];
    if (laid.beside) chart.text(box.left - 8, y(code) + 4, label, { "text-anchor": "end", "font-size": 10.5 });
    else chart.text(box.left + 2, y(code) - room / 2 + 10, label, { "font-size": 10.5, ...halo, ...squeezed(label, chart.inner.width) });
    if (room > 9 || k % (every * 2) === 0) chart.line(box.left, y(code), box.right, y(code));
  }
}

// a label that is longer than the picture is wide is set narrower, not cut
const squeezed = (label, width) => (label.length * LETTER > width ? { textLength: width - 4, lengthAdjust: "spacingAndGlyphs" } : {});

function drawLines(holder, source, picture) {
  const { series, events, done } = picture;
  const colours = palette();
  const laid = layout(holder, source, picture);
  const chart = new Chart(holder, {
    height: laid.height + 44, left: laid.left, top: 12, title: "The stream raw, released and decoded",
    description: `${done} events over ${laid.codes.length} symbols; a table of them follows`,
    legend: [{ name: "raw", colour: colours.raw, width: 6 }, { name: "released", colour: colours.released, dot: true }, { name: "decoded", colour: colours.decoded, width: 2.2 }],
  });
  const { box } = chart;
  const row = rowOf(chart, laid);
  const low = laid.beside ? 0 : 5; // below a label that stands above
  const y = (code) => row(code) + low;
  symbolAxis(chart, source, row, laid);
  const x = chart.events(events);
  spent(chart, picture, x);
  const width = Math.max(1.6, Math.min(6, chart.inner.width / events / 2.2));
  const clip = `${holder.id}-past`;
  const window = svg("rect", { x: box.left, y: 0, width: 0, height: chart.height });
  chart.add("defs", {}, svg("clipPath", { id: clip }, window));
  for (const [opacity, attributes] of [[0.16, {}], [1, { "clip-path": `url(#${clip})` }]]) {
    const group = chart.add("g", { opacity, ...attributes });
    const line = (d, stroke, wide) => group.append(svg("path", { d, fill: "none", stroke, "stroke-width": wide, "stroke-linejoin": "round" }));
    line(steps(series.raw, x, y, done, source.ordered), colours.raw, source.ordered ? Math.max(3.5, width + 2) : 9);
    let dots = "";
    series.released.forEach((code, k) => {
      if (code >= 0) dots += `M${x(k).toFixed(1)} ${y(code).toFixed(1)}h0`;
    });
    group.append(svg("path", { d: dots, stroke: colours.released, "stroke-width": Math.max(3, Math.min(6.5, width + 2.4)), "stroke-linecap": "round" }));
    const below = source.ordered ? 0 : Math.min(6, chart.inner.height / laid.codes.length / 2.6); // not to hide behind the dots
    line(steps(series.decoded, x, (code) => y(code) + below, done, source.ordered), colours.decoded, source.ordered ? 1.4 : 2.2);
  }
  const cursor = chart.cursor(x);
  return (event) => {
    cursor(event);
    window.setAttribute("width", Math.max(0, (x(event) + x(event + 1)) / 2 - box.left));
  };
}

// where the budget was first spent
export function spent(chart, picture, x) {
  const at = picture.figures.spent_at;
  if (at === null) return;
  const { colours, box } = chart;
  chart.line(x(at), box.top, x(at), box.bottom, { stroke: colours.bad, "stroke-dasharray": "3 3" });
  const late = x(at) > (box.left + box.right) / 2;
  const halo = { stroke: colours.surface, "stroke-width": 3, "paint-order": "stroke" };
  chart.text(x(at) + (late ? -6 : 6), (box.top + box.bottom) / 2, "budget spent", { fill: colours.bad, "text-anchor": late ? "end" : "start", ...halo });
}

// three maps of the cells as they lie, side by side where there is room
function drawMaps(holder, source, picture, pick) {
  const { series } = picture;
  const [wide, gap] = [holder.clientWidth, 16];
  const across = wide < 520 ? 2 : 3;
  const side = Math.min(340, Math.floor((wide - 2 - (across - 1) * gap) / across));
  const [right, top] = [2, 3].map((edge) => source.boxes.reduce((most, box) => Math.max(most, box[edge]), 0));
  const scale = side / Math.max(right, top);
  const tall = Math.ceil(top * scale);
  const chart = new Chart(holder, {
    height: (across === 2 ? 2 : 1) * (tall + 34) + (source.map ? 16 : 0), left: 0, right: 0,
    title: `The path raw, released and decoded on ${source.map ? "the map" : "the grid"}`, description: `${picture.done} events; a table of them follows`,
  });
  const { colours } = chart;
  const point = (code) => [(source.boxes[code][0] + source.boxes[code][2]) / 2 * scale, (top - (source.boxes[code][1] + source.boxes[code][3]) / 2) * scale];
  const maps = [["raw", series.raw, colours.raw], ["released", series.released, colours.released], ["decoded, over the belief", series.decoded, colours.decoded]].map(([name, codes, colour], k) => {
    const [left, above] = [(k % across) * (side + gap) + 1, Math.floor(k / across) * (tall + 34)];
    chart.text(left, above + 14, name, { "font-weight": 600 });
    const group = chart.add("g", { transform: `translate(${left} ${above + 22})` });
    const cells = source.boxes.map(([x0, y0, x1, y1], code) => {
      const cell = svg("rect", { x: x0 * scale, y: (top - y1) * scale, width: (x1 - x0) * scale, height: (y1 - y0) * scale, fill: colours.surface, stroke: colours.grid, "stroke-width": 0.6 }, svg("title", {}, source.labels[code]));
      cell.addEventListener("click", () => pick(code));
      group.append(cell);
      return cell;
    });
    const size = Math.max(3, Math.min(8, (source.boxes[0][2] - source.boxes[0][0]) * scale / 4));
    const trail = svg("path", { fill: "none", stroke: colour, "stroke-width": 2.2, "stroke-opacity": 0.75, "stroke-linejoin": "round", "stroke-linecap": "round" });
    const head = svg("circle", { r: size, fill: colour, stroke: colours.surface, "stroke-width": 1.5 });
    group.append(trail, head);
    return { codes, trail, head, cells: k === 2 ? cells : null };
  });
  if (source.map) chart.text(1, chart.height - 4, `${distance(right)} from west to east, ${distance(top)} from south to north`);
  return (event) => {
    for (const map of maps) {
      const seen = map.codes.slice(Math.max(0, event - TRAIL), event + 1).filter((code) => code >= 0).map(point);
      map.trail.setAttribute("d", seen.length ? `M${seen.map((p) => p.map((v) => v.toFixed(1)).join(" ")).join("L")}` : "");
      const last = seen.at(-1);
      map.head.setAttribute("visibility", last ? "visible" : "hidden");
      if (last) [map.head.cx.baseVal.value, map.head.cy.baseVal.value] = last;
      const at = event * source.labels.length;
      map.cells?.forEach((cell, code) => cell.setAttribute("fill", css(shade(colours.heat, (0.75 * (picture.heat[at + code] ?? 0)) / 255))));
    }
  };
}

const distance = (metres) => (metres >= 1000 ? `${short(metres / 1000)} km` : `${short(metres)} m`);

export function tell(source, picture, event) {
  const { series } = picture;
  const name = (code) => (code < 0 ? "nothing" : source.labels[code]);
  const used = picture.unbounded ? "" : ` (ε ${short(series.epsilons[event])})`;
  return `Event ${event + 1} of ${picture.events}: raw ${name(series.raw[event])}, released ${name(series.released[event])}${used}, decoded ${name(series.decoded[event])}.`;
}
