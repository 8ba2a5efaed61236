// Small plots: time along the bottom, one quantity upwards from zero.

import { h, s } from "./dom.js";
import { when } from "./format.js";
import { briefly, offset } from "./zone.js";

const HEIGHT = 168;
const PAD = { top: 12, right: 14, bottom: 26 };
// Room for the values of the left axis: at least so much, and what their letters take. A time at the
// right end moves in by what its letters would stick out.
const LEFT_MIN = 58;
const LETTER = 6.8;
const SECOND = 1000;
const DAY = 86400;
// Distances between marks on the time axis, in seconds.
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, DAY, 2 * DAY, 7 * DAY, 30 * DAY, 90 * DAY, 365 * DAY];
const seconds = { hour: "2-digit", minute: "2-digit", second: "2-digit" };
const hours = { hour: "2-digit", minute: "2-digit" };
const days = { day: "numeric", month: "short" };

// Round values from 0 to at least `max`; sizes step in powers of two.
export function valueTicks(max, binary) {
  if (!(max > 0)) return [0, 1];
  const rough = max / 4;
  let step;
  if (binary) {
    step = 2 ** Math.ceil(Math.log2(rough));
  } else {
    const power = 10 ** Math.floor(Math.log10(rough));
    step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    if (max <= 4 && Number.isInteger(max)) step = 1;
  }
  const ticks = [];
  for (let n = 0; n * step < max + step; n += 1) ticks.push(n * step);
  return ticks;
}

export function timeTicks(from, to, places) {
  const span = (to - from) / SECOND;
  const step = (STEPS.find((one) => span / one <= places) || STEPS.at(-1)) * SECOND;
  const zone = -offset(from);
  const ticks = [];
  for (let at = Math.ceil((from - zone) / step) * step + zone; at <= to; at += step) ticks.push(at);
  const format = step >= DAY * SECOND ? days : step >= 60 * SECOND ? hours : seconds;
  return { ticks, label: (at) => briefly(at, format) };
}

function known(points) {
  return points.filter((point) => point.y !== null && point.y !== undefined);
}

function scales(points, width, binary, format) {
  const times = points.map((point) => point.x);
  let [from, to] = [Math.min(...times), Math.max(...times)];
  if (to - from < 10 * SECOND) [from, to] = [from - 5 * SECOND, to + 5 * SECOND];
  const ticks = valueTicks(Math.max(...points.map((point) => point.y)), binary);
  const left = Math.max(LEFT_MIN, 14 + LETTER * Math.max(...ticks.map((value) => String(format(value)).length)));
  const inner = { width: width - left - PAD.right, height: HEIGHT - PAD.top - PAD.bottom };
  return {
    ticks,
    from,
    to,
    inner,
    left,
    x: (at) => left + ((at - from) / (to - from)) * inner.width,
    y: (value) => PAD.top + inner.height - (value / ticks.at(-1)) * inner.height,
  };
}

function axes(scale, format) {
  const { ticks, label } = timeTicks(scale.from, scale.to, Math.max(2, Math.floor(scale.inner.width / 80)));
  const bottom = PAD.top + scale.inner.height;
  const right = scale.left + scale.inner.width + PAD.right;
  return s(
    "g",
    { class: "axes", "aria-hidden": "true" },
    scale.ticks.map((value) => [
      s("line", { x1: scale.left, x2: scale.left + scale.inner.width, y1: scale.y(value), y2: scale.y(value), class: value === 0 ? "zero" : "grid" }),
      s("text", { x: scale.left - 8, y: scale.y(value), class: "value" }, format(value)),
    ]),
    ticks.map((at) => [
      s("line", { x1: scale.x(at), x2: scale.x(at), y1: bottom, y2: bottom + 4, class: "zero" }),
      s("text", { x: Math.min(scale.x(at), right - (LETTER * label(at).length) / 2), y: bottom + 17, class: "time" }, label(at)),
    ]),
  );
}

function line(points, scale) {
  const place = (point) => `${scale.x(point.x).toFixed(1)} ${scale.y(point.y).toFixed(1)}`;
  const path = points.map((point, n) => `${n ? "L" : "M"}${place(point)}`).join("");
  const floor = scale.y(0).toFixed(1);
  const area = `${path}L${scale.x(points.at(-1).x).toFixed(1)} ${floor}L${scale.x(points[0].x).toFixed(1)} ${floor}Z`;
  const dots = points.length <= 60 ? points : points.slice(-1);
  return [
    points.length > 1 && s("path", { d: area, class: "area" }),
    points.length > 1 && s("path", { d: path, class: "series" }),
    dots.map((point) => s("circle", { cx: scale.x(point.x).toFixed(1), cy: scale.y(point.y).toFixed(1), r: 2.4, class: "dot" })),
  ];
}

function bars(points, scale) {
  const gap = scale.inner.width / Math.max(points.length, 8);
  const width = Math.max(2, Math.min(14, gap * 0.6));
  return points.map((point) => {
    const x = Math.min(Math.max(scale.x(point.x), scale.left + width / 2), scale.left + scale.inner.width - width / 2);
    const top = scale.y(point.y);
    return s("rect", { x: (x - width / 2).toFixed(1), y: top.toFixed(1), width: width.toFixed(1), height: Math.max(scale.y(0) - top, 0.5).toFixed(1), class: "bar", rx: 1.5 });
  });
}

// A plot that fits the width it gets, with a reading under the pointer and by the arrow keys.
// `points`: [{x: milliseconds, y: number or null, label}], oldest first.
export function plot({ key, title, points, format, kind, binary, empty }) {
  const shown = known(points);
  const figure = h("figure", { class: "plot", "data-plot": key });
  if (shown.length === 0) {
    figure.append(h("figcaption", {}, h("h3", {}, title)), h("p", { class: "empty" }, empty));
    return figure;
  }
  const last = shown.at(-1);
  const highest = shown.reduce((one, other) => (other.y > one.y ? other : one));
  const reading = h("output", { class: "reading", "aria-live": "off" });
  const summary = `${title}: ${format(last.y)} at ${when(last.x)}; highest ${format(highest.y)} at ${when(highest.x)}; ${shown.length} points.`;
  const place = h("div", { class: "canvas" });
  const rest = () => {
    reading.textContent = `${kind === "bars" ? "last" : "now"} ${format(last.y)} · highest ${format(highest.y)}`;
  };
  figure.append(
    h("figcaption", {}, h("h3", {}, title), reading),
    place,
    asTable(key, title, shown, format),
  );
  rest();
  let width = 0;
  const draw = (next) => {
    width = next;
    const focused = place.contains(document.activeElement);
    const svg = canvas({ shown, width, format, kind, binary, summary, reading, rest, key });
    place.replaceChildren(svg);
    if (focused) svg.focus({ preventScroll: true });
  };
  draw(560);
  const watch = new ResizeObserver((entries) => {
    const next = Math.round(entries[0].contentRect.width);
    if (!place.isConnected) watch.disconnect();
    else if (next > 0 && next !== width) draw(next);
  });
  watch.observe(place);
  return figure;
}

function canvas({ shown, width, format, kind, binary, summary, reading, rest, key }) {
  const scale = scales(shown, width, binary, format);
  const svg = s(
    "svg",
    { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", tabindex: 0, "aria-label": summary, "data-key": `plot-${key}` },
    axes(scale, format),
    kind === "bars" ? bars(shown, scale) : line(shown, scale),
  );
  const cross = s("line", { class: "cross", y1: PAD.top, y2: PAD.top + scale.inner.height, visibility: "hidden" });
  const spot = s("circle", { class: "spot", r: 4, visibility: "hidden" });
  svg.append(cross, spot);
  let at = shown.length - 1;
  const show = (n) => {
    at = Math.max(0, Math.min(shown.length - 1, n));
    const point = shown[at];
    const x = scale.x(point.x).toFixed(1);
    for (const [name, value] of [["x1", x], ["x2", x], ["visibility", "visible"]]) cross.setAttribute(name, value);
    for (const [name, value] of [["cx", x], ["cy", scale.y(point.y).toFixed(1)], ["visibility", "visible"]]) spot.setAttribute(name, value);
    reading.textContent = `${format(point.y)} · ${when(point.x)}${point.label ? ` · ${point.label}` : ""}`;
  };
  const hide = () => {
    cross.setAttribute("visibility", "hidden");
    spot.setAttribute("visibility", "hidden");
    rest();
  };
  svg.addEventListener("pointermove", (event) => {
    const x = event.clientX - svg.getBoundingClientRect().left;
    const distance = (point) => Math.abs(scale.x(point.x) - x);
    show(shown.reduce((best, point, n) => (distance(point) < distance(shown[best]) ? n : best), 0));
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("focus", () => {
    if (svg.matches(":focus-visible")) show(at);
  });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -shown.length, End: shown.length }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    show(at + step);
  });
  return svg;
}

// The same for those who would rather read than look.
function asTable(key, title, points, format) {
  const newest = points.slice(-40).reverse();
  return h(
    "details",
    { class: "numbers", "data-key": `numbers-${key}` },
    h("summary", {}, "Numbers"),
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": title },
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Time"), h("th", { scope: "col", class: "number" }, title), h("th", { scope: "col" }, "What"))),
        h("tbody", {}, newest.map((point) =>
          h("tr", {}, h("td", {}, when(point.x)), h("td", { class: "number" }, format(point.y)), h("td", {}, point.label || "")))),
      ),
    ),
  );
}

// A line the size of a word.
export function sparkline(values, text) {
  if (values.length < 2) return null;
  const [width, height] = [72, 18];
  const max = Math.max(...values, 1);
  const place = (value, n) =>
    `${((n / (values.length - 1)) * (width - 4) + 2).toFixed(1)} ${(height - 2 - (value / max) * (height - 4)).toFixed(1)}`;
  const path = values.map((value, n) => `${n ? "L" : "M"}${place(value, n)}`).join("");
  return s("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": text }, s("title", {}, text), s("path", { d: path, class: "series" }));
}

// Parts of a whole, side by side. `parts`: [{name, value, text, kind}].
export function stack(parts, { height, label }) {
  const shown = parts.filter((part) => part.value > 0);
  const total = shown.reduce((sum, part) => sum + part.value, 0);
  if (!total) return null;
  const width = 1000;
  let x = 0;
  const least = shown.length > 1 ? width * 0.008 : 0; // a sliver still has to be seen
  const scale = (width - least * shown.length) / total;
  return s(
    "svg",
    { class: "stack", viewBox: `0 0 ${width} ${height}`, height, preserveAspectRatio: "none", role: "img", "aria-label": label },
    shown.map((part) => {
      const wide = least + part.value * scale;
      const rect = s("rect", { x: x.toFixed(2), y: 0, width: Math.max(wide - (shown.length > 1 ? 1.5 : 0), 1).toFixed(2), height, class: `kind-${part.kind}` }, s("title", {}, `${part.name}: ${part.text}`));
      x += wide;
      return rect;
    }),
  );
}
