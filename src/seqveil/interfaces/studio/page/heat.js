// What an observer believes: symbols over time, darker where more likely. One byte a probability, its square root.

import { Chart } from "./chart.js";
import { css, palette, shade, svg } from "./dom.js";
import { margin, symbolAxis, visible } from "./stage.js";

export function bytes(text) {
  const raw = atob(text);
  const out = new Uint8Array(raw.length);
  for (let k = 0; k < raw.length; k += 1) out[k] = raw.charCodeAt(k);
  return out;
}

export const probability = (byte) => (byte / 255) ** 2;

export function drawHeat(holder, source, picture, heat) {
  const [from, to] = visible(source, picture);
  const rows = to - from + 1;
  const height = Math.min(340, Math.max(180, 56 + rows * (rows > 24 ? 3 : 13)));
  const chart = new Chart(holder, {
    height, left: margin(holder.clientWidth), top: 26, title: "What an observer believes over time",
    description: `${picture.done} events by ${rows} symbols, darker where the observer gives more probability, with a dot at the truth; a table follows`,
  });
  const { box, inner, colours } = chart;
  const y = (code) => box.bottom - ((code - from + 0.5) / rows) * inner.height;
  const image = {
    x: box.left, y: box.top, width: (inner.width * picture.done) / picture.events, height: inner.height,
    preserveAspectRatio: "none", "image-rendering": "pixelated", href: paint(heat, picture.done, source.symbols, [from, to], colours.heat),
  };
  symbolAxis(chart, source, y, [from, to]);
  chart.add("rect", { x: box.left, y: box.top, width: inner.width, height: inner.height, fill: css(colours.heat[0]) });
  chart.add("image", image);
  const x = chart.events(picture.events, source.event);
  let dots = "";
  picture.series.raw.forEach((code, k) => {
    dots += `M${x(k).toFixed(1)} ${y(code).toFixed(1)}h0`;
  });
  const size = Math.max(1.6, Math.min(4, inner.width / picture.events / 1.6));
  chart.path(dots, { stroke: colours.released, "stroke-width": size, "stroke-linecap": "round" });
  key(chart);
  return chart.cursor(x);
}

function paint(heat, columns, symbols, [from, to], colours) {
  const rows = to - from + 1;
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [columns, rows];
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const shades = Array.from({ length: 256 }, (_, k) => shade(colours, k / 255));
  for (let t = 0; t < columns; t += 1) {
    for (let code = from; code <= to; code += 1) {
      const at = 4 * ((to - code) * columns + t);
      const [r, g, b] = shades[heat[t * symbols + code]];
      image.data[at] = r;
      image.data[at + 1] = g;
      image.data[at + 2] = b;
      image.data[at + 3] = 255;
    }
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
