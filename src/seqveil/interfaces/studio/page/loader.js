// A CSV from the visitor's disk: read here, its columns chosen, and sent to the server of this page for computing.

import { ask } from "./api.js";
import { $, el, replace } from "./dom.js";

const NONE = "";

export function loader(loaded) {
  let text = "";
  $("file").addEventListener("change", async () => {
    const file = $("file").files[0];
    $("columns").hidden = true;
    $("load-problem").textContent = "";
    if (!file) return;
    text = await file.text();
    const names = header(text);
    if (names.length === 0) {
      $("load-problem").textContent = "the file has no header; its first line must name the columns";
      return;
    }
    choose(names);
    $("columns").hidden = false;
  });
  $("load").addEventListener("click", async () => {
    $("load-problem").textContent = "";
    const second = $("second-column").value;
    const cells = $("cells").value.trim();
    const columns = {
      user: $("user-column").value, value: $("value-column").value + (second ? `,${second}` : ""), cells: cells === "" ? null : Number(cells),
    };
    try {
      loaded(await ask("/v1/page/load", { csv: text, columns, file: $("file").files[0].name }));
    } catch (problem) {
      $("load-problem").textContent = problem.message;
    }
  });
}

// the first record, with quotes as CSV has them
export function header(text) {
  const line = text.replace(/^\ufeff/, "").split(/\r?\n/, 1)[0];
  const names = [...line.matchAll(/(?:^|,)(?:"((?:[^"]|"")*)"|([^,]*))/g)];
  return names.map(([, quoted, plain]) => (quoted ?? plain).replaceAll('""', '"').trim()).filter((name) => name !== "");
}

function choose(names) {
  const fill = (id, list, chosen) => {
    replace($(id), ...list.map(([value, shown]) => el("option", { value }, shown)));
    $(id).value = chosen;
  };
  const plain = names.map((name) => [name, name]);
  const find = (...wanted) => names.find((name) => wanted.includes(name.toLowerCase()));
  const user = find("user", "user_id", "id", "person");
  const value = find("value", "x", "lon", "longitude") ?? names.find((name) => name !== user) ?? names[0];
  const pair = { x: "y", lon: "lat", longitude: "latitude" }[value.toLowerCase()];
  fill("user-column", [[NONE, "none: all rows are one stream"], ...plain], user ?? NONE);
  fill("value-column", plain, value);
  fill("second-column", [[NONE, "none"], ...plain], (pair && find(pair)) ?? NONE);
}
