// Error against ε: a line for each mechanism, the chosen one thick, and the setting that is shown as a point on it.

import { Chart, ticksTo } from "./chart.js";
import { cost, palette, short, svg } from "./dom.js";

export const FEW = ["optimal", "tree", "balanced", "randomized_response", "crr"];
const DECODED = 2; // column of a point: the error after the online decoder, which costs nothing

export const keyOf = (each) => `${each.mechanism}/${each.batch}/${each.every}`;

export const nameOf = (each) =>
  each.mechanism + (each.batch > 1 ? `, ${each.batch} at a time` : "") + (each.every > 1 ? `, one release in ${each.every}` : "");

export function drawCurve(holder, picture, curves, chosen, unit) {
  const colours = palette();
  const known = [...curves.values()].filter((each) => each.points.length);
  const mine = known.find((each) => keyOf(each) === keyOf(chosen));
  const named = known.filter((each) => each !== mine && each.batch === 1 && each.every === 1 && FEW.includes(each.mechanism));
  const looks = looksOf(named, mine, colours);
  const legend = [...looks.values()];
  if (known.length > legend.length) legend.push({ name: "others (see the table)", colour: colours.grid, width: 1.4 });
  const chart = new Chart(holder, {
    height: 300, bottom: 46, left: 52, right: 16, top: 14, legend: [...legend, { name: "no release", colour: colours.limit, dashes: "2 4", width: 1.2 }],
    title: "Error against ε for each mechanism",
    description: `${known.length} mechanisms; the stream shown errs ${cost(picture.figures.decoded_error, unit)} at ε ${short(chosen.epsilon)}; a table follows`,
  });
  const { box, inner } = chart;
  const nothing = known[0]?.silent ?? picture.figures.silent_error;
  const most = 1.15 * Math.max(nothing, 1e-9);
  const [low, high] = [Math.log2(0.1), Math.log2(10)];
  const x = (epsilon) => box.left + ((Math.log2(epsilon) - low) / (high - low)) * inner.width;
  const y = (error) => box.bottom - (Math.min(error, most) / most) * inner.height;
  chart.values(y, ticksTo(most, 5), (value) => (unit === "wrong" ? `${Math.round(100 * value)} %` : short(value)));
  axis(chart, x);
  chart.line(box.left, y(nothing), box.right, y(nothing), { stroke: colours.limit, "stroke-dasharray": "2 4", "stroke-width": 1.2 });
  for (const each of known.sort((a, b) => looks.has(a) - looks.has(b) || (a === mine) - (b === mine))) {
    const { colour, width, dashes = "none" } = looks.get(each) ?? { colour: colours.grid, width: 1.4 };
    const d = each.points.map((point, k) => `${k ? "L" : "M"}${x(point[0]).toFixed(1)} ${y(point[DECODED]).toFixed(1)}`).join("");
    chart.path(d, { stroke: colour, "stroke-width": width, "stroke-dasharray": dashes }).append(svg("title", {}, nameOf(each)));
  }
  const at = mine && !limited(chosen) ? between(mine.points, chosen.epsilon) : null;
  if (at !== null) chart.add("circle", { cx: x(chosen.epsilon), cy: y(at), r: 6, fill: colours.accent, stroke: colours.surface, "stroke-width": 2 });
}

export const limited = (chosen) => chosen.budget !== null || chosen.window !== null;

function looksOf(named, mine, colours) {
  const paints = { optimal: colours.good, tree: colours.warn, balanced: colours.quiet, randomized_response: colours.raw, crr: colours.released };
  const looks = new Map();
  if (mine) looks.set(mine, { name: `${nameOf(mine)}, as chosen${mine.sound ? "" : " (not sound)"}`, colour: colours.accent, width: 3.2, dashes: mine.sound ? undefined : "4 3" });
  for (const each of named) looks.set(each, { name: nameOf(each) + (each.sound ? "" : " (not sound)"), colour: paints[each.mechanism], width: 1.8, dashes: each.sound ? undefined : "4 3" });
  return looks;
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

// the error on a curve at an ε between its points, or null outside
function between(points, epsilon) {
  const k = points.findIndex((point) => point[0] >= epsilon);
  if (k < 0 || (k === 0 && points[0][0] > epsilon)) return null;
  if (points[k][0] === epsilon) return points[k][DECODED];
  const [before, after] = [points[k - 1], points[k]];
  const part = Math.log(epsilon / before[0]) / Math.log(after[0] / before[0]);
  return before[DECODED] + part * (after[DECODED] - before[DECODED]);
}
