// All tables: how many are in which state, and those that the address asks for, as in
// #/?q=orders&state=broken,attention&sort=name&page=2

import { mirrorAddress } from "./airflow.js";
import { sparkline, stack, storageParts } from "./charts.js";
import { grid, h, pager, pick, say, swap } from "./dom.js";
import { NOTHING, bytes, count, plural, since } from "./format.js";
import { STATES, badge, firstLook, outcome, stateIcon } from "./states.js";

const SIZE = 50;
const names = new Intl.Collator("en", { numeric: true }).compare;
const rank = Object.keys(STATES);
const most = (key) => (one, other) => (other[key] ?? -1) - (one[key] ?? -1);
const oldest = most("oldest_pending_seconds");
const SORTS = {
  worst: ["Worst first", (one, other) => rank.indexOf(one.state) - rank.indexOf(other.state) || oldest(one, other)],
  name: ["Name", () => 0],
  backlog: ["Backlog", most("pending_generations")],
  oldest: ["Oldest pending", oldest],
  lag: ["Index lag", most("index_lag_generations")],
};

// Where "All tables" leads back to.
let last = "#/";
export const lastList = () => last;

function readView() {
  const query = new URLSearchParams(window.location.hash.split("?")[1] || "");
  const states = (query.get("state") || "").split(",");
  const sort = query.get("sort") || "";
  last = window.location.hash || "#/";
  return {
    q: query.get("q") || "",
    state: rank.filter((state) => states.includes(state)),
    sort: Object.hasOwn(SORTS, sort) ? sort : "worst",
    page: Math.max(1, parseInt(query.get("page"), 10) || 1),
  };
}

function hashOf(view) {
  const given = { q: view.q, state: view.state.join(","), sort: view.sort === "worst" ? "" : view.sort, page: view.page > 1 ? view.page : "" };
  const query = new URLSearchParams(Object.entries(given).filter(([, value]) => value));
  return query.size ? `#/?${query}`.replaceAll("%2C", ",") : "#/";
}

// The page is made once; `update` puts new data into it, `move` follows the address.
export function listPage() {
  const places = Object.fromEntries(["chips", "order", "rows"].map((name) => [name, h("div", { class: name })]));
  const search = h("input", { type: "search", class: "search", placeholder: "Find a table", "aria-label": "Find a table by name or address", maxlength: 200 });
  const bar = h("div", { class: "bar", hidden: true }, places.chips, search, places.order);
  const root = h("section", { "aria-labelledby": "tables-title" }, h("h2", { id: "tables-title", class: "unseen" }, "Tables"), bar, places.rows);
  let view = readView();
  let data = null;

  const go = (changes) => { window.location.hash = hashOf({ ...view, page: 1, ...changes }); };
  search.value = view.q;
  search.addEventListener("input", () => {
    view = { ...view, q: search.value, page: 1 };
    last = hashOf(view);
    window.history.replaceState(null, "", last);
    mirrorAddress();
    render();
  });

  function render() {
    const text = view.q.trim().toLowerCase();
    const fitting = data.tables
      .filter((line) => (!view.state.length || view.state.includes(line.state)) && `${line.name} ${line.uri || ""}`.toLowerCase().includes(text))
      .sort((one, other) => SORTS[view.sort][1](one, other) || names(one.name, other.name));
    const offset = Math.min(view.page - 1, Math.max(0, Math.ceil(fitting.length / SIZE) - 1)) * SIZE;
    bar.hidden = !data.tables.length; // nothing to narrow
    swap(places.chips, Object.entries(STATES).map(([state, word]) => h("button", {
      type: "button", class: `chip state-${state}`, "aria-pressed": String(view.state.includes(state)), "data-key": `chip-${state}`,
      onclick: () => go({ state: view.state.includes(state) ? view.state.filter((one) => one !== state) : [...view.state, state] }),
    }, stateIcon(state), h("span", { class: "number" }, count(data.counts[state])), word)));
    swap(places.order, pick("Order", Object.entries(SORTS).map(([key, [label]]) => [key, label]), view.sort, (sort) => go({ sort }), "order"));
    const turn = (to) => { go({ page: to / SIZE + 1 }); window.scrollTo(0, 0); };
    swap(places.rows,
      fitting.length ? grid("Tables", COLUMNS, fitting.slice(offset, offset + SIZE), (line) => ({ "data-table": line.name, "data-state": line.state }), "tables") : whyEmpty(data),
      data.tables.length > 0 && pager("table", "table", offset, SIZE, fitting.length, turn),
      data.left_out > 0 && h("p", { class: "empty" }, `${plural(data.left_out, "table")} of the configuration left out: too many for this page.`));
    return fitting.length;
  }

  return {
    root,
    title: "MemWAL",
    endpoint: "tables",
    query: () => ({}),
    update(found) {
      data = found;
      render();
    },
    move() {
      view = readView();
      if (document.activeElement !== search) search.value = view.q;
      if (data) say(`${plural(render(), "table")}.`);
    },
    tell(found) {
      const seen = found.tables.filter((line) => line.looked_at && !line.problem).map((line) => line.looked_at).sort();
      if (!seen.length) return found.looking ? "Looking…" : "";
      return ["Looked ", since(seen[0]), seen.length < found.tables.length && ` at ${count(seen.length)} of ${plural(found.tables.length, "table")}`];
    },
  };
}

function whyEmpty(data) {
  if (data.tables.length) return h("p", { class: "empty" }, "No table fits. ", h("a", { href: "#/" }, "Show all"));
  if (data.planned_at === null) return firstLook("the tables");
  if (!data.missing) return h("p", { class: "empty" }, "No tables to show.");
  // Nothing is wrong: there is only nothing to show yet.
  return h("div", { class: "empty start", "data-state": "empty" },
    h("p", {}, h("strong", {}, data.missing.says), " Add this to ", h("code", {}, data.missing.file), ":"),
    h("pre", { tabindex: 0 }, data.missing.lines),
    h("p", { class: "small" }, "The page looks again by itself."));
}

export function sinceOldest(line) {
  if (!line.oldest_pending_seconds) return NOTHING;
  return since(new Date(Date.parse(line.looked_at) - line.oldest_pending_seconds * 1000).toISOString(), "age");
}

function seen(line) {
  const more = line.looking ? "looking…" : null;
  return h("span", { class: "lines" }, line.looked_at ? since(line.looked_at) : "never", line.problem && more && h("span", { class: "second" }, more));
}

const second = (text) => h("span", { class: "second" }, text);

const COLUMNS = [
  ["Health", (line) => badge(line.state)],
  ["Table", (line) => [h("a", { href: `#/table/${encodeURIComponent(line.name)}`, "data-key": `table-${line.name}` }, line.name),
    h("span", { class: "why", title: line.why.join("\n") }, line.why[0] || line.uri)], "head"],
  ["Backlog", (line) => h("span", { class: "backlog" }, h("span", { class: "lines number" },
    line.pending_generations === 0 ? h("span", { class: "muted" }, "nothing") : line.pending_generations === null ? NOTHING
      : [plural(line.pending_generations, "generation"), second(bytes(line.pending_bytes))]),
  sparkline(line.trend, `Backlog over the last runs: ${line.trend.join(", ")} generations`))],
  ["Oldest", sinceOldest],
  ["Index lag", (line) => (line.index_lag_generations === 0 ? h("span", { class: "muted" }, "none") : line.index_lag_generations === null ? NOTHING : plural(line.index_lag_generations, "generation"))],
  ["Storage", (line) => {
    if (!line.storage) return NOTHING;
    const parts = storageParts(line);
    const label = parts.map(({ name, value }) => `${name} ${bytes(value)}`).join(", ");
    return h("span", { class: "storagecell", title: label }, bytes(parts.reduce((sum, { value }) => sum + (value || 0), 0)), stack(parts, 6, label));
  }],
  ["Now", (line) => (line.lease?.state === "held" ? h("span", { class: "lines" }, line.lease.job, second(["since ", since(line.lease.acquired_at, "age")])) : line.looked_at ? h("span", { class: "muted" }, "idle") : NOTHING)],
  ["Last run", (line) => (line.last_run
    ? h("span", { class: "lines" }, line.last_run.job, second([outcome(line.last_run.outcome), " ", since(line.last_run.finished_at)]))
    : h("span", { class: "muted" }, "none"))],
  ["Seen", seen],
];
