// What must stay secret: a kind, and the values and numbers that belong to it, as a policy names them.

import { $, options } from "./dom.js";

const TOTAL = 1; // ε to begin with, of a secret or of a whole stream

export const kind = () => document.querySelector("#secret-kind input:checked").value;
export const keepsSecret = () => !["none", "whole"].includes(kind());

// the values of the alphabet; zones only where they are numbers or places
export function offerSecrets(source) {
  const names = source.labels.map((label, k) => [k, label]);
  options($("secret-value"), names, source.rare);
  options($("secret-then"), names, source.rare === 0 ? 1 : 0);
  const near = document.querySelector("#secret-kind input[value=zone]");
  near.disabled = !source.boxes.length && !source.ordered;
  const trait = document.querySelector("#secret-kind input[value=trait]");
  trait.disabled = !source.trait;
  for (const each of [near, trait]) each.parentNode.hidden = each.disabled;
  document.querySelector("#secret-kind input[value=none]").checked = true;
  $("secret-radius").value = source.step;
  $("secret-unit").textContent = source.map ? "m" : "";
  $("secret-span").value = "runs";
  $("secret-window").value = source.window;
  $("secret-span").options[1].textContent = `the whole stream (its first ${source.length} events)`;
  $("secret-each").value = "";
}

// shows the fields of the chosen kind, and what does not go with it is put away
export function arrange() {
  const [chosen, kept] = [kind(), keepsSecret()];
  const runs = kept && chosen !== "trait" && $("secret-span").value === "runs";
  $("secret-part").hidden = !kept;
  for (const field of document.querySelectorAll("#secret-part [data-kind]")) {
    const wanted = field.dataset.kind.split(" ");
    field.hidden = !(wanted.includes(chosen) || (runs && wanted.includes("runs")));
    for (const input of field.querySelectorAll("input, select")) input.disabled = field.hidden;
  }
  for (const id of ["release-part", "budget-part", "sharing-part"]) $(id).hidden = $(id).disabled = kept;
  $("each-part").hidden = $("each-part").disabled = !kept;
  $("budget-field").hidden = chosen === "whole";
  return kept ? "secret" : chosen === "whole" ? "whole" : "event";
}

export const startOf = (dial, source) => (dial === "event" ? source.start.epsilon : TOTAL);

// the secret as a table of policy.toml
export function secretTable(source, epsilon) {
  const number = (id) => Number($(id).value);
  const value = source.values[number("secret-value")];
  const window = $("secret-span").value === "runs" ? number("secret-window") : `first ${source.length}`;
  const shared = { epsilon, window };
  if (kind() === "trait") return { trait: source.trait, epsilon };
  if (kind() === "count") return { count: [value], at_least: number("secret-count"), ...shared };
  if (kind() === "followed_by") return { followed_by: [value], then: [source.values[number("secret-then")]], ...shared };
  if (kind() === "zone") return { zone: circle(source, value, number("secret-radius")), ...shared };
  return { ever: [value], ...shared };
}

function circle(source, centre, radius) {
  if (source.map) return { latitude: centre[0], longitude: centre[1], metres: radius };
  return { centre: [centre].flat(), radius };
}

// a cell of the map names the secret, where one is kept
export function pick(code) {
  if (!keepsSecret()) return;
  $("secret-value").value = String(code);
  $("secret-value").dispatchEvent(new Event("change"));
}

// what is kept, in a sentence
export function about(picture, source) {
  if (picture.secret) return `Kept secret: ${picture.secret.about}.${source.boxes.length ? " A click on a cell of step 5 names another." : ""}`;
  if (kind() === "whole") return `Everything about a whole stream of up to ${source.length} events. That is the strongest wish, and costs most: little can be released truthfully.`;
  return "Nothing is declared, so every release says a little about everything, and over a whole stream that adds up. If you can name what must stay secret, name it: all else can then be released truthfully.";
}

export function listenToSecret(changed, kindChanged) {
  $("secret-kind").addEventListener("change", kindChanged);
  for (const id of ["secret-value", "secret-then", "secret-span"]) $(id).addEventListener("change", changed);
  for (const id of ["secret-count", "secret-radius", "secret-window", "secret-each"]) $(id).addEventListener("input", changed);
}

// what the suspicion is about, in the middle of a sentence
export function suspected(dial) {
  if (dial === "whole") return "about anything in the stream";
  if (dial === "event") return "about anything, by one release,";
  const name = $("secret-value").selectedOptions[0]?.textContent ?? "";
  const then = $("secret-then").selectedOptions[0]?.textContent ?? "";
  return {
    ever: `that ${name} occurs`, count: `that ${name} occurs so often`, followed_by: `that ${name} is followed by ${then}`,
    zone: `that it comes near ${name}`, trait: "about a person’s label, by all events together,",
  }[kind()];
}
