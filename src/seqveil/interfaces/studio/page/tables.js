// The tables behind the pictures, made when somebody opens them.

import { el, short } from "./dom.js";
import { probability } from "./heat.js";
import { suspicions, times } from "./odds.js";
import { percent } from "./promise.js";

export function table(caption, heads, rows) {
  const head = el("tr", {}, ...heads.map((text) => el("th", { scope: "col" }, text)));
  const body = rows.map((row) => el("tr", {}, ...row.map((text) => el("td", {}, String(text)))));
  return el("table", {}, el("caption", { class: "unseen" }, caption), el("thead", {}, head), el("tbody", {}, ...body));
}

export const tables = {
  stage({ source, picture }) {
    const name = (code) => (code < 0 ? "–" : source.labels[code]);
    const { series } = picture;
    const rows = series.raw.map((code, k) => [k + 1, name(code), name(series.released[k]), name(series.decoded[k]), short(series.epsilons[k])]);
    return table("Events raw, released and decoded", ["event", "raw", "released", "decoded", "ε"], rows);
  },

  heat({ source, picture }) {
    const symbols = source.labels.length;
    const rows = picture.series.raw.map((code, k) => {
      const distribution = picture.heat.subarray(k * symbols, (k + 1) * symbols);
      const best = distribution.indexOf(Math.max(...distribution));
      return [k + 1, source.labels[best], probability(distribution[best]).toFixed(2), source.labels[code], probability(distribution[code]).toFixed(2)];
    });
    return table("What an observer believes", ["event", "likeliest", "probability", "truth", "its probability"], rows);
  },

  odds({ source, picture }) {
    const { secret } = picture;
    const heads = secret ? ["event", "log odds", "odds", "a suspicion of 10 %"] : ["event", "a suspicion of 10 %, at least", "at most"];
    const rows = suspicions(picture).map(([least, likely, most], k) =>
      secret ? [k + 1, secret.odds[k].toFixed(3), times(secret.odds[k]), percent(likely)] : [k + 1, percent(least), percent(most)]);
    return table("What becomes of a suspicion of 10 %", heads, rows);
  },

  account({ source, picture }) {
    const { series } = picture;
    const rows = series.spent.map((spent, k) => [k + 1, short(series.leakage[k], 4), short(series.most[k], 4), short(series.least[k], 4), short(spent, 4)]);
    return table("Leakage so far in nats", ["event", "exact", "up", "down", "Σε"], rows);
  },
};
