// Charts over time are uPlot's; what is as small as a word is drawn here.

import { h, s } from "./dom.js";
import { tell, when, zone } from "./format.js";

const HEIGHT = 170;
const DAY = 86400;
const TWOS = Array.from({ length: 60 }, (_, n) => 2 ** n);
const TENS = Array.from({ length: 45 }, (_, n) => [1, 2, 5][n % 3] * 10 ** Math.floor(n / 3));

// `points`: [{at: milliseconds, y, label}], oldest first; colours are the figure's own.
export function plot({ key, title, points, format, bars = false, binary = false, empty }) {
  const shown = points.filter((point) => point.y !== null && point.y !== undefined);
  const reading = h("output", { class: "reading" });
  const figure = h("figure", { class: "plot", "data-plot": key }, h("figcaption", {}, h("h3", {}, title), reading));
  if (!shown.length) {
    figure.append(h("p", { class: "empty" }, empty));
    return figure;
  }
  const last = shown.at(-1);
  const highest = shown.reduce((one, other) => (other.y > one.y ? other : one));
  const rest = `${bars ? "last" : "now"} ${format(last.y)} · highest ${format(highest.y)}`;
  const place = h("div", { class: "canvas", role: "img", "aria-label": `${title}: ${rest}, at ${when(highest.at)}; ${shown.length} points` });
  figure.append(place);
  const colour = (name) => () => getComputedStyle(place)[name];
  const axis = { stroke: colour("color"), grid: { stroke: colour("borderTopColor"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  // So that no bar is cut off.
  const margin = (from, to) => (from === to ? 60 : bars ? (to - from) * 0.03 : 0);
  const made = new window.uPlot({
    width: 560,
    height: HEIGHT,
    padding: [10, 14, 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false } },
    tzDate: (seconds) => window.uPlot.tzDate(new Date(seconds * 1e3), zone()),
    scales: { y: { range: (_, least, most) => [0, most * 1.08 || 1] }, x: { range: (_, from, to) => [from - margin(from, to), to + margin(from, to)] } },
    axes: [
      { ...axis, size: 30, grid: { show: false }, values: (_, times, __, ___, step) => times.map((at) => (step >= DAY ? tell(at * 1e3, { dateStyle: "short" }).slice(5) : tell(at * 1e3, { timeStyle: step < 60 ? "medium" : "short" }))) },
      { ...axis, size: 74, incrs: binary ? TWOS : TENS, values: (_, values) => values.map(format) },
    ],
    series: [{}, {
      stroke: colour("caretColor"),
      width: 1.6,
      fill: bars ? colour("caretColor") : colour("backgroundColor"),
      paths: bars ? window.uPlot.paths.bars({ size: [0.6, 14] }) : null,
      points: { show: !bars && shown.length <= 60, size: 4 },
    }],
    hooks: {
      setCursor: [({ cursor }) => {
        const point = shown[cursor.idx];
        reading.textContent = point ? `${format(point.y)} · ${when(point.at)} · ${point.label}` : rest;
      }],
    },
  }, [shown.map((point) => point.at / 1e3), shown.map((point) => point.y)], place);
  reading.textContent = rest;
  const redraw = () => made.redraw();
  window.addEventListener("themechange", redraw);
  const watch = new ResizeObserver(() => {
    if (place.isConnected) {
      made.setSize({ width: Math.max(place.clientWidth, 200), height: HEIGHT });
      return;
    }
    watch.disconnect();
    window.removeEventListener("themechange", redraw);
    made.destroy();
  });
  watch.observe(place);
  return figure;
}

export function sparkline(values, text) {
  if (values.length < 2) return null;
  const [width, height, max] = [72, 18, Math.max(...values, 1)];
  const place = (value, n) => `${(n / (values.length - 1)) * (width - 4) + 2} ${height - 2 - (value / max) * (height - 4)}`;
  return s("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": text },
    s("title", {}, text), s("path", { d: `M${values.map(place).join("L")}` }));
}

const KINDS = [["base", "Base"], ["pending", "Pending"], ["reclaimable", "Reclaimable"], ["wal", "WAL"]];

export function storageParts(data) {
  const sizes = { ...data.storage, pending_bytes: data.pending_bytes, reclaimable_bytes: data.reclaimable_bytes };
  return KINDS.map(([kind, name]) => ({ kind, name, value: sizes[`${kind}_bytes`] }));
}

// Parts of a whole, side by side.
export function stack(parts, height, label) {
  const shown = parts.filter((part) => part.value > 0);
  const total = shown.reduce((sum, part) => sum + part.value, 0);
  let x = 0;
  return s("svg", { class: "stack", viewBox: `0 0 1000 ${height}`, height, preserveAspectRatio: "none", role: "img", "aria-label": label },
    shown.map(({ kind, value }) => {
      const width = 8 + (value / total) * (1000 - 8 * shown.length); // a sliver still has to be seen
      x += width;
      return s("rect", { x: x - width, y: 0, width: width - 1.5, height, class: `kind-${kind}` });
    }));
}
