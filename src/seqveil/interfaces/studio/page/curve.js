// Error against ε: a line for each mechanism, the chosen one thick.

import { Chart, ticksTo } from "./chart.js";
import { cost, palette, short, svg } from "./dom.js";

export function drawCurve(holder, curves, silent, unit) {
  const colours = palette();
  const paints = { optimal: colours.good, balanced: colours.quiet, randomized_response: colours.raw, crr: colours.released };
  const looks = curves.map((each) => ({
    name: `${each.name}${each.chosen ? ", as chosen" : ""}${each.sound ? "" : " (not sound)"}`,
    colour: each.chosen ? colours.accent : paints[each.mechanism], width: each.chosen ? 3.2 : 1.8, dashes: each.sound ? "none" : "4 3",
  }));
  const chart = new Chart(holder, {
    height: 300, bottom: 46, left: 52, right: 16, top: 14, legend: [...looks, { name: "no release", colour: colours.limit, dashes: "2 4", width: 1.2 }],
    title: "Error against ε for each mechanism",
    description: `${curves.length} mechanisms; with no release at all the error is ${cost(silent, unit)}; a table follows`,
  });
  const { box, inner } = chart;
  const most = 1.15 * Math.max(silent, 1e-9);
  const [low, high] = [Math.log2(0.1), Math.log2(10)];
  const x = (epsilon) => box.left + ((Math.log2(epsilon) - low) / (high - low)) * inner.width;
  const y = (error) => box.bottom - (Math.min(error, most) / most) * inner.height;
  chart.values(y, ticksTo(most, 5), (value) => (unit === "wrong" ? `${Math.round(100 * value)} %` : short(value)));
  axis(chart, x);
  chart.line(box.left, y(silent), box.right, y(silent), { stroke: colours.limit, "stroke-dasharray": "2 4", "stroke-width": 1.2 });
  curves.forEach((each, k) => {
    const d = each.points.map(([epsilon, error], at) => `${at ? "L" : "M"}${x(epsilon).toFixed(1)} ${y(error).toFixed(1)}`).join("");
    chart.path(d, { stroke: looks[k].colour, "stroke-width": looks[k].width, "stroke-dasharray": looks[k].dashes }).append(svg("title", {}, each.name));
  });
}

function axis(chart, x) {
  const { box, inner, colours } = chart;
  chart.line(box.left, box.bottom, box.right, box.bottom, { stroke: colours.line });
  for (const tick of [0.125, 0.25, 0.5, 1, 2, 4, 8]) {
    chart.line(x(tick), box.bottom, x(tick), box.bottom + 4, { stroke: colours.line });
    if (inner.width > 300 || ![0.25, 2].includes(tick)) chart.text(x(tick), box.bottom + 17, String(tick), { "text-anchor": "middle" });
  }
  chart.text((box.left + box.right) / 2, box.bottom + 36, "ε an event", { "text-anchor": "middle" });
}
