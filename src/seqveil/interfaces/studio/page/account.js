// Leakage so far, exactly and by adding up ε, against the budget.

import { Chart, ticksTo } from "./chart.js";
import { number } from "./dom.js";
import { margin, spent } from "./stage.js";

export function drawAccount(holder, source, picture) {
  const { series, figures, events, done } = picture;
  const narrow = margin(holder.clientWidth) < 90 ? 48 : 56;
  const chart = new Chart(holder, {
    height: 330, left: narrow, top: 48, title: "Leakage so far", description:
      `after ${done} events: ${figures.leakage} nats exactly, ${figures.composition} by adding up ε; a table follows`,
  });
  const { box, inner, colours } = chart;
  const finite = series.leakage.map((value) => (value === null ? Infinity : value));
  const largest = Math.max(...finite.filter(Number.isFinite), ...series.spent, figures.budget ?? 0, 1e-9);
  const most = largest * 1.04;
  const y = (value) => box.bottom - (Math.min(value, most) / most) * inner.height;
  chart.values(y, ticksTo(most, 5), "");
  const x = chart.events(events, source.event);
  const line = (values) => values.map((value, k) => `${k ? "L" : "M"}${x(k).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  spent(chart, picture, x);
  chart.path(line(finite), { stroke: colours.decoded, "stroke-width": 3 });
  chart.path(line(series.spent), { stroke: colours.limit, "stroke-width": 1.4, "stroke-dasharray": "5 4" });
  if (figures.budget !== null) chart.line(box.left, y(figures.budget), box.right, y(figures.budget), { stroke: colours.bad, "stroke-width": 1.6 });
  entries(chart, figures);
  return chart.cursor(x);
}

function entries(chart, figures) {
  const { box, colours } = chart;
  const kinds = [["exact leakage, nats", colours.decoded, 2.6, ""], ["Σε, by composition", colours.limit, 1.4, "5 4"]];
  if (figures.budget !== null) kinds.push(["budget", colours.bad, 1.6, ""]);
  if (!Number.isFinite(number(figures.leakage))) kinds.push(["the exact leakage has no bound", colours.bad, 0, ""]);
  let [x, y] = [box.left, 12];
  for (const [name, stroke, width, dashes] of kinds) {
    const room = 40 + name.length * 6.6;
    if (x + room > chart.width && x > box.left) [x, y] = [box.left, y + 18];
    if (width) chart.line(x, y, x + 20, y, { stroke, "stroke-width": width, "stroke-dasharray": dashes || "none" });
    chart.text(x + 26, y + 4, name, width ? {} : { fill: stroke });
    x += room;
  }
}
