// The attack: asked for by a button, as it takes some seconds; what was found is of one setting, and goes with it.

import { Refused, ask } from "./api.js";
import { $, el, replace } from "./dom.js";

const SAYS = { broken: "the promise is broken", "not refuted": "the promise holds", "not decided": "too few people to decide" };
let [wanted, under] = [null, null];

// what is shown belongs to another setting now
export function forget(asked) {
  wanted = asked;
  under?.abort();
  $("attacked").hidden = true;
  $("attack-progress").textContent = "";
}

async function attack() {
  const mine = (under = new AbortController());
  const { source, policy, seed } = wanted;
  $("attack").disabled = true;
  $("attack-progress").textContent = "Releasing people and attacking what was released; this takes up to a minute …";
  try {
    const found = await ask("attack", { source, policy, seed }, mine.signal);
    $("attack-progress").textContent = `${found.people} people: ${SAYS[found.verdict]}.`;
    $("attack-about").textContent = `${found.about[0].toUpperCase()}${found.about.slice(1)}`;
    replace($("attack-lines"), ...found.lines.map((text) => el("li", {}, `${text[0].toUpperCase()}${text.slice(1)}.`)));
    $("attacked").hidden = false;
  } catch (problem) {
    if (problem.name === "AbortError") return;
    if (!(problem instanceof Refused)) throw problem;
    $("attack-progress").textContent = `${problem.message}.`;
  } finally {
    $("attack").disabled = false;
  }
}

$("attack").addEventListener("click", attack);
