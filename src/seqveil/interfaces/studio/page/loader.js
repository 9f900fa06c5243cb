// A file from the visitor's disk: read here, looked at and, with its columns chosen, computed by the server of this page.

import { ask } from "./api.js";
import { $, el, options, replace } from "./dom.js";

const NONE = "";
const SAID = { read: "Read as", people: "People", order: "Order", gaps: "Time between events", values: "Values", outliers: "Far from the rest", rare: "Rare", shared: "Most frequent", predicted: "How predictable", question: "To decide" };

const LARGE = 2e6; // characters from which on a step takes seconds

export function loader(loaded) {
  let [text, name] = ["", ""];
  let latest = 0; // what was asked for last; an answer to anything before it comes too late
  const disclosed = () => ({ csv: text, file: name });

  function forget() {
    latest += 1;
    $("loading").textContent = $("load-problem").textContent = "";
  }

  // asks, with a word to whoever waits; null where it failed, or where something else was asked for since
  async function attempt(waiting, act) {
    const mine = (latest += 1);
    $("load-problem").textContent = "";
    $("loading").textContent = `${waiting}${text.length > LARGE ? "; a large file takes some seconds" : ""} …`;
    try {
      const found = await act();
      return mine === latest ? found : null;
    } catch (problem) {
      if (mine === latest) $("load-problem").textContent = problem.message;
      return null;
    } finally {
      if (mine === latest) $("loading").textContent = "";
    }
  }

  async function look(columns) {
    const found = await attempt(`Looking at ${name}`, () => ask("/v1/page/inspect", columns ? { ...disclosed(), columns } : disclosed()));
    if (!found) return;
    if (!columns) choose(found);
    replace($("found"), ...found.lines.flatMap(([part, said]) => [el("dt", {}, SAID[part] ?? part), el("dd", {}, said)]));
    $("look-problem").textContent = found.problem;
    $("load").disabled = found.problem !== "";
    $("columns").hidden = false;
    $("sample-note").hidden = true;
    if (!columns) $("step-look").scrollIntoView({ block: "start" });
  }

  $("file").addEventListener("change", async () => {
    const file = $("file").files[0];
    $("columns").hidden = true;
    if (!file) return forget();
    [text, name] = ["", file.name];
    const content = await attempt(`Reading ${name}`, () => file.text());
    if (content === null) return;
    text = content;
    $("file-name").textContent = `${name}: what its columns are taken for. Change what is wrong.`;
    look(null);
  });
  for (const id of ["user-column", "value-column", "second-column", "time-column"]) $(id).addEventListener("change", () => look(chosen()));
  $("load").addEventListener("click", async () => {
    const made = await attempt(`Fitting a model to ${name}`, () => ask("/v1/page/load", { ...disclosed(), columns: chosen() }));
    if (made) loaded(made);
  });
  $("source").addEventListener("change", forget); // a sample was chosen in the meantime
}

function chosen() {
  const [second, cells] = [$("second-column").value, $("cells").value.trim()];
  return {
    user: $("user-column").value, value: $("value-column").value + (second ? `,${second}` : ""),
    time: $("time-column").value || null, cells: cells === "" ? null : Number(cells),
  };
}

function choose({ columns, chosen: proposed }) {
  const plain = columns.map((name) => [name, name]);
  const [value, second] = proposed.value.split(",");
  const times = proposed.time && !columns.includes(proposed.time) ? [[proposed.time, proposed.time.replaceAll(",", ", then ")]] : [];
  options($("user-column"), [[NONE, "one person: all rows are one stream"], ...plain], proposed.user);
  options($("value-column"), [...(value ? [] : [[NONE, "choose a column"]]), ...plain], value);
  options($("second-column"), [[NONE, "none"], ...plain], second ?? NONE);
  options($("time-column"), [[NONE, "the rows, as they are"], ...times, ...plain], proposed.time ?? NONE);
  $("cells").value = "";
}
