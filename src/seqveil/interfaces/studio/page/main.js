// The page: what is asked for, what came back, and who draws it.

import { drawAccount } from "./account.js";
import { Refused, ask, enter, known } from "./api.js";
import { forget } from "./attack.js";
import { $, cost, el, replace, short, UNITS } from "./dom.js";
import { savePng, saveSvg, saveToml } from "./exporting.js";
import { adopt, listen, offerMechanisms, offerSources, offerWishes, read, sensible, tellMechanism } from "./form.js";
import { bytes, drawHeat } from "./heat.js";
import { loader } from "./loader.js";
import { drawOdds, tellOdds, times } from "./odds.js";
import { Player } from "./player.js";
import { about, keepsSecret, pick } from "./secret.js";
import { drawStage, tell } from "./stage.js";
import { tables } from "./tables.js";
import { themed } from "./theme.js";

const GRADES = { green: "protects", unchecked: "not checked", amber: "protects a little", red: "protects next to nothing" };

const sources = new Map(); // by name, as described
let listed = [];
let [source, picture, asked] = [null, null, null];
let [mechanisms, shape] = [[], ""]; // those on offer, and for what policy but its ε
let movers = [];
let under = null; // the request whose picture is on its way

const player = new Player((event) => {
  for (const move of movers) move(event);
  if (picture) $("moment").textContent = tell(source, picture, event);
  $("time").setAttribute("aria-valuetext", $("moment").textContent);
});
const unit = () => UNITS[asked.policy.distortion];

async function start() {
  try {
    if (!known()) return refuse("Open the address that seqveil studio printed: it ends in the key. Or enter the key here.");
    const found = await ask("begin", {});
    $("entry").hidden = $("waiting").hidden = true;
    $("work").hidden = $("walk").hidden = false;
    $("version").textContent = `seqveil ${found.seqveil}`;
    listed = found.sources;
    offerWishes(found.seen_by, refresh);
    offerSources(listed, listed[0].name);
    if (!found.upload || !(await begin(found.upload))) await choose(listed[0].name);
  } catch (problem) {
    if (!(problem instanceof Refused)) throw problem;
    if (![401, 403].includes(problem.status)) return broken(problem.message);
    refuse(`${problem.message}.`);
  }
}

// where even the first answer did not come there is no other place to say so
function broken(why) {
  $("waiting").textContent = `${why}.`;
  complain(`${why}.`);
}

function refuse(why) {
  $("work").hidden = $("walk").hidden = $("waiting").hidden = true;
  $("entry").hidden = false;
  $("entry-why").textContent = why;
  $("entry-key").focus();
}

async function choose(name) {
  try {
    if (!sources.has(name)) sources.set(name, await ask("source", { source: name }));
  } catch (problem) {
    return complain(`${problem.message}.`);
  }
  if ($("source").value !== name) return; // another one was chosen while this was on its way
  source = sources.get(name);
  adopt(source);
  player.pause();
  await refresh();
}

// What changes while a picture is on its way takes its place. What a moment makes of it stands, and `whole` asks for all.
async function refresh({ whole = false } = {}) {
  under?.abort();
  if (!sensible()) return complain("A field is not filled in as it should be; look at the one that is marked.");
  const mine = (under = new AbortController());
  try {
    await fit(mine.signal);
    const wanted = read();
    if (!whole) forget(wanted);
    do {
      take(await ask("show", wanted, mine.signal), wanted);
    } while (whole && !picture.complete);
    summarise();
  } catch (problem) {
    if (problem.name === "AbortError") return;
    if (!(problem instanceof Refused)) throw problem;
    return complain(`${problem.message}.`);
  } finally {
    if (under === mine) under = null;
  }
}

// which mechanisms fit depends on all of a policy but its ε, and a secret has one of its own
async function fit(signal) {
  const { source: name, policy } = read();
  const now = JSON.stringify([name, { ...policy, epsilon: undefined, mechanism: undefined }]);
  if (policy.secret || now === shape) return;
  ({ mechanisms } = await ask("offers", { source: name, policy }, signal));
  shape = now;
  offerMechanisms(mechanisms);
}

function take(found, wanted) {
  [picture, asked] = [{ ...found, wanted: found.events, events: found.done }, wanted]; // drawn is what there is
  picture.heat = bytes(found.beliefs);
  complain("");
  say();
  draw();
}

function complain(text) {
  $("problem").textContent = text;
  $("statement").hidden = text !== ""; // what it says is of another setting
  $("verdict-top").hidden = text !== "" || !picture;
  if (text && keepsSecret()) $("secret-about").textContent = text;
  for (const part of document.querySelectorAll(".picture")) part.classList.toggle("stale", text !== "");
}

// the promise: a grade with its reason, and what it means for suspicions
function say() {
  const { risk } = picture;
  for (const id of ["verdict", "verdict-top"]) {
    $(id).textContent = GRADES[risk.colour];
    $(id).className = `verdict ${risk.colour}`;
  }
  $("verdict-whole").hidden = !picture.unbounded;
  $("why").textContent = `${risk.why[0].toUpperCase()}${risk.why.slice(1)}.`;
  $("remedy").textContent = risk.remedy;
  replace($("risks"), ...risk.sentences.map(risky));
  $("secret-about").textContent = about(picture, source);
  $("shown").textContent = `Shown: person ${picture.person + 1} of ${source.lengths.length} who can be, ${picture.events} of ${source.lengths[picture.person]} events.`;
  $("odds-sentence").textContent = tellOdds(picture);
  replace($("promise"), ...picture.promise.map((text) => el("li", {}, text)));
  tellMechanism(mechanisms, picture.mechanism);
  $("progress").textContent = picture.complete ? "" : `The first ${picture.done} of ${picture.wanted} events: so many are made in a moment.`;
  $("whole").hidden = picture.complete;
  sayFigures();
  for (const name of ["toml", "steps"]) $(name).textContent = picture[name];
}

// the first words of a sentence say what it is about
function risky(sentence) {
  const [what, rest] = sentence.split(/: (.*)/s);
  return rest === undefined ? el("li", {}, `${sentence}.`) : el("li", {}, el("b", {}, what), `: ${rest}.`);
}

function sayFigures() {
  const { figures, secret } = picture;
  const left = figures.budget === null ? `of ${short(figures.composition)} by composition` : `of a budget of ${short(figures.budget)}`;
  const broken = (figures.worst_release ?? Infinity) > figures.claimed * (1 + 1e-6);
  const shown = [
    ["Error as released", cost(figures.error, unit()), unit() === "wrong" ? "of events are wrong" : unit()],
    ["Error decoded", cost(figures.decoded_error, unit()), "as it happens"],
    ["Without any release", cost(figures.silent_error, unit()), "the best guess from the model"],
  ];
  if (secret) shown.push(["Odds of the secret", times(secret.odds.at(-1)), `of at most ${times(secret.epsilon)}, in total`]);
  if (picture.unbounded) shown.push(["Whole sequence", "no bound", "nothing is promised about it"]);
  else {
    shown.push(["Leakage, exact", short(figures.leakage, 4), `nats ${left}`]);
    shown.push(["Worst release", short(figures.worst_release, 4), `nats; ${short(figures.claimed)} claimed`, broken]);
  }
  replace($("figures"), ...shown.map(([name, value, more, bad]) => el("div", { class: bad ? "bad" : "" }, el("dt", {}, name), el("dd", {}, value, el("small", {}, more)))));
}

function draw() {
  if (!picture) return;
  $("account-part").hidden = picture.unbounded;
  $("heat-part").hidden = source.boxes.length > 0; // the map has it
  movers = [drawStage($("stage"), source, picture, pick), drawOdds($("odds-chart"), source, picture)];
  if (!source.boxes.length) movers.push(drawHeat($("heat"), source, picture));
  if (!picture.unbounded) movers.push(drawAccount($("account"), source, picture));
  player.reach(picture.done);
  fillTables();
}

function fillTables(only) {
  for (const part of document.querySelectorAll("details[data-table]")) {
    const name = part.dataset.table;
    if (!part.open || !picture || !part.checkVisibility() || (only && name !== only)) continue;
    replace(part.querySelector(".table"), tables[name]({ source, picture }));
  }
}

function summarise() {
  const { figures, secret, risk } = picture;
  const spent = figures.spent_at === null ? "" : ` The budget is spent at event ${figures.spent_at + 1}.`;
  const whole = picture.unbounded ? "no bound on the whole sequence." : `exact leakage ${short(figures.leakage)} of ${short(figures.composition)} by composition.`;
  $("summary").textContent =
    `${picture.events} events released with ${picture.mechanism}: error ${cost(figures.error, unit())}, ` +
    `${whole}${spent} It ${GRADES[risk.colour]}.${secret ? ` ${tellOdds(picture)}` : ""}`;
  document.body.dataset.ready = String(Number(document.body.dataset.ready ?? 0) + 1);
}

$("entry").addEventListener("submit", (event) => {
  event.preventDefault();
  enter($("entry-key").value);
  $("entry-key").value = "";
  start();
});
$("source").addEventListener("change", () => {
  $("columns").hidden = true;
  $("sample-note").hidden = false;
  if (!$("source").value.startsWith("own-")) $("file").value = ""; // what is shown is no longer from there
  choose($("source").value);
});
for (const part of document.querySelectorAll("details[data-table]")) part.addEventListener("toggle", () => fillTables(part.dataset.table));
$("whole").addEventListener("click", () => refresh({ whole: true }));
$("save-toml").addEventListener("click", () => saveToml(picture));
$("save-svg").addEventListener("click", () => saveSvg(picture, source));
$("save-png").addEventListener("click", () => savePng(picture, source));
for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText($(button.dataset.copy).textContent);
    $("exported").textContent = "Copied.";
  });
}
// steps are gone to without a new address: it holds the key, which a reload needs
for (const link of document.querySelectorAll('a[href^="#"]')) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    const part = document.querySelector(link.getAttribute("href"));
    part.scrollIntoView({ block: "start" });
    part.focus({ preventScroll: true });
  });
}
listen(() => refresh());
const begin = loader((made) => {
  sources.set(made.name, made);
  shape = "";
  listed = [...listed.filter((each) => !each.name.startsWith("own-")), { name: made.name, title: made.title }];
  offerSources(listed, made.name);
  choose(made.name);
});
themed(draw);
let width = 0;
new ResizeObserver(() => {
  if ($("stage").clientWidth !== width) draw();
  width = $("stage").clientWidth;
}).observe($("stage"));
start();
