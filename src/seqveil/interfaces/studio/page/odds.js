// What becomes of a suspicion of 10 % after each release: of the secret within its band, or of anything at all at worst.

import { Chart } from "./chart.js";
import { palette, short } from "./dom.js";
import { leaked, moved, percent, percentDown, percentUp } from "./promise.js";
import { margin, spent } from "./stage.js";

// what a log odds does to odds, as people say it
export const times = (odds) => `${odds < 0 ? "÷" : "×"} ${short(Math.exp(Math.abs(odds)))}`;

// for each event the least, the likely and the most that the suspicion can be
export function suspicions(picture) {
  const { secret, series } = picture;
  if (secret) return secret.odds.map((odds) => [moved(-secret.epsilon), moved(odds), moved(secret.epsilon)]);
  return series.most.map((up, k) => {
    const [above, below] = [up ?? Infinity, -(series.least[k] ?? -Infinity)];
    return [moved(-above - below), null, leaked(above, below)];
  });
}

export function drawOdds(holder, source, picture) {
  const { secret, figures, events, done } = picture;
  const colours = palette();
  const shares = suspicions(picture);
  const last = shares.at(-1);
  const what = secret
    ? `the odds of the secret are now ${times(secret.odds.at(-1))}; they stay between ${times(-secret.epsilon)} and ${times(secret.epsilon)}`
    : `whatever it is about, it is between ${percentDown(last[0])} and ${percentUp(last[2])} by now`;
  const legend = secret
    ? [{ name: "after what was released", colour: colours.decoded, width: 2.6 }, { name: "never outside", colour: colours.limit, width: 1.4, dashes: "5 4" }]
    : [{ name: "at most, and at least, whatever it is about", colour: colours.decoded, width: 2.6 }];
  if (!secret && figures.budget !== null) legend.push({ name: "the budget allows", colour: colours.limit, width: 1.4, dashes: "5 4" });
  const chart = new Chart(holder, {
    height: 250, left: margin(holder.clientWidth), right: 46, top: 14, legend,
    title: "What becomes of a suspicion of 10 %", description: `after ${done} events ${what}; a table follows`,
  });
  const { box, inner } = chart;
  const most = secret ? Math.min(1, Math.max(0.2, moved(secret.epsilon) * 1.25)) : 1;
  const y = (share) => box.bottom - (share / most) * inner.height;
  const step = most > 0.5 ? 0.25 : most > 0.3 ? 0.1 : 0.05;
  chart.values(y, Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, k) => k * step), (share) => `${Math.round(100 * share)} %`);
  const x = chart.events(events);
  const line = (at) => shares.map((each, k) => `${k ? "L" : "M"}${x(k).toFixed(1)} ${y(each[at]).toFixed(1)}`).join("");
  const area = line(2) + shares.map((_, k) => shares.length - 1 - k).map((k) => `L${x(k).toFixed(1)} ${y(shares[k][0]).toFixed(1)}`).join("");
  if (!secret) chart.path(`${area}Z`, { fill: colours.sunk, stroke: "none" });
  else chart.add("rect", { x: box.left, y: y(last[2]), width: inner.width, height: y(last[0]) - y(last[2]), fill: colours.sunk });
  const limits = secret ? [last[0], last[2]] : figures.budget === null ? [] : [leaked(figures.budget)];
  for (const limit of limits) {
    chart.line(box.left, y(limit), box.right, y(limit), { stroke: colours.limit, "stroke-dasharray": "5 4", "stroke-width": 1.4 });
    chart.text(box.right + 6, y(limit) + 4, limit < 0.1 ? percentDown(limit) : percentUp(limit));
  }
  chart.line(box.left, y(0.1), box.right, y(0.1), { stroke: colours.quiet, "stroke-width": 0.8 });
  for (const at of secret ? [1] : [0, 2]) chart.path(line(at), { stroke: colours.decoded, "stroke-width": 2.4 });
  if (!secret) spent(chart, picture, x);
  return chart.cursor(x);
}

// the picture in a sentence
export function tellOdds(picture) {
  const shares = suspicions(picture);
  if (picture.secret) {
    const [least, now, most] = shares.at(-1);
    return `A suspicion of 10 % that it is so is ${percent(now)} after the events shown; it stays between ${percentDown(least)} and ${percentUp(most)} whatever is released.`;
  }
  const certain = shares.findIndex((each) => each[2] > 0.99);
  if (certain >= 0) return `After ${certain + 1} ${certain ? "events" : "event"} there may be something that was suspected at 10 % and is now as good as certain.`;
  return `After ${shares.length} events nothing that was suspected at 10 % can be suspected at more than ${percentUp(shares.at(-1)[2])}.`;
}
