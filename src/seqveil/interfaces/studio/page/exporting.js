// The policy and the pictures to take away.

import { FONT } from "./chart.js";
import { palette, save, svg } from "./dom.js";

const PARTS = [["stage", "stage"], ["odds-chart", "odds"], ["account", "account"], ["heat", "heat"]]; // picture, title

export function saveToml(picture) {
  save("policy.toml", picture.toml, "application/toml");
}

// all pictures below one another, with the sentence above them
function poster(picture, source) {
  const colours = palette();
  const shown = PARTS.filter(([id]) => document.getElementById(id).checkVisibility());
  const charts = shown.map(([id, title]) => [document.getElementById(`${title}-title`).textContent, document.querySelector(`#${id} svg`)]).filter(([, chart]) => chart);
  const width = Math.max(...charts.map(([, chart]) => chart.width.baseVal.value)) + 48;
  const outer = svg("svg", { xmlns: "http://www.w3.org/2000/svg", "font-family": FONT });
  const ground = svg("rect", { width, fill: colours.surface });
  outer.append(ground);
  let y = 40;
  const text = (content, attributes) => outer.append(svg("text", { x: 24, y, fill: colours.ink, ...attributes }, content));
  text(`${source.title}: ${picture.mechanism}`, { "font-size": 18, "font-weight": 650 });
  for (const line of picture.promise.flatMap((sentence) => wrapped(sentence, Math.floor((width - 48) / 6.7)))) {
    y += 20;
    text(line, { "font-size": 13, fill: colours.quiet });
  }
  for (const row of rowsOf(charts, width - 48)) {
    y += 38;
    let x = 24;
    for (const [title, chart] of row) {
      text(title, { x, "font-size": 14, "font-weight": 650 });
      const copy = chart.cloneNode(true);
      copy.setAttribute("x", x);
      copy.setAttribute("y", y + 8);
      outer.append(copy);
      x += chart.width.baseVal.value + 24;
    }
    y += 8 + Math.max(...row.map(([, chart]) => chart.height.baseVal.value));
  }
  const height = Math.ceil(y + 24);
  ground.setAttribute("height", height);
  for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) outer.setAttribute(name, value);
  return { text: new XMLSerializer().serializeToString(outer), width, height };
}

// charts side by side where there is room
function rowsOf(charts, room) {
  const rows = [];
  let left = 0;
  for (const each of charts) {
    const wide = each[1].width.baseVal.value;
    if (left < wide) {
      rows.push([]);
      left = room + 24;
    }
    rows.at(-1).push(each);
    left -= wide + 24;
  }
  return rows;
}

function wrapped(sentence, most) {
  const lines = [""];
  for (const word of sentence.split(" ")) {
    if (lines.at(-1).length + word.length > most) lines.push("");
    lines[lines.length - 1] += `${lines.at(-1) ? " " : ""}${word}`;
  }
  return lines;
}

export function saveSvg(picture, source) {
  save("seqveil-page.svg", poster(picture, source).text, "image/svg+xml");
}

export async function savePng(picture, source) {
  const { text, width, height } = poster(picture, source);
  const address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  const image = new Image(width, height);
  image.src = address;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [2 * width, 2 * height];
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(address);
  save("seqveil-page.png", await new Promise((done) => canvas.toBlob(done, "image/png")), "image/png");
}
