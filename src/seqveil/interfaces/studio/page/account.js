// Leakage so far, exactly and by adding up ε, against the budget.

import { Chart, ticksTo } from "./chart.js";
import { palette } from "./dom.js";
import { margin, spent } from "./stage.js";

export function drawAccount(holder, source, picture) {
  const { series, figures, events, done } = picture;
  const colours = palette();
  const legend = [{ name: "exact leakage, nats", colour: colours.decoded, width: 2.6 }, { name: "Σε, by composition", colour: colours.limit, width: 1.4, dashes: "5 4" }];
  if (figures.budget !== null) legend.push({ name: "budget", colour: colours.bad, width: 1.6 });
  if (figures.leakage === null) legend.push({ name: "the exact leakage has no bound", colour: colours.bad, dot: true });
  const chart = new Chart(holder, {
    height: 250, left: margin(holder.clientWidth), top: 14, legend, title: "Leakage so far", description:
      `after ${done} events: ${figures.leakage ?? "without bound"} nats exactly, ${figures.composition} by adding up ε; a table follows`,
  });
  const { box, inner } = chart;
  const finite = series.leakage.map((value) => (value === null ? Infinity : value));
  const largest = Math.max(...finite.filter(Number.isFinite), ...series.spent, figures.budget ?? 0, 1e-9);
  const most = largest * 1.04;
  const y = (value) => box.bottom - (Math.min(value, most) / most) * inner.height;
  chart.values(y, ticksTo(most, 5));
  const x = chart.events(events);
  const line = (values) => values.map((value, k) => `${k ? "L" : "M"}${x(k).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  chart.path(line(finite), { stroke: colours.decoded, "stroke-width": 3 });
  chart.path(line(series.spent), { stroke: colours.limit, "stroke-width": 1.4, "stroke-dasharray": "5 4" });
  if (figures.budget !== null) chart.line(box.left, y(figures.budget), box.right, y(figures.budget), { stroke: colours.bad, "stroke-width": 1.6 });
  spent(chart, picture, x);
  return chart.cursor(x);
}
