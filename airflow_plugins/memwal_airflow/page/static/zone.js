// The time zone that people chose in Airflow, which keeps it in the browser; else the browser's.

const KEY = "timezone";
const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
const formats = new Map();
let known = { stored: undefined, zone: own };

export function zone() {
  let stored = null;
  try {
    stored = window.localStorage.getItem(KEY);
  } catch {
    return own; // a browser that keeps nothing
  }
  if (stored !== known.stored) known = { stored, zone: read(stored) };
  return known.zone;
}

function read(stored) {
  try {
    const chosen = JSON.parse(stored);
    return typeof chosen === "string" && chosen ? new Intl.DateTimeFormat("en", { timeZone: chosen }).resolvedOptions().timeZone : own;
  } catch {
    return own;
  }
}

// A formatter for the zone of now; they cost much to make.
function format(options) {
  const key = `${zone()} ${JSON.stringify(options)}`;
  if (!formats.has(key)) formats.set(key, new Intl.DateTimeFormat("en-GB", { ...options, timeZone: zone(), hourCycle: "h23" }));
  return formats.get(key);
}

function parts(time, options) {
  return Object.fromEntries(format(options).formatToParts(time).map(({ type, value }) => [type, value]));
}

// "2026-11-23 04:05:06", as Airflow writes it.
export function clock(time) {
  const digits = "2-digit";
  const one = parts(time, { year: "numeric", month: digits, day: digits, hour: digits, minute: digits, second: digits });
  return `${one.year}-${one.month}-${one.day} ${one.hour}:${one.minute}:${one.second}`;
}

// "UTC", "CET", "GMT+5:30".
export function zoneName(time) {
  return parts(time, { timeZoneName: "short" }).timeZoneName;
}

export function briefly(time, options) {
  return format(options).format(time);
}

// What the zone is ahead of UTC at that time, in milliseconds.
export function offset(time) {
  const whole = Math.floor(time / 1000) * 1000;
  return Date.parse(`${clock(whole).replace(" ", "T")}Z`) - whole;
}
