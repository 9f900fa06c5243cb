// What an observer believes: symbols over time, darker where more likely. One byte a probability, its square root.

import { Chart } from "./chart.js";
import { css, palette, shade, svg } from "./dom.js";
import { layout, rowOf, symbolAxis } from "./stage.js";

export function bytes(text) {
  const raw = atob(text);
  const out = new Uint8Array(raw.length);
  for (let k = 0; k < raw.length; k += 1) out[k] = raw.charCodeAt(k);
  return out;
}

export const probability = (byte) => (byte / 255) ** 2;

export function drawHeat(holder, source, picture) {
  const laid = layout(holder, source, picture);
  const chart = new Chart(holder, {
    height: laid.height + 56, left: laid.left, top: 26, title: "What an observer believes over time",
    description: `${picture.done} events by ${laid.codes.length} symbols, darker where the observer gives more probability, with a dot at the truth; a table follows`,
  });
  const { box, inner, colours } = chart;
  const row = rowOf(chart, laid);
  const y = (code) => row(code) + (laid.beside ? 0 : inner.height / laid.codes.length / 4); // below a label that stands above
  const image = {
    x: box.left, y: box.top, width: (inner.width * picture.done) / picture.events, height: inner.height,
    preserveAspectRatio: "none", "image-rendering": "pixelated", href: paint(picture, source.labels.length, laid, colours.heat),
  };
  chart.add("rect", { x: box.left, y: box.top, width: inner.width, height: inner.height, fill: css(colours.heat[0]) });
  chart.add("image", image);
  symbolAxis(chart, source, row, laid);
  const x = chart.events(picture.events);
  let dots = "";
  picture.series.raw.forEach((code, k) => {
    dots += `M${x(k).toFixed(1)} ${y(code).toFixed(1)}h0`;
  });
  const size = Math.max(1.6, Math.min(4, inner.width / picture.events / 1.6));
  chart.path(dots, { stroke: colours.released, "stroke-width": size, "stroke-linecap": "round" });
  key(chart);
  return chart.cursor(x);
}

// a pixel for each event and symbol; the upper half of a row is left to a label that stands there
function paint({ heat, done }, symbols, { codes, beside }, colours) {
  const parts = beside ? 1 : 2;
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [done, parts * codes.length];
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  const shades = Array.from({ length: 256 }, (_, k) => shade(colours, k / 255));
  for (let t = 0; t < done; t += 1) {
    codes.forEach((code, k) => {
      const at = 4 * ((parts * (codes.length - k) - 1) * done + t);
      image.data.set([...shades[heat[t * symbols + code]], 255], at);
    });
  }
  context.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

function key(chart) {
  const { colours, box } = chart;
  const [from, to] = palette().heat.map(css);
  const gradient = `${chart.svg.parentNode.id}-key`;
  chart.add("defs", {}, svg("linearGradient", { id: gradient }, svg("stop", { offset: 0, "stop-color": from }), svg("stop", { offset: 1, "stop-color": to })));
  chart.text(box.left, 14, "0");
  chart.add("rect", { x: box.left + 12, y: 5, width: 90, height: 10, fill: `url(#${gradient})`, stroke: colours.line });
  chart.text(box.left + 108, 14, "1 probability");
  if (chart.width > 340) {
    chart.add("circle", { cx: box.left + 208, cy: 10, r: 3, fill: colours.released });
    chart.text(box.left + 216, 14, "the truth");
  }
}
