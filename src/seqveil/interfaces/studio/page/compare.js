// A few ways to release side by side at the same promise: asked for when the picture stands, one after another.

import { Refused, ask } from "./api.js";
import { $, cost, el, replace } from "./dom.js";

export class Compare {
  constructor(busy) {
    this.busy = busy;
    this.round = 0;
    this.found = null;
  }

  async want(asked, unit) {
    const mine = (this.round += 1);
    try {
      do {
        while (this.busy()) await new Promise((done) => setTimeout(done, 60));
        if (mine !== this.round) return;
        const found = await ask("/v1/page/compare", asked);
        if (mine !== this.round) return; // another setting was chosen meanwhile
        this.found = found;
        this.#draw(unit);
      } while (!this.found.complete);
    } catch (problem) {
      if (!(problem instanceof Refused)) throw problem; // the next picture says what is wrong
    }
  }

  #draw(unit) {
    const { ways, silent, complete } = this.found;
    const done = ways.filter((way) => way.decoded !== null).length;
    $("compare-progress").textContent = complete ? "" : `${done} of ${ways.length}, more to come`;
    const guess = { label: "the best guess, with no release at all", decoded: silent, late: 0 };
    const most = Math.max(silent, ...ways.map((way) => way.decoded ?? 0), 1e-9);
    const rows = [...ways, guess].map((way) => row(way, most, unit));
    const head = el("tr", {}, ...["way", unit === "wrong" ? "events that are wrong, on average" : `expected error${unit ? `, ${unit}` : ""}`].map((text) => el("th", { scope: "col" }, text)));
    replace($("compare"), el("table", {}, el("caption", { class: "unseen" }, "Ways to release at the same promise"), el("thead", {}, head), el("tbody", {}, ...rows)));
    $("compare").dataset.complete = String(complete);
  }
}

function row(way, most, unit) {
  const bar = el("span", { class: "bar" });
  bar.style.width = `calc((100% - 90px) * ${(way.decoded ?? 0) / most})`; // beside it the figure has room
  const value = el("span", {}, way.decoded === null ? "…" : cost(way.decoded, unit));
  const waits = way.late === 0 ? "" : ` (a release waits for ${way.late} more events)`;
  const name = way.chosen ? el("b", {}, `${way.label}${waits}, as chosen`) : `${way.label}${waits}`;
  return el("tr", { class: way.chosen ? "chosen" : "" }, el("th", { scope: "row" }, name), el("td", {}, bar, value));
}
