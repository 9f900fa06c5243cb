// The controls: from what is typed to what is asked for, and back.

import { $, el, replace, short } from "./dom.js";

const LEAST = 0.05;
const RATIO = 8 / LEAST;
const STEPS = 240;
const EVENTS = [50, 100, 200, 500, 1000];
const COSTS = {
  hamming: "1 if wrong", absolute: "its size", squared: "its square", euclidean: "its distance", metres: "its metres",
};

const TOTALS = [0.1, 0.25, 0.5, 1, 2, 3];

const fromSlider = (at) => Number((LEAST * RATIO ** (at / STEPS)).toPrecision(3));
const toSlider = (epsilon) => Math.round((STEPS * Math.log(Math.max(epsilon, LEAST) / LEAST)) / Math.log(RATIO));

function options(select, entries, chosen) {
  replace(select, ...entries.map(([value, text]) => el("option", { value: String(value) }, text)));
  if (entries.some(([value]) => String(value) === String(chosen))) select.value = String(chosen);
}

// the values of the alphabet, one of which may be kept secret
function offerSecrets(source) {
  const chip = (value, text) => el("label", {}, el("input", { type: "radio", name: "secret", value, checked: value === "" }), text);
  replace($("secret"), chip("", "none"), ...source.labels.map((label, k) => chip(String(k), source.grid ? `cell ${label}` : label)));
  options($("secret-epsilon"), TOTALS.map((total) => [total, `by a factor ${short(Math.exp(total))} (ε = ${total})`]), 1);
  $("secret-each").value = "";
}

// the code of the value that is kept secret, or null; what does not go with a secret is put away
function secret() {
  const chosen = document.querySelector("#secret input:checked");
  const kept = chosen !== null && chosen.value !== "";
  for (const id of ["release-part", "budget-part"]) $(id).hidden = $(id).disabled = kept;
  $("secret-part").hidden = !kept;
  $("secret-summary").textContent = kept ? `Kept secret: ${chosen.parentNode.textContent}` : "Keep a value secret";
  return kept ? Number(chosen.value) : null;
}

export function offerSources(list, chosen) {
  options($("source"), list.map((each) => [each.name, each.title]), chosen);
}

// what a source brings with it: its streams, costs and proposal
export function adopt(source) {
  $("about").textContent = source.about;
  offerSecrets(source);
  const start = { mechanism: "optimal", epsilon: 1, every: 1, batch: 1, budget: null, window: null, window_releases: null, when_spent: "hold", stream: 0, events: 200, ...source.start };
  options($("stream"), source.lengths.map((_, k) => [k, String(k + 1)]), start.stream);
  offerEvents(source, start.events);
  options($("distortion"), source.distortions.map((name) => [name, COSTS[name]]), start.distortion);
  if (![...$("mechanism").options].some((each) => each.value === start.mechanism)) $("mechanism").append(el("option", { value: start.mechanism }, start.mechanism));
  $("mechanism").value = start.mechanism;
  setEpsilon(start.epsilon);
  for (const name of ["every", "batch", "budget", "window"]) $(name).value = start[name] ?? "";
  if (start.window_releases) $("window-releases").value = start.window_releases;
  $("when-spent").value = start.when_spent;
}

export function offerEvents(source, wanted = Number($("events").value)) {
  const length = source.lengths[Number($("stream").value)];
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
  $("promise").textContent = found ? `${found.summary}. ${found.sound ? found.guarantee : "Not sound: its true leakage is shown."}` : "";
  const others = list.filter((each) => each.why_not);
  replace($("unfit"), ...others.map((each) => el("li", {}, el("b", {}, each.name), `: ${each.why_not}`)));
}

// the mechanism to go on with where the chosen one does not fit any more
export function fallback(list, wanted) {
  const fit = list.filter((each) => !each.why_not).map((each) => each.name);
  return fit.includes(wanted) ? wanted : ["optimal", "auto", "tree"].find((name) => fit.includes(name)) ?? fit[0];
}

export function setEpsilon(value) {
  $("epsilon").value = String(value);
  $("epsilon-slider").value = String(toSlider(value));
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
  const [window, budget, batch] = [optional("window"), optional("budget"), Number($("batch").value)];
  const limited = window !== null || budget !== null;
  $("when-spent").options[1].disabled = batch > 1; // batches are held: the page has no picture of gaps in them
  if (batch > 1) $("when-spent").value = "hold";
  const stops = limited && $("when-spent").value === "stop";
  const stream = {
    source: $("source").value, stream: Number($("stream").value), events: Number($("events").value),
    distortion: $("distortion").value, seed: Number($("seed").value),
  };
  const code = secret();
  if (code !== null) return { ...stream, mechanism: "guarded", epsilon: optional("secret-each"), secret: code, secret_epsilon: Number($("secret-epsilon").value) };
  return {
    ...stream, mechanism: fitting($("mechanism").value, batch, limited, stops), epsilon: Number($("epsilon").value),
    batch, every: Number($("every").value), budget, window,
    window_releases: window === null ? null : Number($("window-releases").value),
    when_spent: $("when-spent").value,
  };
}

export function listen(changed) {
  $("epsilon-slider").addEventListener("input", () => {
    const value = fromSlider(Number($("epsilon-slider").value));
    $("epsilon").value = String(value);
    $("epsilon-slider").setAttribute("aria-valuetext", String(value));
    changed();
  });
  $("epsilon").addEventListener("input", () => {
    $("epsilon-slider").value = String(toSlider(Number($("epsilon").value)));
    changed();
  });
  for (const id of ["events", "mechanism", "distortion", "when-spent", "secret", "secret-epsilon"]) $(id).addEventListener("change", changed);
  for (const id of ["batch", "every", "budget", "window", "window-releases", "seed", "secret-each"]) $(id).addEventListener("input", changed);
  $("controls").addEventListener("submit", (event) => event.preventDefault());
}

export const sensible = () => $("controls").checkValidity();
