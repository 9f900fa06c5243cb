// The controls: from what is typed to a source and a policy, and back.

import { $, el, options, replace } from "./dom.js";
import { Dial } from "./promise.js";
import { arrange, keepsSecret, listenToSecret, offerSecrets, secretTable, startOf, suspected } from "./secret.js";

const EVENTS = [50, 100, 200, 500, 1000];
const USUAL = 200;
const COSTS = {
  hamming: "1 if wrong", absolute: "its size", squared: "its square", euclidean: "its distance", metres: "its metres",
};
const SEEN = { public: "everybody", partner: "a partner", team: "your team" };
const CHOSEN = ["", "as the policy chooses"];

let source = null;
let dial = null;

export function offerSources(list, chosen) {
  options($("source"), list.map((each) => [each.name, each.title]), chosen);
}

// what a source brings with it: its people, costs and proposal
export function adopt(found) {
  source = found;
  $("about").textContent = source.about;
  offerSecrets(source);
  offerPeople("");
  const longest = Math.min(Math.max(...source.lengths), source.most);
  const counts = [...EVENTS.filter((count) => count < longest), longest];
  options($("events"), counts.map((count) => [count, String(count)]), counts.filter((count) => count <= USUAL).at(-1) ?? counts[0]);
  options($("distortion"), source.distortions.map((name) => [name, COSTS[name]]), source.start.distortion);
  options($("mechanism"), [CHOSEN, [source.start.mechanism ?? "", source.start.mechanism ?? ""]].slice(0, source.start.mechanism ? 2 : 1), source.start.mechanism ?? "");
  $("batch").value = 1;
  $("budget").value = $("window").value = "";
  $("when-spent").value = "hold";
  dial.become(arrange());
  dial.show(source.start.epsilon);
}

function offerPeople(chosen = $("person").value) {
  const somebody = keepsSecret() ? "somebody who has the secret" : "the first of them";
  options($("person"), [["", somebody], ...source.lengths.map((_, k) => [k, `person ${k + 1}`])], chosen);
}

// the mechanisms that fit; one that does not gives way to what the policy chooses. Whether it had to
export function offerMechanisms(list) {
  const [chosen, fit] = [$("mechanism").value, list.filter((each) => !each.why_not)];
  options($("mechanism"), [CHOSEN, ...fit.map((each) => [each.name, each.name + (each.sound ? "" : " (not sound)")])], chosen);
  const others = list.filter((each) => each.why_not);
  replace($("unfit"), ...others.map((each) => el("li", {}, el("b", {}, each.name), `: ${each.why_not}`)));
  return $("mechanism").value !== chosen;
}

export function tellMechanism(list, name) {
  const found = list.find((each) => each.name === name);
  $("mechanism-promise").textContent = found ? `${found.name}: ${found.summary}. ${found.sound ? found.guarantee : "Not sound: its true leakage is shown."}` : "";
}

const optional = (id) => ($(id).value.trim() === "" ? null : Number($(id).value));

// what is asked for: a source, a policy as its file has it, and what of it is shown
export function read() {
  $("odds-what").textContent = suspected(dial.kind);
  const person = $("person").value === "" ? null : Number($("person").value);
  return { source: $("source").value, policy: policy(), person, events: Number($("events").value), seed: Number($("seed").value) };
}

function policy() {
  const costs = { distortion: $("distortion").value };
  if (dial.kind === "secret") {
    const each = optional("secret-each");
    return { ...costs, ...(each === null ? {} : { epsilon: each }), secret: [secretTable(source, dial.epsilon)] };
  }
  const [batch, mechanism] = [Number($("batch").value), $("mechanism").value];
  const made = { ...costs, ...(batch > 1 ? { [$("sharing").value]: batch } : {}), ...(mechanism ? { mechanism } : {}) };
  const count = Math.ceil(source.length / batch); // of releases that carry an ε
  const spread = made.block ? {} : { over: count }; // a block has its own ε
  const budget = limits(dial.kind === "whole" ? { total: dial.epsilon, ...spread } : {});
  if (dial.kind === "event") made.epsilon = Number((dial.epsilon * batch).toPrecision(6));
  else if (made.block) made.epsilon = Number((dial.epsilon / count).toPrecision(6));
  return Object.keys(budget).length ? { ...made, budget } : made;
}

function limits(budget) {
  const [total, window] = [optional("budget"), optional("window")];
  if (total !== null && dial.kind === "event") budget.total = total;
  if (window !== null) budget.window = { epsilon: window, releases: Number($("window-releases").value) };
  if (Object.keys(budget).length && $("when-spent").value === "stop") budget.when_spent = "stop";
  return budget;
}

// who sees it leads to a promise
export function offerWishes(seenBy, changed) {
  const buttons = Object.entries(seenBy).map(([name, limit]) => {
    const button = el("button", { type: "button" }, `${SEEN[name] ?? name}: ${Math.round(100 * limit)} %`);
    button.addEventListener("click", () => {
      dial.allow(limit);
      changed();
    });
    return button;
  });
  replace($("seen-by"), $("seen-by-label"), ...buttons);
}

export function listen(changed) {
  dial = new Dial(() => Number($("batch").value || 1), changed);
  for (const id of ["person", "events", "mechanism", "sharing", "distortion", "when-spent"]) $(id).addEventListener("change", changed);
  $("batch").addEventListener("input", () => {
    dial.show(dial.epsilon); // what one release carries has changed, so its odds have
    changed();
  });
  for (const id of ["budget", "window", "window-releases", "seed"]) $(id).addEventListener("input", changed);
  listenToSecret(
    () => {
      arrange();
      changed();
    },
    () => {
      const before = dial.kind;
      dial.become(arrange());
      dial.show(dial.kind === before ? dial.epsilon : startOf(dial.kind, source));
      offerPeople();
      changed();
    },
  );
  $("controls").addEventListener("submit", (event) => event.preventDefault());
}

export const sensible = () => $("controls").checkValidity();
