// The controls: from what is typed to what is asked for, and back.

import { $, el, options, replace } from "./dom.js";
import { Dial } from "./promise.js";
import { arrange, listenToSecret, offerSecrets, secretAsked, startOf, suspected } from "./secret.js";

const EVENTS = [50, 100, 200, 500, 1000];
const COSTS = {
  hamming: "1 if wrong", absolute: "its size", squared: "its square", euclidean: "its distance", metres: "its metres",
};

const SEEN = { public: "everybody", partner: "a partner", team: "your team" };

let source = null;
let dial = null;

export function offerSources(list, chosen) {
  options($("source"), list.map((each) => [each.name, each.title]), chosen);
}

// what a source brings with it: its streams, costs and proposal
export function adopt(found) {
  source = found;
  $("about").textContent = source.about;
  offerSecrets(source);
  const start = { mechanism: "optimal", every: 1, batch: 1, budget: null, window: null, window_releases: null, when_spent: "hold", stream: 0, events: 200, ...source.start };
  options($("stream"), source.lengths.map((_, k) => [k, String(k + 1)]), start.stream);
  offerEvents(source, start.events);
  options($("distortion"), source.distortions.map((name) => [name, COSTS[name]]), start.distortion);
  if (![...$("mechanism").options].some((each) => each.value === start.mechanism)) $("mechanism").append(el("option", { value: start.mechanism }, start.mechanism));
  $("mechanism").value = start.mechanism;
  for (const name of ["every", "batch", "budget", "window"]) $(name).value = start[name] ?? "";
  if (start.window_releases) $("window-releases").value = start.window_releases;
  $("when-spent").value = start.when_spent;
  dial.become(arrange());
  dial.show(start.epsilon);
}

export function offerEvents(found, wanted = Number($("events").value)) {
  const length = found.lengths[Number($("stream").value)];
  const counts = [...new Set([...EVENTS.filter((count) => count < length), Math.min(length, 1000)])];
  const fitting = counts.filter((count) => count <= wanted).at(-1) ?? counts[0];
  options($("events"), counts.map((count) => [count, String(count)]), fitting);
}

let known = []; // mechanisms as last offered

export function offerMechanisms(list, chosen) {
  known = list;
  const fit = list.filter((each) => !each.why_not);
  options($("mechanism"), fit.map((each) => [each.name, each.name + (each.sound ? "" : " (not sound)")]), chosen);
  const found = list.find((each) => each.name === $("mechanism").value);
  $("mechanism-promise").textContent = found ? `${found.summary}. ${found.sound ? found.guarantee : "Not sound: its true leakage is shown."}` : "";
  const others = list.filter((each) => each.why_not);
  replace($("unfit"), ...others.map((each) => el("li", {}, el("b", {}, each.name), `: ${each.why_not}`)));
}

// the mechanism to go on with where the chosen one does not fit any more
export function fallback(list, wanted) {
  const fit = list.filter((each) => !each.why_not).map((each) => each.name);
  return fit.includes(wanted) ? wanted : ["optimal", "auto", "tree"].find((name) => fit.includes(name)) ?? fit[0];
}

// a mechanism that can go with batch, budget and policy, in place of one that cannot
function fitting(name, batch, limited, stops) {
  const found = known.find((each) => each.name === name);
  if (!found) return name;
  if (batch > 1) return found.batched && (found.sound || !limited) ? name : "auto";
  return (limited && !found.sound) || (stops && found.batched) ? "optimal" : name;
}

const optional = (id) => ($(id).value.trim() === "" ? null : Number($(id).value));

export function read() {
  $("odds-what").textContent = suspected(dial.kind);
  $("wrong-part").hidden = $("distortion").value !== "hamming"; // other costs take a program for every release
  const stream = {
    source: $("source").value, stream: Number($("stream").value), events: Number($("events").value),
    distortion: $("distortion").value, seed: Number($("seed").value),
  };
  if (dial.kind === "secret") return { ...stream, mechanism: "guarded", epsilon: optional("secret-each"), secret_epsilon: dial.epsilon, ...secretAsked(source) };
  const whole = dial.kind === "whole";
  const [window, batch] = [optional("window"), Number($("batch").value)];
  const budget = whole ? dial.epsilon : optional("budget");
  const limited = window !== null || budget !== null;
  $("when-spent").options[1].disabled = batch > 1; // batches are held: the page has no picture of gaps in them
  if (batch > 1) $("when-spent").value = "hold";
  const stops = limited && $("when-spent").value === "stop";
  return {
    ...stream, mechanism: fitting($("mechanism").value, batch, limited, stops),
    epsilon: whole ? Number((dial.epsilon / stream.events).toPrecision(6)) : dial.epsilon,
    batch, every: Number($("every").value), budget, window,
    window_releases: window === null ? null : Number($("window-releases").value),
    when_spent: $("when-spent").value,
  };
}

// who sees it, and how wrong it may be: two ways to be led to a promise
export function offerWishes(seenBy, ask, changed) {
  const buttons = Object.entries(seenBy).map(([name, limit]) => {
    const button = el("button", { type: "button" }, `${SEEN[name] ?? name}: ${Math.round(100 * limit)} %`);
    button.addEventListener("click", () => {
      dial.allow(limit);
      changed();
    });
    return button;
  });
  replace($("seen-by"), $("seen-by-label"), ...buttons);
  $("solve").onclick = async () => {
    $("solved").textContent = "looking …";
    try {
      const found = await ask("/v1/page/advise", { ask: read(), wrong: Number($("wrong").value) / 100 });
      if (dial.kind === "event") $("every").value = found.every;
      dial.show(found.secret_epsilon ?? (dial.kind === "whole" ? found.total : found.epsilon));
      $("solved").textContent = "found";
      changed();
    } catch (problem) {
      $("solved").textContent = `${problem.message}.`;
    }
  };
}

export function listen(changed) {
  dial = new Dial(() => Number($("every").value || 1) * Number($("batch").value || 1), changed);
  const carried = () => {
    dial.show(dial.epsilon); // what one release carries has changed, so its odds have
    changed();
  };
  for (const id of ["events", "mechanism", "distortion", "when-spent"]) $(id).addEventListener("change", changed);
  for (const id of ["batch", "every"]) $(id).addEventListener("input", carried);
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
      changed();
    },
  );
  $("controls").addEventListener("submit", (event) => event.preventDefault());
}

export const sensible = () => $("controls").checkValidity();
