// A file from the visitor's disk: sent to the server of this page, looked at and, with its columns chosen, fitted.

import { ask, upload } from "./api.js";
import { $, el, options, replace } from "./dom.js";

const NONE = "";
const SAID = { read: "Read as", people: "People", order: "Order", values: "Values", rare: "Rare", shared: "Most frequent", predicted: "How predictable", question: "To decide" };
const COLUMNS = ["user-column", "value-column", "second-column", "time-column", "trait-column"];

export function loader(loaded) {
  let [held, name] = ["", ""]; // what the server calls the file, and its own name
  let latest = 0; // what was asked for last; an answer to anything before it comes too late

  function forget() {
    latest += 1;
    $("loading").textContent = $("load-problem").textContent = "";
  }

  // asks, with a word to whoever waits; null where it failed, or where something else was asked for since
  async function attempt(waiting, act) {
    const mine = (latest += 1);
    $("load-problem").textContent = "";
    $("loading").textContent = `${waiting} …`;
    try {
      const found = await act();
      return mine === latest ? found : null;
    } catch (problem) {
      if (mine === latest) $("load-problem").textContent = `${problem.message}.`;
      return null;
    } finally {
      if (mine === latest) $("loading").textContent = "";
    }
  }

  function tell(found) {
    [held, name] = [found.upload, found.file];
    choose(found);
    $("file-name").textContent = `${name}: what its columns are taken for. Change what is wrong.`;
    replace($("found"), ...found.lines.flatMap(([part, said]) => [el("dt", {}, SAID[part] ?? part), el("dd", {}, said)]));
    $("look-problem").textContent = found.problem && `${found.problem}.`;
    $("load").disabled = found.problem !== "";
    $("columns").hidden = false;
    $("sample-note").hidden = true;
  }

  async function look() {
    const found = await attempt(`Looking at ${name}`, () => ask("look", { upload: held, columns: chosen() }));
    if (found) tell(found);
  }

  async function use() {
    const made = await attempt(`Fitting a model to ${name}`, () => ask("load", { upload: held, columns: chosen() }));
    if (made) loaded(made);
    return Boolean(made);
  }

  $("file").addEventListener("change", async () => {
    const file = $("file").files[0];
    $("columns").hidden = true;
    if (!file) return forget();
    const found = await attempt(`Looking at ${file.name}`, () => upload(file));
    if (!found) return;
    tell(found);
    $("step-look").scrollIntoView({ block: "start" });
  });
  for (const id of COLUMNS) $(id).addEventListener("change", look);
  $("load").addEventListener("click", use);
  $("source").addEventListener("change", forget); // a sample was chosen in the meantime

  // the file that the command named: used at once where nothing is to be chosen
  return async (found) => {
    tell(found);
    return found.problem === "" && use();
  };
}

function chosen() {
  const [value, second, cut] = [$("value-column").value, $("second-column").value, $("cut").value.trim()];
  return {
    user: $("user-column").value, value: value + (second ? `,${second}` : ""), time: $("time-column").value,
    trait: $("trait-column").value, cut: cut === "" ? null : Number(cut),
  };
}

function choose({ columns, chosen: proposed }) {
  const plain = columns.map((name) => [name, name]);
  const several = (text) => (text && !columns.includes(text) ? [[text, text.replaceAll(",", ", then ")]] : []);
  const [value, second] = columns.includes(proposed.value) ? [proposed.value] : proposed.value.split(",");
  options($("user-column"), [...(proposed.user ? [] : [[NONE, "choose a column"]]), ...several(proposed.user), ...plain], proposed.user);
  options($("value-column"), [...(value ? [] : [[NONE, "choose a column"]]), ...plain], value);
  options($("second-column"), [[NONE, "none"], ...plain], second ?? NONE);
  options($("time-column"), [[NONE, "time or seq, else the rows"], ...several(proposed.time), ...plain], proposed.time);
  options($("trait-column"), [[NONE, "none"], ...plain], proposed.trait);
}
