// Which page is shown, and how it stays fresh. Data are requested while somebody looks.

import { say, swap } from "./dom.js";
import { plural, setServerTime, since, tick } from "./format.js";
import { mirrorAddress } from "./frame.js";
import { STATES } from "./icons.js";
import { get, post } from "./net.js";
import { looked, overviewPage } from "./overview.js";
import { failure, problem } from "./states.js";
import { tablePage } from "./table.js";

const BUSY_MS = 1500;
const session = { value: null };
const main = document.getElementById("main");
const notices = document.getElementById("notices");
const refreshButton = document.getElementById("refresh");
let page = null;
let timer = 0;
let requests = 0;
let announce = false;
let quietUntil = 0;

function route() {
  const match = /^#\/table\/([^/?]+)/.exec(window.location.hash);
  if (!match) return null;
  try {
    return decodeURIComponent(match[1]);
  } catch {
    return null;
  }
}

function show(first) {
  const name = route();
  if (page && page.move && page.name === name) {
    page.move();
    mirrorAddress();
    return;
  }
  page = name === null ? overviewPage() : tablePage(name, session, () => load());
  page.name = name;
  document.title = page.title;
  main.replaceChildren(page.root);
  if (!first) {
    window.scrollTo(0, 0);
    main.focus({ preventScroll: true });
  }
  mirrorAddress();
  load();
}

async function load() {
  clearTimeout(timer);
  const mine = (requests += 1);
  const current = page;
  let next = interval();
  try {
    const data = current.name === null ? await get("tables") : await get("table", current.query());
    if (mine !== requests || current !== page) return;
    setServerTime(data.now);
    if (!data.waiting) current.update(data);
    const unseen = data.tables ? data.planned_at === null : data.looked_at === null && !data.error;
    const busy = data.waiting || data.busy || data.looking || unseen;
    document.body.classList.toggle("busy", Boolean(busy));
    if (busy) next = BUSY_MS;
    notify(data.problem ? [problem(data.problem)] : []);
    freshness(data);
  } catch (error) {
    if (mine !== requests || current !== page) return;
    notify([failure(error, current)]);
  }
  timer = setTimeout(load, document.hidden ? Math.max(next, 60000) : next);
}

function interval() {
  const seconds = session.value ? session.value.refresh_seconds : 30;
  return Math.min(Math.max(seconds / 2, 2), 30) * 1000;
}

function notify(content) {
  swap(notices, ...content);
}

function freshness(data) {
  const place = document.getElementById("freshness");
  const counts = data.counts;
  swap(place, data.tables ? looked(data) : data.looked_at ? ["Looked ", since(data.looked_at)] : data.error ? "Never seen" : "Looking…");
  if (announce && !data.waiting && !data.busy && !data.looking && Date.now() > quietUntil) {
    announce = false;
    const worst = counts ? Object.keys(STATES).filter((state) => counts[state] && state !== "ok") : [];
    const text = counts
      ? `${plural(data.tables.length, "table")}: ${worst.map((state) => `${counts[state]} ${STATES[state].toLowerCase()}`).join(", ") || "all well"}.`
      : `${data.name}: ${STATES[data.health.state]}.`;
    say(`Updated. ${text}`);
  }
}

async function refresh() {
  refreshButton.disabled = true;
  say("Looking at the tables.");
  try {
    await post("refresh", { table: page.name });
    announce = true;
    quietUntil = Date.now() + 400;
    document.body.classList.add("busy");
    setTimeout(load, 500);
  } catch (error) {
    if (error.status === 429) say("Somebody asked a moment ago.");
    else notify([failure(error, page)]);
  } finally {
    setTimeout(() => { refreshButton.disabled = false; }, 800);
  }
}

async function whoAmI() {
  try {
    session.value = await get("session");
  } catch {
    session.value = null;
  }
  load();
}

window.addEventListener("hashchange", () => show(false));
// Somebody chose another time zone in Airflow.
window.addEventListener("storage", (event) => { if (event.key === "timezone") show(true); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) load(); });
refreshButton.addEventListener("click", refresh);
document.getElementById("skip").addEventListener("click", () => (document.querySelector(".range p") || main).focus());
setInterval(() => tick(document), 5000);
show(true);
whoAmI();
