// The promise as odds: what a suspicion of 10 % may become, and the ε that allows no more. The server says it in words.

import { $, el, replace } from "./dom.js";

const SUSPICION = 0.1;
const LEAST = 0.05;
const RATIO = 8 / LEAST;
const STEPS = 240;
const TICKS = [0.11, 0.15, 0.25, 0.5, 0.9];

// a suspicion after its odds moved by e^log
export const moved = (log, before = SUSPICION) => 1 / (1 + ((1 - before) / before) * Math.exp(-log));

// the most that a suspicion becomes by releases of this leakage: odds of anything move by both sides of it together
export const leaked = (up, down = up) => moved(up + down);

const forOdds = (limit) => Math.log(limit / (1 - limit)) - Math.log(SUSPICION / (1 - SUSPICION));
const forLeakage = (limit) => forOdds(limit) / 2;

// three figures, rounded down so that a bound stays one
function down(value) {
  const scale = 10 ** (2 - Math.floor(Math.log10(value)));
  return Number((Math.floor(Number((value * scale).toFixed(6))) / scale).toPrecision(3));
}

const fromSlider = (at) => Number((LEAST * RATIO ** (at / STEPS)).toPrecision(3));
const toSlider = (epsilon) => Math.round((STEPS * Math.log(Math.min(8, Math.max(epsilon, LEAST)) / LEAST)) / Math.log(RATIO));

// per cent as people read it; one that is "at most" is rounded up, and one that is "at least" down
export const percentUp = (share) => rounded(share, Math.ceil);
export const percentDown = (share) => rounded(share, Math.floor);

function rounded(share, how) {
  const points = 100 * share;
  const scale = points >= 10 && points <= 99 ? 1 : 10 ** (points >= 1 || points <= 0 ? 1 : 1 - Math.floor(Math.log10(points)));
  return `${Number((how(Number((points * scale).toFixed(6))) / scale).toPrecision(4))} %`;
}

export const percent = (share) => (share > 0.99 ? `${(100 * share).toPrecision(3)} %` : share < 0.1 ? `${Number((100 * share).toPrecision(2))} %` : `${Math.round(100 * share)} %`);

const KINDS = {
  secret: { becomes: (epsilon) => moved(epsilon), needs: (limit) => forOdds(limit), label: "ε of the secret, in total" },
  whole: { becomes: (epsilon) => leaked(epsilon), needs: (limit) => forLeakage(limit), label: "ε of the whole stream, in total" },
  event: {
    becomes: (epsilon, carries) => leaked(epsilon * carries), needs: (limit, carries) => forLeakage(limit) / carries, label: "ε an event, on average",
  },
};

// The three controls that say the same: slider, odds and ε. `carries` is how many events' ε one release carries.
export class Dial {
  constructor(carries, changed) {
    this.kind = "event";
    this.carries = carries;
    const said = (epsilon, from) => {
      this.show(epsilon, from);
      changed();
    };
    $("epsilon-slider").addEventListener("input", () => said(fromSlider(Number($("epsilon-slider").value)), "epsilon-slider"));
    $("epsilon").addEventListener("input", () => said(Number($("epsilon").value), "epsilon"));
    $("odds").addEventListener("input", () => {
      const limit = Number($("odds").value) / 100;
      if (limit > SUSPICION && limit < 1) said(this.#needs(limit), "odds");
      else changed();
    });
  }

  become(kind) {
    this.kind = kind;
    $("epsilon-label").textContent = KINDS[kind].label;
  }

  show(epsilon, from = "") {
    if (from !== "epsilon-slider") $("epsilon-slider").value = String(toSlider(epsilon));
    if (from !== "epsilon") $("epsilon").value = String(epsilon);
    const share = 100 * KINDS[this.kind].becomes(epsilon, this.carries());
    if (from !== "odds") $("odds").value = String(Math.min(99.99, Math.ceil(Number((share * 10).toFixed(4))) / 10));
    $("epsilon-slider").setAttribute("aria-valuetext", `at most ${$("odds").value} %, ε ${epsilon}`);
    this.#ticks();
  }

  allow(limit) {
    this.show(this.#needs(limit));
  }

  #needs(limit) {
    return down(KINDS[this.kind].needs(limit, this.carries()));
  }

  get epsilon() {
    return Number($("epsilon").value);
  }

  #ticks() {
    const marks = TICKS.map((limit) => {
      const at = toSlider(KINDS[this.kind].needs(limit, this.carries()));
      const mark = el("span", {}, `${Math.round(100 * limit)} %`);
      mark.style.left = `calc(${(100 * at) / STEPS}% + ${8 - (16 * at) / STEPS}px)`; // as far as the thumb goes
      return [at, mark];
    });
    const room = (STEPS * 36) / Math.max($("odds-ticks").clientWidth, 200); // that a mark takes
    let last = -Infinity;
    const apart = marks.filter(([at]) => at - last > room && (last = at) >= 0);
    replace($("odds-ticks"), ...apart.map(([, mark]) => mark));
  }
}
