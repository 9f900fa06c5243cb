// The operator's view: counters of the service every two seconds, over all users together. The token is in memory alone.

import { Refused, ask, enter } from "./api.js";
import { Chart, ticksTo } from "./chart.js";
import { $, el, replace, short } from "./dom.js";
import { table } from "./tables.js";
import { themed } from "./theme.js";

const EVERY = 2000;
const KEPT = 150;
const history = []; // releases a second
let last = null;
let timer = 0;

async function look() {
  clearTimeout(timer);
  try {
    const now = await ask("/v1/operator");
    now.seen = performance.now() / 1000;
    if (last) history.push(Math.max(0, (now.releases - last.releases) / (now.seen - last.seen)));
    if (history.length > KEPT) history.shift();
    $("entry").hidden = true;
    $("board").hidden = false;
    const first = last === null;
    last = now;
    draw();
    if (first) $("summary").textContent = `The service is ${healthOf(now)}, with ${now.users} users.`;
  } catch (problem) {
    if (!(problem instanceof Refused)) throw problem;
    if (last === null || problem.status === 401 || problem.status === 403) return refuse(problem);
    verdict(false, "does not answer");
  }
  timer = setTimeout(look, document.hidden ? 5 * EVERY : EVERY);
}

function refuse(problem) {
  last = null;
  $("entry").hidden = false;
  $("board").hidden = true;
  $("problem").textContent = problem.message;
}

const healthOf = (now) => (now.health === "ok" ? "well" : `not well (${now.health})`);

function verdict(good, text) {
  $("verdict").textContent = text;
  $("verdict").className = `verdict ${good ? "good" : "bad"}`;
}

// the least edge that this share of the requests came within
function quantile(seconds, share) {
  const edges = Object.entries(seconds).map(([edge, count]) => [edge === "+Inf" ? Infinity : Number(edge), count]).sort((a, b) => a[0] - b[0]);
  const total = edges.at(-1)?.[1] ?? 0;
  if (!total) return "–";
  const edge = edges.find(([, count]) => count >= share * total)[0];
  return Number.isFinite(edge) ? `≤ ${short(1000 * edge)} ms` : "> 5 s";
}

function span(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

function draw() {
  if (!last) return;
  const now = last;
  verdict(now.health === "ok", now.health === "ok" ? "healthy" : now.health);
  const refused = Object.values(now.refusals).reduce((sum, count) => sum + count, 0);
  const shown = [
    ["Releases a second", history.length ? short(history.at(-1)) : "–", "over the last two seconds"],
    ["Released", short(now.releases, 6), `${short(now.replays, 6)} asked for again`],
    ["Users", short(now.users, 6), "with at least one event"],
    ["Refused", short(refused, 6), "requests since the start"],
    ["Waiting", short(now.waiting, 6), "events not yet on the disk"],
    ["A request takes", quantile(now.seconds, 0.5), `${quantile(now.seconds, 0.99)} for 99 in 100`],
  ];
  replace($("figures"), ...shown.map(([name, value, more]) => el("div", {}, el("dt", {}, name), el("dd", {}, value, el("small", {}, more)))));
  const { mechanism, epsilon, batch } = now.setting;
  $("setting").textContent = `${mechanism} at ε ${short(epsilon)} a ${batch > 1 ? `batch of ${batch}` : "release"}, up for ${span(now.uptime)}, seqveil ${now.seqveil}${now.private ? "" : ", NOT PRIVATE: seeded coins"}`;
  drawRate($("rate"));
  drawSpread($("spread"), now.spread);
  const rows = Object.entries(now.refusals).sort((a, b) => b[1] - a[1]);
  replace($("refusals"), table("Refusals by reason", ["reason", "requests"], rows.length ? rows.map(([reason, count]) => [reason, short(count, 6)]) : [["none", 0]]));
}

function drawRate(holder) {
  const chart = new Chart(holder, { height: 200, left: 56, top: 16, title: "Releases a second", description: `now ${short(history.at(-1) ?? 0)}` });
  const { box, inner, colours } = chart;
  const most = 1.1 * Math.max(1, ...history);
  const y = (rate) => box.bottom - (rate / most) * inner.height;
  const x = (k) => box.right - ((history.length - 1 - k) / (KEPT - 1)) * inner.width;
  chart.values(y, ticksTo(most, 4));
  chart.text(box.left, box.bottom + 17, "5 minutes ago");
  chart.text(box.right, box.bottom + 17, "now", { "text-anchor": "end" });
  const d = history.map((rate, k) => `${k ? "L" : "M"}${x(k).toFixed(1)} ${y(rate).toFixed(1)}`).join("");
  if (d) chart.path(`${d}L${box.right} ${box.bottom}L${x(0)} ${box.bottom}Z`, { fill: colours.decoded, "fill-opacity": 0.14 });
  if (d) chart.path(d, { stroke: colours.decoded, "stroke-width": 2.2 });
}

function drawSpread(holder, { edges, counts, budget, age }) {
  const names = counts.map((_, k) => name(k, edges, budget));
  $("age").textContent = `looked up ${span(age)} ago`;
  const chart = new Chart(holder, { height: 240, left: 48, top: 26, bottom: 44, title: "Leakage of users’ streams", description: `${counts.length} groups of users; a table follows` });
  const { box, inner, colours } = chart;
  const most = 1.1 * Math.max(1, ...counts);
  const y = (count) => box.bottom - (count / most) * inner.height;
  chart.values(y, ticksTo(most, 4).filter(Number.isInteger));
  chart.text(chart.box.left, chart.box.top - 10, "users", { "font-weight": 600 });
  const wide = inner.width / counts.length;
  counts.forEach((count, k) => {
    const over = budget !== null && k === counts.length - 1;
    chart.add("rect", { x: box.left + k * wide + 2, y: y(count), width: wide - 4, height: box.bottom - y(count), fill: over ? colours.bad : colours.decoded, rx: 2 });
    if (wide > 30 || k % 2 === 0) chart.text(box.left + (k + 0.5) * wide, box.bottom + 16, names[k], { "text-anchor": "middle", "font-size": 10 });
  });
  chart.text(box.right, box.bottom + 34, budget === null ? "nats, at most" : `share of the budget of ${short(budget)} nats, at most`, { "text-anchor": "end" });
  replace($("spread-table"), table("Users by leakage", ["at most", "users"], names.map((edge, k) => [edge, counts[k]])));
}

function name(k, edges, budget) {
  if (k === edges.length) return budget === null ? "more" : "over";
  return budget === null ? short(edges[k]) : `${10 * (k + 1)} %`;
}

$("entry").addEventListener("submit", (event) => {
  event.preventDefault();
  $("problem").textContent = "";
  enter($("entry-key").value);
  $("entry-key").value = "";
  look();
});
document.addEventListener("visibilitychange", () => {
  if (last && !document.hidden) look();
});
themed(draw);
