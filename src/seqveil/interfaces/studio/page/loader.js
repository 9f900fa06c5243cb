// A file from the visitor's disk: read here, looked at and, with its columns chosen, computed by the server of this page.

import { ask } from "./api.js";
import { $, el, options, replace } from "./dom.js";

const NONE = "";
const SAID = { read: "Read as", people: "People", order: "Order", gaps: "Time between events", values: "Values", outliers: "Far from the rest", rare: "Rare", shared: "Most frequent", foretold: "How predictable", question: "To decide" };

export function loader(loaded) {
  let [text, name] = ["", ""];
  const told = () => ({ csv: text, file: name });

  async function look(columns) {
    const found = await attempt(() => ask("/v1/page/inspect", columns ? { ...told(), columns } : told()));
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
    if (!file) return;
    [text, name] = [await file.text(), file.name];
    $("file-name").textContent = `${name}: what its columns are taken for. Change what is wrong.`;
    look(null);
  });
  for (const id of ["user-column", "value-column", "second-column", "time-column"]) $(id).addEventListener("change", () => look(chosen()));
  $("load").addEventListener("click", async () => {
    const made = await attempt(() => ask("/v1/page/load", { ...told(), columns: chosen() }));
    if (made) loaded(made);
  });
}

async function attempt(act) {
  $("load-problem").textContent = "";
  try {
    return await act();
  } catch (problem) {
    $("load-problem").textContent = problem.message;
    return null;
  }
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
