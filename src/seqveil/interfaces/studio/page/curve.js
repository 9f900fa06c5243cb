// Error against ε: a line for each mechanism, the chosen one in colour, and the stream that is shown as a point.

import { Chart, ticksTo } from "./chart.js";
import { cost, short, svg } from "./dom.js";

export const keyOf = (each) => `${each.mechanism}/${each.batch}/${each.every}`;

export const nameOf = (each) =>
  each.mechanism + (each.batch > 1 ? `, ${each.batch} at a time` : "") + (each.every > 1 ? `, every ${each.every}th` : "");

export function drawCurve(holder, picture, curves, chosen, unit) {
  const labels = holder.clientWidth < 440 ? 100 : 128;
  const known = [...curves.values()].filter((each) => each.points.length);
  const chart = new Chart(holder, {
    height: 344, bottom: 46, left: unit === "wrong" ? 48 : 44, right: labels, top: 30, title: "Error against ε for each mechanism",
    description: `${known.length} mechanisms; the stream shown errs ${cost(picture.figures.decoded_error, unit)} at ε ${short(chosen.epsilon)}; a table follows`,
  });
  const { box, inner, colours } = chart;
  const column = 2; // after the online decoder, which costs nothing
  const own = picture.figures.decoded_error;
  const nothing = known[0]?.silent ?? picture.figures.silent_error;
  const most = 1.15 * Math.max(own, nothing, 1e-9);
  const [low, high] = [Math.log2(0.1), Math.log2(10)];
  const x = (epsilon) => box.left + ((Math.log2(epsilon) - low) / (high - low)) * inner.width;
  const y = (error) => box.bottom - (Math.min(error, most) / most) * inner.height;
  const write = (value) => (unit === "wrong" ? `${Math.round(100 * value)} %` : short(value));
  chart.values(y, ticksTo(most, 5), "", write);
  chart.text(0, 12, unit === "wrong" ? "share wrong, decoded" : `mean error decoded, ${unit}`, { "font-weight": 600 });
  chart.line(box.left, box.bottom, box.right, box.bottom, { stroke: colours.line });
  for (const tick of [0.125, 0.25, 0.5, 1, 2, 4, 8]) {
    chart.line(x(tick), box.bottom, x(tick), box.bottom + 4, { stroke: colours.line });
    if (inner.width > 300 || ![0.25, 2].includes(tick)) chart.text(x(tick), box.bottom + 17, String(tick), { "text-anchor": "middle" });
  }
  chart.text((box.left + box.right) / 2, box.bottom + 36, "ε an event", { "text-anchor": "middle" });
  const silent = y(nothing);
  chart.line(box.left, silent, box.right, silent, { stroke: colours.limit, "stroke-dasharray": "2 4" });
  const ends = [{ y: silent, name: "no release", colour: colours.quiet, weight: 400 }];
  const own_key = keyOf(chosen);
  for (const each of known.sort((a, b) => (keyOf(a) === own_key) - (keyOf(b) === own_key))) {
    const mine = keyOf(each) === own_key;
    const colour = mine ? colours.accent : each.sound ? colours.raw : colours.released;
    const d = each.points.map((point, k) => `${k ? "L" : "M"}${x(point[0]).toFixed(1)} ${y(point[column]).toFixed(1)}`).join("");
    const line = chart.path(d, { stroke: colour, "stroke-width": mine ? 3 : 1.4, "stroke-dasharray": each.sound ? "none" : "4 3" });
    line.append(svg("title", {}, nameOf(each)));
    ends.push({ y: y(each.points.at(-1)[column]), name: nameOf(each) + (each.sound ? "" : " ✗"), colour: mine ? colours.accent : each.sound ? colours.quiet : colours.released, weight: mine ? 700 : 400 });
  }
  tags(chart, ends);
  if (chosen.epsilon >= 0.1 && chosen.epsilon <= 10) {
    chart.add("circle", { cx: x(chosen.epsilon), cy: y(own), r: 6, fill: colours.accent, stroke: colours.surface, "stroke-width": 2 });
    chart.text(x(chosen.epsilon) + 10, y(own) - 8, "this stream", { fill: colours.accent, "font-weight": 600 });
  }
}

// names at the ends of the lines, moved apart where they would overlap
function tags(chart, ends) {
  const { box } = chart;
  const step = Math.min(13, (box.bottom - 8) / ends.length);
  ends.sort((a, b) => a.y - b.y);
  let last = -Infinity;
  for (const end of ends) last = end.at = Math.max(end.y, last + step);
  let next = box.bottom + 2;
  for (const end of [...ends].reverse()) next = (end.at = Math.min(end.at, next)) - step;
  const most = Math.floor((chart.width - box.right - 11) / 5.6);
  for (const end of ends) {
    const name = end.name.length > most ? `${end.name.slice(0, most - 1)}…` : end.name;
    chart.line(box.right + 1, end.y, box.right + 8, end.at, { stroke: end.colour, "stroke-opacity": 0.5 });
    chart.text(box.right + 11, end.at + 4, name, { fill: end.colour, "font-size": 10.5, "font-weight": end.weight });
  }
}
