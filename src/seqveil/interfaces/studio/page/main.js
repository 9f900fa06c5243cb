// The page: what is asked for, what came back, and who draws it.

import { drawAccount } from "./account.js";
import { Refused, ask, enter, known } from "./api.js";
import { Compare } from "./compare.js";
import { Curves } from "./curves.js";
import { drawCurve, limited } from "./curve.js";
import { $, cost, el, number, replace, short, unitOf } from "./dom.js";
import { saveConfiguration, savePng, saveSvg, saveToml } from "./exporting.js";
import { adopt, fallback, listen, offerEvents, offerMechanisms, offerSources, offerWishes, read, sensible } from "./form.js";
import { bytes, drawHeat } from "./heat.js";
import { loader } from "./loader.js";
import { drawOdds, tellOdds, times } from "./odds.js";
import { Player } from "./player.js";
import { percent } from "./promise.js";
import { about, keepsSecret } from "./secret.js";
import { drawStage, tell } from "./stage.js";
import { tables } from "./tables.js";
import { themed } from "./theme.js";

const GRADES = { green: "protects", unchecked: "not checked", amber: "protects a little", red: "protects next to nothing" };

const sources = new Map(); // by name, as described
let listed = [];
let [source, picture, asked] = [null, null, null];
let movers = [];
let under = null; // the request whose picture is on its way
let began = 0; // when that was asked for

const player = new Player((event) => {
  for (const move of movers) move(event);
  if (picture) $("moment").textContent = tell(source, picture, decoded(), event);
  $("time").setAttribute("aria-valuetext", $("moment").textContent);
});

const curves = new Curves(() => under !== null, () => drawCurves());
const compare = new Compare(() => under !== null);
const view = () => $("view").value;
const decoded = () => picture.series[view() === "online" ? "decoded" : "hindsight"];
const heat = () => picture.beliefs[view()];
const unit = () => unitOf(source, asked.distortion);
const unbounded = () => picture.configuration.epsilon === null; // nothing is promised about the whole sequence

async function start() {
  try {
    if (!known()) return refuse("Open the address that seqveil studio printed: it ends in the key. Or enter the key here.");
    const found = await ask("/v1/page/begin");
    $("entry").hidden = $("waiting").hidden = true;
    $("work").hidden = $("walk").hidden = false;
    $("version").textContent = `seqveil ${found.seqveil}`;
    listed = found.sources;
    offerWishes(found.seen_by, ask, refresh);
    offerSources(listed, found.first);
    await choose(found.first);
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
    if (!sources.has(name)) sources.set(name, await ask("/v1/page/source", { source: name }));
  } catch (problem) {
    return complain(`${problem.message}.`);
  }
  if ($("source").value !== name) return; // another one was chosen while this was on its way
  source = sources.get(name);
  adopt(source);
  player.pause();
  await refresh();
}

// What changes while a picture is on its way takes its place.
async function refresh() {
  under?.abort();
  if (!sensible()) return complain("A field is not filled in as it should be; look at the one that is marked.");
  const mine = (under = new AbortController());
  const wanted = read();
  began = performance.now();
  try {
    let found;
    do {
      found = await ask("/v1/page/show", wanted, mine.signal);
      take(found, wanted);
    } while (!found.complete);
    summarise();
  } catch (problem) {
    if (problem.name === "AbortError") return;
    if (!(problem instanceof Refused)) throw problem;
    return complain(`${problem.message}.`);
  } finally {
    if (under === mine) under = null;
  }
  later();
}

// what takes longer than the picture
function later() {
  compare.want(asked, unit());
  if (!picture.secret) curves.want(asked, picture, $("curve-view").value === "all");
}

function take(found, wanted) {
  [picture, asked] = [found, wanted];
  picture.beliefs = { online: bytes(found.heat.online), hindsight: bytes(found.heat.hindsight) };
  complain("");
  if (!found.secret) offerMechanisms(found.mechanisms, fallback(found.mechanisms, wanted.mechanism));
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
  const { risk, secret } = picture;
  for (const id of ["verdict", "verdict-top"]) {
    $(id).textContent = GRADES[risk.colour];
    $(id).className = `verdict ${risk.colour}`;
  }
  $("verdict-whole").hidden = !unbounded();
  $("why").textContent = `${risk.why[0].toUpperCase()}${risk.why.slice(1)}.`;
  $("remedy").textContent = risk.remedy;
  replace($("risks"), ...risk.sentences.map(risky));
  $("secret-about").textContent = about(picture, source, picture.events);
  $("odds-sentence").textContent = tellOdds(picture);
  $("sentence").textContent = picture.sentence;
  replace($("notes"), ...picture.notes.map((text) => el("li", {}, text)));
  $("progress").textContent = picture.done === picture.events ? "" : `${picture.done} of ${picture.events} events; the rest is being computed${remaining()}`;
  $("compare-what").textContent = secret
    ? "Other ways to keep the same secret just as well protect everything else too, and so have little left to tell. Errors are means over some streams."
    : "The same ε an event, spent in other ways. Errors are means over some streams, after the decoder that every receiver can use.";
  sayFigures();
  for (const [name, text] of Object.entries({ ...picture.files, ...picture.snippets })) $(name).textContent = text;
}

// how long the rest of a picture takes at the pace so far, where one would wonder
function remaining() {
  const seconds = ((performance.now() - began) / 1000) * (picture.events / picture.done - 1);
  return seconds < 2 ? "" : `, about ${Math.round(seconds)} s`;
}

// the first words of a sentence say what it is about
function risky(sentence) {
  const [what, rest] = sentence.split(/: (.*)/s);
  return rest === undefined ? el("li", {}, `${sentence}.`) : el("li", {}, el("b", {}, what), `: ${rest}.`);
}

function sayFigures() {
  const { figures, secret, risk } = picture;
  const left = figures.budget === null ? `of ${short(figures.composition)} by composition` : `of a budget of ${short(figures.budget)}`;
  const broken = number(figures.worst_release) > figures.claimed * (1 + 1e-9);
  const shown = [
    ["Error as released", cost(figures.error, unit()), unit() === "wrong" ? "of events are wrong" : unit()],
    ["Error decoded", cost(figures.decoded_error, unit()), figures.hindsight_error === null ? "as it happens" : `${cost(figures.hindsight_error, unit())} in hindsight`],
    ["Without any release", cost(figures.silent_error, unit()), "the best guess from the model"],
  ];
  if (secret) shown.push(["Odds of the secret", times(secret.odds.at(-1)), `of at most ${times(secret.epsilon)}, in total`]);
  if (unbounded()) shown.push(["Whole sequence", "no bound", "nothing is promised about it"]);
  else {
    shown.push(["Leakage, exact", short(figures.leakage, 4), `nats ${left}`]);
    shown.push(["Worst release", short(figures.worst_release, 4), `nats; ${short(figures.claimed)} claimed`, broken]);
  }
  replace($("figures"), ...shown.map(([name, value, more, bad]) => el("div", { class: bad ? "bad" : "" }, el("dt", {}, name), el("dd", {}, value, el("small", {}, more)))));
}

function draw() {
  if (!picture) return;
  $("account-part").hidden = unbounded();
  $("curve-part").hidden = Boolean(picture.secret); // no ε an event to draw it against
  movers = [drawStage($("stage"), source, picture, decoded(), heat()), drawHeat($("heat"), source, picture, heat()), drawOdds($("odds-chart"), source, picture)];
  if (!unbounded()) movers.push(drawAccount($("account"), source, picture));
  player.reach(picture.done);
  drawCurves();
  fillTables();
}

function drawCurves() {
  if (!picture || picture.secret) return;
  drawCurve($("curve"), picture, curves.found(asked), asked, unit());
  $("curve-progress").textContent = curves.progress;
  $("curve-note").textContent = limited(asked)
    ? `The curves are without a budget; with it, this stream errs ${cost(picture.figures.decoded_error, unit())}.`
    : "The dot is this setting. Each curve is a mean over several streams, after the decoder.";
  $("curve").dataset.complete = String(curves.complete);
  fillTables("curve");
}

function fillTables(only) {
  for (const part of document.querySelectorAll("details[data-table]")) {
    const name = part.dataset.table;
    if (!part.open || !picture || !part.checkVisibility() || (only && name !== only)) continue;
    replace(part.querySelector(".table"), tables[name]({ source, picture, decoded: decoded(), heat: heat(), curves: curves.found(asked), unit: unit() }));
  }
}

function summarise() {
  const { figures, secret, risk } = picture;
  const spent = figures.spent_at === null ? "" : ` The budget is spent at event ${figures.spent_at + 1}.`;
  const whole = unbounded() ? "no bound on the whole sequence." : `exact leakage ${short(figures.leakage)} of ${short(figures.composition)} by composition.`;
  $("summary").textContent =
    `${picture.events} events released with ${picture.mechanism}${unbounded() ? "" : ` at ε ${short(asked.epsilon)}`}: error ${cost(figures.error, unit())}, ` +
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
$("stream").addEventListener("change", () => {
  offerEvents(source);
  refresh();
});
$("view").addEventListener("change", draw);
$("curve-view").addEventListener("change", later);
for (const part of document.querySelectorAll("details[data-table]")) part.addEventListener("toggle", () => fillTables(part.dataset.table));
$("save-toml").addEventListener("click", () => saveToml(picture));
$("save-json").addEventListener("click", () => saveConfiguration(picture));
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
listen(refresh);
loader((made) => {
  sources.set(made.name, made);
  listed = [...listed.filter((each) => !each.name.startsWith("own-")), { name: made.name, title: "Your data" }];
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
