// What a table keeps: checkpoints, cursors, and what garbage collection holds, and why.

import { h, swap } from "./dom.js";
import { NOTHING, bytes, count, moment, plural, since } from "./format.js";
import { get } from "./net.js";

const POLL_MS = 1500;

export function checkpointSection(data) {
  return keptSection("checkpoint", data.checkpoints, [
    ["State", (one) => one.state, (one) => (one.state === "kept" ? null : "warn")],
    ["Version", (one) => count(one.version), "number"],
    ["Generations", (one) => count(one.generations), "number"],
    ["Made", (one) => moment(one.created_at)],
    ["Expires", (one) => (one.expires_at ? moment(one.expires_at) : "never")],
    ["Holder", (one) => one.holder, "muted"],
  ]);
}

// How far each consumer of the table's changes has come.
export function cursorSection(data) {
  const isLate = (one) => one.expires_at && Date.parse(one.expires_at) < Date.parse(data.now);
  return keptSection("cursor", data.cursors, [
    ["Version", (one) => count(one.version), "number"],
    ["Behind", (one) => (one.behind === null ? NOTHING : plural(one.behind, "version")), "number"],
    ["Moved", (one) => moment(one.moved_at)],
    ["By", (one) => one.holder, "muted"],
    ["Keeps versions until", (one) => moment(one.expires_at), (one) => (isLate(one) ? "warn" : null)],
  ]);
}

function keptSection(what, found, columns) {
  if (found.length === 0) return null;
  const title = `${what[0].toUpperCase()}${what.slice(1)}`;
  return h("section", { "aria-labelledby": `${what}s-title` },
    h("h2", { id: `${what}s-title` }, `${title}s`),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `${title}s` },
      h("table", { class: "cards" },
        h("thead", {}, h("tr", {}, [[title], ...columns].map(([name, , kind]) => h("th", { scope: "col", class: kind === "number" ? kind : null }, name)))),
        h("tbody", {}, found.map((one) => h("tr", { [`data-${what}`]: one.name },
          h("th", { scope: "row" }, one.name),
          columns.map(([name, show, kind]) => h("td", { "data-label": name, class: typeof kind === "function" ? kind(one) : kind || null }, show(one)))))))));
}

// Looked for when somebody asks: it takes a listing of all that the table keeps.
export function garbageSection(name) {
  const place = h("div", { "data-part": "garbage" });
  const button = h("button", { type: "button", class: "button", id: "list-garbage" }, "List what is held, and why");
  const last = h("p", { class: "muted small" });
  const root = h("section", { "aria-labelledby": "garbage-title" },
    h("h2", { id: "garbage-title" }, "Garbage"), last, button, place);
  let timer = 0;

  async function look() {
    clearTimeout(timer);
    if (!root.isConnected) return;
    try {
      const found = await get("garbage", { name });
      swap(place, found.looking ? h("p", { class: "empty apart", role: "status" }, "Listing what the table keeps…") : listing(found));
      button.disabled = found.looking;
      if (found.looking) timer = setTimeout(look, POLL_MS);
    } catch (error) {
      swap(place, h("p", { class: "notice bad", role: "alert" }, error.message));
      button.disabled = false;
    }
  }
  button.addEventListener("click", () => { button.disabled = true; look(); });
  return { root, update(data) { swap(last, collected(data)); } };
}

function collected(data) {
  const run = data.last_garbage;
  const now = data.reclaimable && data.reclaimable.generations
    ? `${plural(data.reclaimable.generations, "generation")} (${bytes(data.reclaimable.bytes)}) merged and indexed: they go once no retained version needs them. `
    : "No generation could go now. ";
  if (!run) {
    const piles = data.reclaimable && !data.reclaimable.collected
      ? 'Nothing deletes them: the table has no retention. In memwal.toml, retention = "7d" lets jobs do it. ' : "";
    return [now, piles, "No collection that deletes is among the recorded runs; those that only list leave no record."];
  }
  return [now, "The last collection, ", since(run.finished_at), ", ", run.outcome === "done" ? "" : `${run.outcome}: `,
    run.error || (run.did.length ? run.did.map((one) => `${one.unit === "bytes:freed" ? bytes(one.value) : count(one.value)} ${one.unit.replace("bytes:", "")}`).join(", ") : "deleted nothing"), "."];
}

const ACTIONS = { keep: "held", drop: "would be dropped", delete: "would be deleted" };

function listing(found) {
  const heads = ["What", "How many", "Bytes", "What happens", "Why"];
  return [
    found.error && h("p", { class: "notice bad", role: "alert" }, found.error),
    found.looked_at && h("p", { class: "muted small apart" }, "Listed ", since(found.looked_at), ", by the limits of the DAG memwal_garbage; nothing was deleted."),
    found.warnings.map((text) => h("p", { class: "notice warn" }, text)),
    found.looked_at && (found.held.length === 0
      ? h("p", { class: "empty" }, "Nothing is held, and nothing could go.")
      : h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Garbage" },
        h("table", { class: "cards garbage" },
          h("thead", {}, h("tr", {}, heads.map((name, n) => h("th", { scope: "col", class: n === 1 || n === 2 ? "number" : null }, name)))),
          h("tbody", {}, found.held.map((one) => h("tr", {},
            h("th", { scope: "row" }, one.kind.replaceAll("_", " ")),
            h("td", { "data-label": "How many", class: "number" }, count(one.count)),
            h("td", { "data-label": "Bytes", class: "number" }, one.bytes ? bytes(one.bytes) : NOTHING),
            h("td", { "data-label": "What happens" }, ACTIONS[one.action] || one.action),
            h("td", { "data-label": "Why", class: "did" }, one.reason)))))))];
}
