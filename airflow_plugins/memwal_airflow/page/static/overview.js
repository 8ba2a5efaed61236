// All tables: how many are in trouble, and those that the address asks for.

import { sparkline, stack } from "./charts.js";
import { arrangeChildren, h, say, swap } from "./dom.js";
import { NOTHING, bytes, count, plural, serverNow, since } from "./format.js";
import { STATES, outcome, stateBadge } from "./icons.js";
import { chips, clear, pager, picks, shareLink, summary } from "./controls.js";
import { firstLook, nothingYet } from "./states.js";
import { SORTS, START, arrange, countMarks, currentView, viewHash } from "./view.js";

const TYPING_MS = 200;
const COLUMNS = [["Health", "state"], ["Table", "name"], ["Backlog", "backlog"], ["Oldest", "oldest"], ["Index lag", "lag"], ["Storage"], ["Snapshot"], ["Last run"], ["Seen"]];

export const KINDS = [
  ["base", "Base"],
  ["pending", "Pending"],
  ["reclaimable", "Reclaimable"],
  ["wal", "WAL"],
];

export function storageParts(storage) {
  return KINDS.map(([kind, name]) => {
    const value = storage[`${kind}_bytes`];
    return { kind, name, value: value || 0, text: bytes(value) };
  });
}

export function storageLabel(storage) {
  return `Storage: ${storageParts(storage).map(({ name, text }) => `${name.toLowerCase()} ${text}`).join(", ")}`;
}

export function tableHash(name) {
  return `#/table/${encodeURIComponent(name)}`;
}

export function pendingText(pending) {
  if (pending.generations === null) return "not known";
  if (pending.generations === 0) return "nothing pending";
  return `${plural(pending.generations, "generation")} · ${bytes(pending.bytes)}`;
}

export function lagText(lag) {
  if (!lag) return "no index";
  if (lag.unrecorded === lag.indexes && !lag.unindexed_rows) return "not recorded";
  const parts = [];
  if (lag.generations) parts.push(plural(lag.generations, "generation"));
  if (lag.unindexed_rows) parts.push(plural(lag.unindexed_rows, "row"));
  return parts.length ? parts.join(" · ") : "none";
}

// What was heard last: shown at once when somebody comes back to the list.
let known = null;

// The page is made once; `update` puts new data into it, `move` follows the address.
export function overviewPage() {
  const search = h("input", {
    type: "search", placeholder: "Find a table", "aria-label": "Find a table by name or address",
    class: "search", maxlength: 200, oninput: () => { clearTimeout(typing); typing = setTimeout(typed, TYPING_MS); },
  });
  const places = Object.fromEntries(["summary", "states", "picks", "range", "none", "pages"].map((name) => [name, h("div", { class: name })]));
  places.headings = h("tr", {});
  const body = h("tbody", {});
  const listing = h("div", { class: "scroll listing", hidden: true },
    h("table", { class: "tables cards", "aria-labelledby": "tables-title" }, h("thead", {}, places.headings), body));
  const root = h("section", { "aria-labelledby": "tables-title" },
    h("h2", { id: "tables-title", class: "unseen" }, "Tables"),
    places.summary, h("div", { class: "bar" }, places.states, search, places.picks), places.range, listing, places.none, places.pages);
  const made = new Map();
  let view = currentView();
  let typing = 0;
  let turned = false;

  const go = (changes) => { window.location.hash = viewHash({ ...view, page: 1, ...changes }); };
  const turn = (page) => { turned = true; go({ page }); };

  function typed() {
    typing = 0;
    if (root.isConnected) window.location.replace(viewHash({ ...view, page: 1, q: search.value }));
  }

  // What is made of the same data as before stays the same element.
  function keep(key, content, make) {
    const text = JSON.stringify(content);
    if (made.get(key)?.text !== text) made.set(key, { text, element: make() });
    return made.get(key).element;
  }

  function part(name, content, make) {
    keep(name, [view, content], () => { swap(places[name], make()); });
  }

  function render() {
    if (!typing) search.value = view.q;
    const found = arrange(known.tables, view);
    const { fitting, page, pages } = found;
    const marks = countMarks(known.tables);
    part("summary", [known.tables.length, marks], () => summary(known.tables.length, marks, view, go));
    part("states", known.counts, () => chips(known.counts, view, go));
    part("picks", null, () => picks(view, go));
    part("range", range(found), () => [h("p", { tabindex: -1 }, range(found)), clear(view), h("span", { class: "spring" }), shareLink()]);
    part("headings", null, () => COLUMNS.map((column) => heading(column, view, go)));
    arrangeChildren(body, rows(found, view, keep));
    listing.hidden = !fitting;
    root.classList.toggle("bare", !known.tables.length); // nothing to narrow
    part("none", [fitting, known.tables.length, known.planned_at === null, known.missing, known.left_out], () => [
      !fitting && whyEmpty(known),
      known.left_out > 0 && h("p", { class: "empty" }, `${plural(known.left_out, "table")} of the configuration left out: too many for this page.`)]);
    part("pages", [fitting, page, pages], () => fitting > START.rows && pager(found, view, turn, go));
    return found;
  }

  if (known) render();
  return {
    root,
    title: "MemWAL",
    update(data) {
      known = data;
      render();
    },
    move() {
      view = currentView();
      if (!known) return;
      say(`${range(render())}.`);
      if (!turned) return;
      turned = false;
      root.scrollIntoView();
      places.range.firstChild.focus({ preventScroll: true });
    },
  };
}

function range({ first, shown, fitting, total }) {
  if (shown.length === fitting) return fitting === total ? plural(total, "table") : `${count(fitting)} of ${plural(total, "table")}`;
  const all = fitting === total ? "" : `, ${count(total)} in all`;
  return `${count(first + 1)}–${count(first + shown.length)} of ${plural(fitting, "table")}${all}`;
}

function whyEmpty(data) {
  if (data.tables.length) return h("p", { class: "empty" }, "No table fits the filter.");
  return data.planned_at === null ? firstLook("the tables") : nothingYet(data.missing);
}

function heading([label, key], view, go) {
  if (!key) return h("th", { scope: "col" }, label);
  const chosen = view.sort === key;
  const most = SORTS[key].most !== view.reversed;
  return h("th", { scope: "col", "aria-sort": chosen && (most ? "descending" : "ascending") },
    h("button", {
      type: "button", class: "sort", "data-key": `sort-${key}`,
      onclick: () => go({ sort: key, reversed: chosen && !view.reversed }),
    }, label, h("span", { class: "arrow", "aria-hidden": "true" }, chosen ? (most ? "▼" : "▲") : "")));
}

function rows({ groups, shown }, view, keep) {
  const lines = new Map(shown.map((line) => [line, keep(`table ${line.name}`, line, () => row(line))]));
  if (view.group === "none") return [...lines.values()];
  return [...groups].flatMap(([name, members]) => {
    const here = members.filter((line) => lines.has(line));
    if (!here.length) return [];
    const about = [name, members.length, tally(members), here[0] !== members[0]];
    return [keep(`group ${name}`, about, () => groupRow(...about)), ...here.map((line) => lines.get(line))];
  });
}

function tally(members) {
  const counts = {};
  for (const { health } of members) counts[health.state] = (counts[health.state] || 0) + 1;
  return counts;
}

function groupRow(name, size, counts, continued) {
  return h("tr", { class: "group", "data-group": name },
    h("th", { colspan: COLUMNS.length, scope: "colgroup" }, h("span", { class: "grouphead" },
      h("span", {}, name, continued && h("span", { class: "muted" }, " (continued)")),
      h("span", { class: "second" }, plural(size, "table")),
      Object.keys(STATES).filter((state) => counts[state]).map((state) => h("span", { class: "second" }, stateBadge(state), counts[state])))));
}

// What the header says: how old the oldest of what is shown here can be.
export function looked(data) {
  const well = data.tables.filter((line) => line.looked_at && !line.error).length;
  const all = data.tables.length;
  if (!all && data.planned_at !== null) return "";
  if (!well) return all && !data.busy ? "No table could be looked at" : "Looking…";
  return ["Looked ", since(data.looked_at), well < all && ` at ${count(well)} of ${plural(all, "table")}`];
}

function row(line) {
  const cell = (label, ...content) => h("td", { "data-label": label }, ...content);
  const reason = line.health.reasons[0];
  return h("tr", { "data-table": line.name, "data-state": line.health.state, class: line.looked_at ? null : "blank" },
    cell("Health", stateBadge(line.health.state)),
    h("th", { scope: "row", class: "name" },
      h("a", { href: tableHash(line.name), "data-key": `table-${line.name}` }, line.name),
      h("span", { class: "reason", title: line.health.reasons.join("\n") }, reason || line.uri || "")),
    cell("Backlog", line.looked_at ? backlogCell(line) : NOTHING),
    cell("Oldest", since(line.oldest_pending_at, "age")),
    cell("Index lag", line.looked_at ? lagCell(line.index_lag) : NOTHING),
    cell("Storage", storageCell(line.storage)),
    cell("Snapshot", since(line.snapshot_at, "age")),
    cell("Last run", line.last_run
      ? h("span", { class: "lines" }, line.last_run.job,
        h("span", { class: "second" }, outcome(line.last_run.outcome), " ", since(line.last_run.finished_at)))
      : h("span", { class: "muted" }, "none")),
    cell("Seen", seen(line)));
}

function backlogCell(line) {
  const [generations, size] = pendingText(line.pending).split(" · ");
  const trend = sparkline(line.trend, `Backlog over the last runs: ${line.trend.join(", ")} generations`);
  return h("span", { class: "backlog" },
    h("span", { class: "lines number" }, h("span", { class: size ? "" : "muted" }, generations),
      size && h("span", { class: "second" }, size)),
    trend);
}

function lagCell(lag) {
  const [first, second] = lagText(lag).split(" · ");
  const quiet = ["none", "no index", "not recorded"].includes(first);
  return h("span", { class: "lines number" }, h("span", { class: quiet ? "muted" : "" }, first),
    second && h("span", { class: "second" }, second));
}

function storageCell(storage) {
  if (!storage) return NOTHING;
  const parts = storageParts(storage);
  const total = parts.reduce((sum, part) => sum + part.value, 0);
  return h("span", { class: "storagecell" },
    h("span", { class: "number" }, bytes(total)), stack(parts, { height: 6, label: storageLabel(storage) }));
}

export function seen(line) {
  const parts = [line.looked_at ? since(line.looked_at) : "never"];
  const retry = line.next_try_at && Date.parse(line.next_try_at) > serverNow();
  if (line.unreachable_since) parts.push(h("span", { class: "second warn", title: line.error }, "silent for ", since(line.unreachable_since, "age")));
  else if (line.error) parts.push(h("span", { class: "second warn", title: line.error }, "last look failed"));
  if (line.looking) parts.push(h("span", { class: "second" }, "looking…"));
  else if (retry) parts.push(h("span", { class: "second" }, "next try ", since(line.next_try_at)));
  return h("span", { class: "seen lines" }, parts);
}
