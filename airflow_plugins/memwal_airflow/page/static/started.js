// Backfills that were started here, and what becomes of them. The browser's tab remembers them.

import { h, say, swap } from "./dom.js";
import { plural } from "./format.js";
import { openInAirflow } from "./frame.js";
import { get } from "./net.js";

const KEY = "memwal.started";
const KEPT_MAX = 20;
const POLL_MS = 3000;
const places = new Map(); // by table, where its runs are shown, and what to do once one has ended

function read() {
  try {
    return JSON.parse(window.sessionStorage.getItem(KEY)) || [];
  } catch {
    return [];
  }
}

function write(runs) {
  try {
    window.sessionStorage.setItem(KEY, JSON.stringify(runs.slice(-KEPT_MAX)));
  } catch {
    // a browser that keeps nothing shows what it knows until the page is left
  }
}

export function follow(table, run) {
  write([...read(), { table, ...run, state: "queued", ended: false }]);
  draw(table);
  poll(run.run_id);
}

// The runs of a table, below its title; `ended` is called when one is over.
export function startedRuns(table, ended) {
  const place = h("div", { class: "started", role: "status", "data-part": "started" });
  places.set(table, { place, ended });
  draw(table);
  for (const run of read()) if (run.table === table && !run.ended) poll(run.run_id);
  return place;
}

function draw(table) {
  const known = places.get(table);
  if (known) swap(known.place, read().filter((run) => run.table === table).map(line));
}

const polling = new Set();

async function poll(id) {
  if (polling.has(id)) return;
  polling.add(id);
  let run = read().find((one) => one.run_id === id);
  while (run && !run.ended) {
    try {
      run = change(id, await get("backfill", { run_id: id }));
    } catch (error) {
      if (error.status === 404) run = change(id, { ended: true, state: "gone" });
      else if (error.status === 401 || error.status === 403) break;
    }
    if (run && !run.ended) await new Promise((done) => { setTimeout(done, POLL_MS); });
  }
  polling.delete(id);
  if (!run || !run.ended) return;
  say(`Backfill ${verdict(run)}.`);
  const known = places.get(run.table);
  if (known) known.ended();
}

function change(id, found) {
  const runs = read().map((run) => (run.run_id === id ? { ...run, ...found } : run));
  write(runs);
  const changed = runs.find((run) => run.run_id === id);
  if (changed) draw(changed.table);
  return changed;
}

function verdict(run) {
  if (run.state === "gone") return "is no longer known to Airflow";
  if (!run.ended) return run.state === "queued" ? "is queued" : "is under way";
  return run.state === "success" ? "succeeded" : run.state;
}

function details(run) {
  const tables = run.tables || [];
  const own = tables.find((one) => one.table === run.table);
  const wrong = tables.filter((one) => !["done", "nothing_to_do"].includes(one.outcome));
  const parts = [];
  if (own) parts.push(own.error ? `${own.outcome}: ${own.error}` : own.outcome.replaceAll("_", " "));
  if (tables.length > 1) parts.push(`${wrong.length} of ${plural(tables.length, "table")} went wrong`);
  if (run.failed && run.failed.length) parts.push(`failed: ${run.failed.join(", ")}`);
  return parts.join("; ");
}

function line(run) {
  const kind = !run.ended ? "" : run.state === "success" ? "good" : "bad";
  const dismiss = () => { write(read().filter((one) => one.run_id !== run.run_id)); draw(run.table); };
  return h("div", { class: `notice ${kind}`, "data-run-state": run.state },
    h("p", {}, !run.ended && h("span", { class: "spinner", "aria-hidden": "true" }), " ",
      h("strong", {}, `${run.dry_run ? "Dry run of a backfill" : "Backfill"} ${verdict(run)}`), " · ",
      h("a", { href: run.path, target: "_top", onclick: openInAirflow, "data-key": `started-${run.run_id}` }, run.run_id)),
    run.ended && details(run) && h("p", { class: "small" }, details(run)),
    run.ended && h("button", { type: "button", class: "button small", "aria-label": `Dismiss ${run.run_id}`, onclick: dismiss }, "Dismiss"));
}
