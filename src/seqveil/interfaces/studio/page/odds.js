// The odds of the secret after each release, within the band that they never leave.

import { Chart } from "./chart.js";
import { short } from "./dom.js";
import { margin } from "./stage.js";

const SUSPICION = 0.25; // that the sentence takes as its example

// what a log odds does to odds, as people say it
export const times = (odds) => `${odds < 0 ? "÷" : "×"} ${short(Math.exp(Math.abs(odds)))}`;

export const suspicion = (odds) => 1 / (1 + ((1 - SUSPICION) / SUSPICION) * Math.exp(-odds));

export function drawOdds(holder, source, picture) {
  const { secret, events, done } = picture;
  const { epsilon, odds } = secret;
  const chart = new Chart(holder, {
    height: 240, left: margin(holder.clientWidth) < 90 ? 56 : 64, right: 64, top: 30, title: `The odds that ${secret.name} occurs`,
    description: `after ${done} events: ${times(odds.at(-1))}; they stay between ${times(-epsilon)} and ${times(epsilon)}; a table follows`,
  });
  const { box, inner, colours } = chart;
  const most = 1.2 * epsilon;
  const y = (value) => box.bottom - ((Math.max(-most, Math.min(value, most)) + most) / (2 * most)) * inner.height;
  chart.add("rect", { x: box.left, y: y(epsilon), width: inner.width, height: y(-epsilon) - y(epsilon), fill: colours.sunk });
  chart.text(0, 12, "odds", { "font-weight": 600 });
  chart.text(chart.width, 12, "a suspicion of 25 %", { "text-anchor": "end", "font-weight": 600 });
  [-epsilon, 0, epsilon].forEach((level, k) => {
    chart.line(box.left, y(level), box.right, y(level), level ? { stroke: colours.limit, "stroke-dasharray": "5 4" } : { stroke: colours.line });
    chart.text(box.left - 8, y(level) + 4, times(level), { "text-anchor": "end" });
    chart.text(box.right + 8, y(level) + 4, secret.suspicions[k]);
  });
  const x = chart.events(events, source.event);
  const line = odds.map((value, k) => `${k ? "L" : "M"}${x(k).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  chart.path(line, { stroke: colours.decoded, "stroke-width": 2.4 });
  return chart.cursor(x);
}
