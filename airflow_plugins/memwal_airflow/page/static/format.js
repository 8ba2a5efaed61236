// Numbers, sizes and times for people.

import { h } from "./dom.js";
import { clock, zoneName } from "./zone.js";

export const NOTHING = "–";
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

// What the server's clock is ahead of this one, in milliseconds.
let ahead = 0;

export function setServerTime(iso) {
  ahead = Date.parse(iso) - Date.now();
}

export function serverNow() {
  return Date.now() + ahead;
}

function digits(value) {
  return value.toFixed(value >= 100 || Number.isInteger(value) ? 0 : value >= 10 ? 1 : 2);
}

export function bytes(value) {
  if (value === null || value === undefined) return NOTHING;
  let unit = 0;
  let size = value;
  while (size >= 1024 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? whole.format(size) : digits(size)} ${UNITS[unit]}`;
}

export function count(value) {
  return value === null || value === undefined ? NOTHING : whole.format(value);
}

export function compact(value) {
  if (value === null || value === undefined) return NOTHING;
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (value >= size) return `${digits(value / (unit === "k" ? 1e3 : size))}${unit}`;
  }
  return value < 10 && !Number.isInteger(value) ? digits(value) : whole.format(value);
}

export function plural(value, one, many) {
  return `${count(value)} ${value === 1 ? one : many || `${one}s`}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

// "4 min", or "in 4 min" for what is yet to come.
export function age(iso) {
  const seconds = (serverNow() - Date.parse(iso)) / 1000;
  const text = duration(Math.abs(Math.round(seconds)) < 1 ? 0 : Math.abs(Math.round(seconds)));
  return text.replace(/^(\d)\.0 s$/, "$1 s");
}

export function ago(iso) {
  const seconds = (serverNow() - Date.parse(iso)) / 1000;
  if (Math.abs(seconds) < 2) return "just now";
  return seconds < 0 ? `in ${age(iso)}` : `${age(iso)} ago`;
}

export function when(iso) {
  const time = new Date(iso);
  return `${clock(time)} ${zoneName(time)}`;
}

// A time that keeps itself up to date, see `tick`.
export function since(iso, style) {
  if (!iso) return NOTHING;
  const shown = style === "age" ? age(iso) : ago(iso);
  return h("time", { datetime: iso, title: when(iso), "data-style": style || "ago" }, shown);
}

// A time as the clock tells it, and how long ago it was.
export function moment(iso) {
  if (!iso) return NOTHING;
  return h("span", { class: "moment" }, h("time", { datetime: iso, title: when(iso), class: "number" }, clock(new Date(iso))), " ", h("span", { class: "second" }, since(iso)));
}

export function tick(root) {
  for (const time of root.querySelectorAll("time[data-style]")) {
    const iso = time.getAttribute("datetime");
    const text = time.dataset.style === "age" ? age(iso) : ago(iso);
    if (time.textContent !== text) time.textContent = text;
  }
}

// The host of `user@host:pid (start TICKS, boot DIGEST)`; what else there is tells programs more than people.
export function hostOf(holder) {
  return holder.replace(/^[^@]*@/, "").replace(/:\d+( \(.*\))?$/, "");
}
