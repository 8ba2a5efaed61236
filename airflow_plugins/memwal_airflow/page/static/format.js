// Numbers, sizes and times for people; times in the zone that was chosen in Airflow.

import { h } from "./dom.js";

export const NOTHING = "–";
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const isMissing = (value) => value === null || value === undefined;

// What the server's clock is ahead of this one, in milliseconds.
let ahead = 0;
export function setServerTime(date) {
  ahead = Date.parse(date) - Date.now() || 0;
}

function digits(value) {
  return value.toFixed(value >= 100 || Number.isInteger(value) ? 0 : value >= 10 ? 1 : 2);
}

export function bytes(value) {
  if (isMissing(value)) return NOTHING;
  const unit = value < 1024 ? 0 : Math.min(Math.floor(Math.log2(value) / 10), UNITS.length - 1);
  return `${digits(value / 1024 ** unit)} ${UNITS[unit]}`;
}

export function count(value) {
  return isMissing(value) ? NOTHING : whole.format(value);
}

export function compact(value) {
  if (isMissing(value)) return NOTHING;
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= 10 * size || (value >= size && unit !== "k")) return `${digits(value / size)}${unit}`;
  }
  return value < 10 ? digits(value) : whole.format(value);
}

export function plural(value, one, many) {
  return `${count(value)} ${value === 1 ? one : many || `${one}s`}`;
}

export function duration(seconds) {
  if (isMissing(seconds)) return NOTHING;
  if (seconds < 10) return `${digits(Math.round(seconds * 10) / 10)} s`;
  for (const [limit, size, unit] of [[90, 1, "s"], [7200, 60, "min"], [172800, 3600, "h"]]) {
    if (seconds < limit) return `${Math.round(seconds / size)} ${unit}`;
  }
  return `${Math.round(seconds / 86400)} d`;
}

// "4 min", "4 min ago", or "in 4 min" for what is yet to come.
function age(iso, style) {
  const seconds = (Date.now() + ahead - Date.parse(iso)) / 1000;
  const text = duration(Math.round(Math.abs(seconds)));
  if (style === "age") return text;
  return Math.abs(seconds) < 2 ? "just now" : seconds < 0 ? `in ${text}` : `${text} ago`;
}

const own = Intl.DateTimeFormat().resolvedOptions().timeZone;

export function zone() {
  try {
    const chosen = JSON.parse(window.localStorage.getItem("timezone"));
    return new Intl.DateTimeFormat("en", { timeZone: chosen || own }).resolvedOptions().timeZone;
  } catch {
    return own; // a browser that keeps nothing, or no zone
  }
}

const formats = new Map();
export function tell(time, options) {
  const key = JSON.stringify([zone(), options]);
  // They cost much to make.
  if (!formats.has(key)) formats.set(key, new Intl.DateTimeFormat("sv", { ...options, timeZone: zone(), hourCycle: "h23" }));
  return formats.get(key).format(new Date(time));
}

// "2026-11-23 04:05:06", as Airflow writes it.
function clock(iso) {
  return tell(iso, { dateStyle: "short", timeStyle: "medium" });
}

export function when(iso) {
  return `${clock(iso)} ${zone()}`;
}

// A time that keeps itself up to date, see `tick`.
export function since(iso, style = "ago") {
  if (!iso) return NOTHING;
  return h("time", { datetime: iso, title: when(iso), "data-style": style }, age(iso, style));
}

// A time as the clock tells it, and how long ago it was.
export function moment(iso) {
  if (!iso) return NOTHING;
  return h("span", { class: "moment" }, h("time", { datetime: iso, title: when(iso), class: "number" }, clock(iso)), " ", h("span", { class: "second" }, since(iso)));
}

export function tick() {
  for (const time of document.querySelectorAll("time[data-style]")) time.textContent = age(time.dateTime, time.dataset.style);
}

// The host of `user@host:pid (start TICKS, boot DIGEST)`.
export function hostOf(holder) {
  return holder.replace(/^[^@]*@/, "").replace(/:\d+( \(.*\))?$/, "");
}
