// The form that starts the backfill DAG for a table.

import { h } from "./dom.js";
import { openInAirflow } from "./frame.js";
import { get, post } from "./net.js";
import { follow } from "./started.js";

const JOBS = [
  ["merge", "Merge", "pending generations into the base table", true],
  ["index-catchup", "Index catch-up", "indexes over the rows that merging added", true],
  ["compaction", "Compaction", "rewrite small fragments", false],
  ["snapshot", "Snapshot", "refresh the shard snapshot", true],
  ["garbage", "Garbage", "list what nothing needs any more", false],
];
const MERGE = { text: "Merge", holds: (chosen) => chosen.jobs.has("merge") };
const BACKFILL = { text: "Merge or Index catch-up", holds: (chosen) => chosen.jobs.has("merge") || chosen.jobs.has("index-catchup") };
const GARBAGE = { text: "Garbage", holds: (chosen) => chosen.jobs.has("garbage") };
const ONE_TABLE = { text: "this table only", holds: (chosen) => !chosen.all };
const ALL_TABLES = { text: "all tables", holds: (chosen) => chosen.all };
// What a field needs to have an effect.
const NEEDS = {
  shards: [MERGE, ONE_TABLE],
  until_generation: [MERGE],
  generations_per_commit_max: [MERGE],
  bytes_per_commit_max: [MERGE],
  concurrency: [BACKFILL, ALL_TABLES],
  deadline: [BACKFILL],
  engine: [BACKFILL],
  execute: [GARBAGE],
};
const NUMBERS = ["until_generation", "generations_per_commit_max", "bytes_per_commit_max", "concurrency"];

// A place for "needs Merge", which the field is described by.
function need(name) {
  return h("span", { class: "need", id: `need-${name}`, "data-need": name });
}

function field(name, label, input) {
  input.setAttribute("name", name);
  input.setAttribute("aria-describedby", `need-${name}`);
  return h("label", { class: "field" }, h("span", {}, label, " ", need(name)), input);
}

function number(name, label, hint, min, max) {
  return field(name, label, h("input", { type: "number", min, max, step: 1, inputmode: "numeric", placeholder: hint }));
}

function check(name, value, label, note, checked) {
  return h("label", { class: "check" },
    h("input", { type: "checkbox", name, value, checked, "aria-describedby": name in NEEDS ? `need-${name}` : null }),
    h("span", {}, label, note && h("span", { class: "muted" }, ` ${note}`), " ", name in NEEDS && need(name)));
}

function radio(value, checked, ...label) {
  return h("label", { class: "check" }, h("input", { type: "radio", name: "which", value, checked }), h("span", {}, label));
}

function fields(table, shard, session) {
  const engines = [["", "as configured"], ["auto", "auto"], ["spark", "spark"], ["local", "local"]];
  return [
    h("h2", { id: "backfill-title" }, "Backfill ", h("span", { class: "mono" }, table)),
    h("p", { class: "muted small" }, `Starts the DAG ${session.value.dag_id} in your name.`),
    h("fieldset", {}, h("legend", {}, "Jobs, in this order"), JOBS.map(([value, label, note, on]) => check("jobs", value, label, note, on))),
    h("fieldset", {}, h("legend", {}, "How"),
      check("dry_run", "1", "Dry run", "only report what would be done", true),
      check("execute", "1", "Delete garbage", "without this, it is only listed", false)),
    h("details", { open: Boolean(shard) }, h("summary", {}, "Which tables, shards and generations"),
      h("div", { class: "fields" },
        h("div", {}, radio("one", true, "This table only"), radio("all", false, "All tables of the configuration")),
        field("shards", "Shards", h("textarea", { rows: shard ? 2 : 1, spellcheck: "false", placeholder: "all; or ids" }, shard || "")),
        number("until_generation", "Until generation", "all", 1))),
    h("details", {}, h("summary", {}, "Limits and engine"),
      h("div", { class: "fields" },
        number("generations_per_commit_max", "Generations in a commit, at most", "as configured", 1),
        number("bytes_per_commit_max", "Bytes in a commit, at most", "as configured", 1),
        number("concurrency", "Tables side by side", "as configured", 1, 256),
        field("deadline", "Begin nothing after", h("input", { type: "text", placeholder: "no limit; such as 2h", pattern: "[0-9]+(\\.[0-9]+)?[smhd]" })),
        field("engine", "Engine", h("select", {}, engines.map(([value, text]) => h("option", { value }, text)))))),
  ];
}

// Fields without an effect are off, and say what they need.
function offer(form) {
  const given = new FormData(form);
  const chosen = { jobs: new Set(given.getAll("jobs")), all: given.get("which") === "all" };
  for (const [name, needs] of Object.entries(NEEDS)) {
    const missing = needs.find((one) => !one.holds(chosen));
    form.elements[name].disabled = Boolean(missing);
    form.querySelector(`[data-need=${name}]`).textContent = missing ? `needs ${missing.text}` : "";
  }
}

export function openBackfill(table, shard, session) {
  const result = h("div", { class: "result", role: "status", "aria-live": "polite" });
  const submit = h("button", { type: "submit", class: "button primary" }, "Start");
  const form = h("form", { method: "dialog" }, fields(table, shard, session), result,
    h("div", { class: "buttons" }, h("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Close"), submit));
  const dialog = h("dialog", { "aria-labelledby": "backfill-title", class: "dialog", id: "backfill-dialog" }, form);
  const show = (kind, ...content) => result.replaceChildren(h("p", { class: `notice ${kind}` }, ...content));
  form.addEventListener("change", () => offer(form));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    result.replaceChildren("Starting…");
    try {
      const order = makeOrder(await list(table, form), form);
      const started = await post("backfill", order);
      // Off for good: a second click would start a second run.
      submit.textContent = "Started";
      show("good", "Started: ", h("a", { href: started.path, target: "_top", onclick: openInAirflow, id: "started-run" }, started.run_id),
        ". The table's page tells what comes of it.");
      follow(table, { ...started, dry_run: order.dry_run });
    } catch (error) {
      show("bad", error.message);
      submit.disabled = false;
    }
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  offer(form);
  dialog.showModal();
}

async function list(table, form) {
  if (new FormData(form).get("which") !== "all") return [table];
  return (await get("tables")).tables.map((line) => line.name);
}

function makeOrder(tables, form) {
  const given = new FormData(form); // without what is off
  return {
    tables,
    shards: String(given.get("shards") || "").split(/[\s,]+/).filter(Boolean),
    jobs: given.getAll("jobs"),
    dry_run: given.has("dry_run"),
    execute: given.has("execute"),
    deadline: given.get("deadline") || null,
    engine: given.get("engine") || null,
    ...Object.fromEntries(NUMBERS.map((name) => [name, given.get(name) ? Number(given.get(name)) : null])),
  };
}
