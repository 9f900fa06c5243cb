// What other ways to release are expected to err, at the same promise and at other ε: asked for one after another when
// the picture stands, and never while somebody waits for a picture.

import { Refused, ask } from "./api.js";
import { drawCurve } from "./curve.js";
import { $, cost, el, replace } from "./dom.js";

const EPSILONS = [0.125, 0.25, 0.5, 1, 2, 4, 8];
const FEW = ["optimal", "balanced", "randomized_response", "crr"];
const BATCH = 5;
const BLOCK = 10;
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

export class Compare {
  constructor(busy) {
    this.busy = busy;
    this.known = new Map(); // request → answer; its error is null where the policy does not go
    this.round = 0;
  }

  // the ways at this promise, then the curves, drawn as they come; `chosen` is the mechanism that the policy has
  async want(source, asked, chosen, mechanisms, unit) {
    const mine = (this.round += 1);
    const [ways, curves] = [waysOf(source, asked.policy, chosen), asked.policy.secret ? [] : curvesOf(asked.policy, chosen, mechanisms)];
    const policies = [...ways, ...curves.flatMap((each) => each.points)].map((each) => each.policy);
    const left = () => policies.filter((policy) => this.#known(asked.source, policy) === undefined);
    const draw = () => this.#draw(asked, ways, curves, left().length, unit);
    draw();
    try {
      while (left().length) {
        while (this.busy()) await pause(60);
        if (mine !== this.round) return; // another setting was chosen meanwhile
        const policy = left()[0];
        this.known.set(JSON.stringify([asked.source, policy]), await ask("expect", { source: asked.source, policy }));
        if (mine === this.round) draw();
      }
    } catch (problem) {
      if (!(problem instanceof Refused)) throw problem; // the next picture says what is wrong
    }
  }

  #known(source, policy) {
    return this.known.get(JSON.stringify([source, policy]));
  }

  #draw(asked, ways, curves, left, unit) {
    const answer = (policy) => this.#known(asked.source, policy);
    const shown = ways.filter((way) => answer(way.policy)?.error !== null);
    const silent = shown.map((way) => answer(way.policy)?.silent).find((each) => each !== undefined);
    const rows = shown.map((way) => ({ ...way, error: answer(way.policy)?.error ?? null, below: answer(way.policy)?.below }));
    if (silent !== undefined) rows.push({ label: "the best guess, with no release at all", error: silent });
    $("by-answer").textContent = byAnswer(answer(ways[0].policy)?.by_answer, unit);
    const most = Math.max(...rows.map((way) => way.error ?? 0), 1e-9);
    const what = unit === "wrong" ? "events that are wrong, on average" : `expected error${unit ? `, ${unit}` : ""}`;
    const head = el("tr", {}, ...["way", what].map((text) => el("th", { scope: "col" }, text)));
    replace($("compare"), el("table", {}, el("caption", { class: "unseen" }, "Ways to release at the same promise"), el("thead", {}, head), el("tbody", {}, ...rows.map((way) => row(way, most, unit)))));
    $("compare-progress").textContent = left ? `${left} more to come` : "";
    this.curves = curves.map((each) => ({ ...each, points: each.points.filter((point) => typeof answer(point.policy)?.error === "number").map((point) => [point.epsilon, answer(point.policy).error]) }));
    if (curves.length) drawCurve($("curve"), this.curves.filter((each) => each.points.length), silent ?? 1, unit);
    $("compare").dataset.complete = String(!left);
  }
}

// what a secret costs people of each answer to it
function byAnswer(errors = [], unit) {
  if (!errors.length) return "";
  const what = (error) => (unit === "wrong" ? `${cost(error, unit)} of events are wrong` : `an event errs by ${cost(error, unit)} ${unit}`);
  return `As released: ${errors.map(([whose, error]) => `for ${whose}, ${what(error)}`).join("; ")}.`;
}

// the chosen way first, then others that promise the same; the same one is not named twice
function waysOf(source, policy, chosen) {
  const label = `${chosen}${policy.batch > 1 ? `, in batches of ${policy.batch}` : ""}${policy.block > 1 ? ` of ${policy.block}` : ""}`;
  const others = policy.secret ? forSecret(source, policy) : forEvents(policy);
  return [{ label, policy, chosen: true, waits: (policy.batch ?? 1) - 1 }, ...others.filter((way) => way.label !== label)];
}

// the same ε an event, and the same budgets
function forEvents({ distortion, epsilon, batch = 1, block = 1, budget }) {
  const made = (mechanism, size, sharing = "batch") => ({
    distortion, mechanism, ...(size > 1 ? { [sharing]: size } : {}),
    ...(epsilon === undefined ? {} : { epsilon: (epsilon / batch / block) * size }),
    ...(budget ? { budget: { ...budget, when_spent: "hold", ...(budget.over ? { over: Math.ceil((budget.over * batch) / size) } : {}) } } : {}),
  });
  return [
    { label: "optimal", policy: made("optimal", 1) },
    ...(epsilon === undefined ? [] : [{ label: `blocks of ${BLOCK}`, policy: made("blocks", BLOCK, "block") }]),
    { label: `tree, in batches of ${BATCH}`, policy: made("tree", BATCH), waits: BATCH - 1 },
    { label: "randomized_response", policy: made("randomized_response", 1) },
  ];
}

// what keeps the same secret as well by protecting everything: half its ε in total, since odds move by e^2ε
function forSecret(source, { distortion, secret: [secret] }) {
  const [total, runs] = [secret.epsilon / 2, typeof secret.window === "number"];
  const budget = runs ? { window: { epsilon: total, releases: secret.window } } : { total };
  const spread = total / (runs ? secret.window : source.length);
  const way = (label, mechanism, epsilon) => ({ label, policy: { distortion, mechanism, epsilon, budget } });
  return [
    way("optimal, protecting everything, a little at each event", "optimal", spread),
    way("optimal, protecting everything, all ε at once", "optimal", total),
    way("randomized_response, protecting everything", "randomized_response", spread),
  ];
}

// a curve for each mechanism that fits single events, the chosen one first
function curvesOf({ distortion, batch = 1, block = 1 }, chosen, mechanisms) {
  const sound = (name) => mechanisms.find((each) => each.name === name)?.sound ?? true;
  const [size, sharing] = block > 1 ? [block, "block"] : [batch, "batch"];
  const own = { name: `${chosen}${size > 1 ? `, ${size} at a time` : ""}`, mechanism: chosen, size, sharing, chosen: true };
  const others = FEW.filter((name) => size > 1 || name !== chosen).map((name) => ({ name, mechanism: name, size: 1 }));
  const policy = (each, epsilon) => ({ distortion, mechanism: each.mechanism, epsilon: epsilon * each.size, ...(each.size > 1 ? { [each.sharing]: each.size } : {}) });
  return [own, ...others].map((each) => ({ ...each, sound: sound(each.mechanism), points: EPSILONS.map((epsilon) => ({ epsilon, policy: policy(each, epsilon) })) }));
}

function row(way, most, unit) {
  const bar = el("span", { class: "bar" });
  bar.style.width = `calc((100% - 90px) * ${(way.error ?? 0) / most})`; // beside it the figure has room
  const unseen = way.error === 0 && unit === "wrong"; // among too few people to see an error at all
  const value = el("span", {}, way.error === null ? "…" : unseen ? `below ${cost(way.below, unit)}` : cost(way.error, unit));
  const waits = way.waits ? ` (a release waits for ${way.waits} more events)` : "";
  const name = way.chosen ? el("b", {}, `${way.label}${waits}, as chosen`) : `${way.label}${waits}`;
  return el("tr", { class: way.chosen ? "chosen" : "" }, el("th", { scope: "row" }, name), el("td", {}, bar, value));
}
