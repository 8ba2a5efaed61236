// All tables, the worst first.

import { sparkline, stack } from "./charts.js";
import { h, swap } from "./dom.js";
import { NOTHING, bytes, count, plural, since } from "./format.js";
import { STATES, outcome, stateBadge, stateIcon } from "./icons.js";

const ROWS_MAX = 500;
const filter = { states: new Set(), text: "" };

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
  if (pending.generations === 0 && !pending.partly) return "nothing pending";
  const least = pending.partly ? "≥ " : "";
  return `${least}${plural(pending.generations, "generation")} · ${bytes(pending.bytes)}`;
}

export function lagText(lag) {
  if (!lag) return "no index";
  if (lag.unrecorded === lag.indexes && !lag.unindexed_rows) return "not recorded";
  const parts = [];
  if (lag.generations) parts.push(plural(lag.generations, "generation"));
  if (lag.unindexed_rows) parts.push(plural(lag.unindexed_rows, "row"));
  return parts.length ? parts.join(" · ") : "none";
}

// The page is made once; `update` puts new data into it.
export function overviewPage() {
  const chips = h("div", { class: "chips", role: "group", "aria-label": "Filter by health" });
  const search = h("input", {
    type: "search", placeholder: "Find a table", "aria-label": "Find a table by name or address",
    value: filter.text, class: "search", "data-key": "search",
  });
  const place = h("div", {});
  const root = h("section", { "aria-labelledby": "tables-title" },
    h("h2", { id: "tables-title", class: "unseen" }, "Tables"),
    h("div", { class: "bar" }, chips, search), place);
  let data = null;

  function render() {
    if (!data) return;
    swap(chips, chipList(data.counts, render));
    swap(place, content(data));
  }
  search.addEventListener("input", () => {
    filter.text = search.value;
    render();
  });
  return {
    root,
    title: "MemWAL",
    update(next) {
      data = next;
      render();
    },
  };
}

function chipList(counts, changed) {
  return Object.entries(STATES).map(([state, word]) => {
    const pressed = filter.states.has(state);
    const toggle = () => {
      if (pressed) filter.states.delete(state);
      else filter.states.add(state);
      changed();
    };
    return h("button", {
      type: "button", class: `chip state-${state}`, "aria-pressed": String(pressed),
      "data-key": `chip-${state}`, "data-count": counts[state], onclick: toggle,
    }, stateIcon(state), h("span", { class: "number" }, counts[state]), word);
  });
}

function content(data) {
  if (data.looked_at === null && data.tables.length === 0) {
    return h("p", { class: "empty" }, "The first look at the tables is under way…");
  }
  if (data.tables.length === 0) return h("p", { class: "empty" }, "No tables to show.");
  const text = filter.text.trim().toLowerCase();
  const fitting = data.tables.filter((line) =>
    (!filter.states.size || filter.states.has(line.health.state)) &&
    (!text || `${line.name} ${line.uri || ""}`.toLowerCase().includes(text)));
  if (fitting.length === 0) return h("p", { class: "empty" }, "No table fits the filter.");
  const left = fitting.length - ROWS_MAX;
  return [
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-labelledby": "tables-title", "data-scroll": "tables", "data-key": "tables-scroll" }, h("table", { class: "tables cards" },
      h("thead", {}, h("tr", {},
        ["Health", "Table", "Backlog", "Oldest", "Index lag", "Storage", "Snapshot", "Last run", "Seen"]
          .map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, fitting.slice(0, ROWS_MAX).map(row)))),
    left > 0 && h("p", { class: "empty" }, `${count(left)} more; narrow the filter to see them.`),
    data.left_out > 0 && h("p", { class: "empty" },
      `${plural(data.left_out, "table")} of the configuration left out: too many for this page.`),
  ];
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
  if (line.error) parts.push(h("span", { class: "second warn", title: line.error }, "last look failed"));
  else if (line.looking) parts.push(h("span", { class: "second" }, "looking…"));
  return h("span", { class: "seen lines" }, parts);
}
