// Light and dark: as the system has it, or as chosen here. The choice is kept in the address of nothing and no storage.

import { $ } from "./dom.js";

const system = matchMedia("(prefers-color-scheme: dark)");

export function themed(redraw) {
  const apply = () => {
    const chosen = $("theme").value;
    const dark = chosen === "dark" || (chosen === "auto" && system.matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    redraw();
  };
  $("theme").addEventListener("change", apply);
  system.addEventListener("change", apply);
  apply();
}
