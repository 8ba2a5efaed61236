// Which page is shown, and how it stays fresh. Data are requested while somebody looks.

import { airflowAddress, getData, mirrorAddress } from "./airflow.js";
import { h, say, swap } from "./dom.js";
import { setServerTime, tick } from "./format.js";
import { listPage } from "./list.js";
import { notice } from "./states.js";
import { tablePage } from "./table.js";

const BUSY_MS = 1500;
const session = { value: null };
const [main, notices, freshness, refreshButton] = ["main", "notices", "freshness", "refresh"].map((id) => document.getElementById(id));
let page = null;
let etag = "";
let timer = 0;
let requests = 0;
let problem = null;
let warned = null;

function findTable() {
  try {
    return decodeURIComponent(/^#\/table\/([^/?]+)/.exec(window.location.hash)?.[1] ?? "") || undefined;
  } catch {
    return undefined;
  }
}

function show(first) {
  const name = findTable();
  if (page && page.name === name) {
    page.move();
  } else {
    page = name === undefined ? listPage() : tablePage(name, session);
    etag = "";
    document.title = page.title;
    main.replaceChildren(page.root);
    warn(null);
    if (!first) {
      window.scrollTo(0, 0);
      main.focus({ preventScroll: true });
    }
    load();
  }
  mirrorAddress();
}

async function load(refresh = false) {
  clearTimeout(timer);
  const mine = (requests += 1);
  let next = Math.min(Math.max((session.value?.refresh_seconds ?? 30) / 2, 1), 30) * 1000;
  try {
    const found = await getData(page.endpoint, { ...page.query(), ...(refresh ? { refresh } : {}) }, etag);
    if (mine !== requests) return;
    setServerTime(found.date);
    const data = found.body;
    if (data) {
      etag = found.etag;
      const busy = data.waiting || data.looking || data.planned_at === null;
      document.body.classList.toggle("busy", Boolean(busy));
      if (!data.waiting) {
        page.update(data);
        swap(freshness, page.tell(data));
      }
    }
    if (document.body.classList.contains("busy")) next = BUSY_MS;
    if (data) problem = data.page_problem;
    warn(problem, () => notice("bad", h("strong", {}, "The tables can't be looked at: "), problem));
  } catch (error) {
    if (mine !== requests) return;
    warn(error.message, () => tellFailure(error));
  }
  timer = setTimeout(load, document.hidden ? Math.max(next, 60000) : next);
}

// A notice that stays the same is not read out again.
function warn(text, make) {
  if (text !== warned) swap(notices, text && make());
  warned = text;
}

function tellFailure(error) {
  if (error.status === 401) {
    const login = `../api/v2/auth/login?${new URLSearchParams({ next: window.location.origin + airflowAddress() })}`;
    return notice("ended", h("strong", {}, "Your session has ended."), " What is shown may be old. ", h("a", { href: login, target: "_top" }, "Log in to Airflow"));
  }
  if (error.status === 404 && page.name) return notice("bad", `${page.name}: ${error.message}. `, h("a", { href: "#/" }, "All tables"));
  return notice("bad", `${error.message} What is shown may be old. The page tries again by itself.`);
}

window.addEventListener("hashchange", () => show(false));
document.addEventListener("visibilitychange", () => { if (!document.hidden) load(); });
refreshButton.addEventListener("click", () => {
  say("Looking at the tables.");
  document.body.classList.add("busy");
  etag = "";
  load(true);
});
document.getElementById("skip").addEventListener("click", () => main.focus());
setInterval(tick, 5000);
show(true);
getData("session").then((found) => { session.value = found.body; etag = ""; load(); }, () => {});
