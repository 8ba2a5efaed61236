// The form that starts the backfill DAG for a table.

import { h } from "./dom.js";
import { openInAirflow } from "./frame.js";
import { post } from "./net.js";

const JOBS = [
  ["merge", "Merge", "pending generations into the base table", true],
  ["index-catchup", "Index catch-up", "indexes over the rows that merging added", true],
  ["compaction", "Compaction", "rewrite small fragments", false],
  ["snapshot", "Snapshot", "refresh the shard snapshot", true],
  ["garbage", "Garbage", "list what nothing needs any more", false],
];

function number(name, label, hint, min) {
  return h("label", { class: "field" }, h("span", {}, label),
    h("input", { type: "number", name, min, step: 1, inputmode: "numeric", placeholder: hint }));
}

function check(name, value, label, note, checked) {
  return h("label", { class: "check" }, h("input", { type: "checkbox", name, value, checked }),
    h("span", {}, label, note && h("span", { class: "muted" }, ` ${note}`)));
}

export function openBackfill(table, shard, session) {
  const result = h("div", { class: "result", role: "status", "aria-live": "polite" });
  const submit = h("button", { type: "submit", class: "button primary" }, "Start");
  const form = h("form", { method: "dialog", novalidate: true },
    h("h2", { id: "backfill-title" }, "Backfill ", h("span", { class: "mono" }, table)),
    h("p", { class: "muted small" }, `Starts the DAG ${session.value.dag_id} in your name.`),
    h("fieldset", {}, h("legend", {}, "Jobs, in this order"), JOBS.map(([value, label, note, on]) => check("jobs", value, label, note, on))),
    h("label", { class: "field" }, h("span", {}, "Shards"),
      h("textarea", { name: "shards", rows: shard ? 2 : 1, spellcheck: "false", placeholder: "all shards; or ids, separated by spaces" }, shard || "")),
    h("fieldset", {}, h("legend", {}, "How"),
      check("dry_run", "1", "Dry run", "only report what would be done", true),
      check("execute", "1", "Delete garbage", "without this, garbage is only listed", false)),
    h("details", {}, h("summary", {}, "Limits"),
      h("div", { class: "fields" },
        number("until_generation", "Until generation", "all", 1),
        number("generations_per_commit_max", "Generations in a commit, at most", "as configured", 1),
        number("bytes_per_commit_max", "Bytes in a commit, at most", "as configured", 1))),
    result,
    h("div", { class: "buttons" }, h("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Close"), submit));
  const dialog = h("dialog", { "aria-labelledby": "backfill-title", class: "dialog", id: "backfill-dialog" }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    result.replaceChildren("Starting…");
    try {
      const started = await post("backfill", order(table, new FormData(form)));
      result.replaceChildren(h("p", { class: "notice good" }, "Started: ",
        h("a", { href: started.path, target: "_top", onclick: openInAirflow, id: "started-run" }, started.run_id)));
    } catch (error) {
      result.replaceChildren(h("p", { class: "notice bad" }, error.message));
    } finally {
      submit.disabled = false;
    }
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function order(table, fields) {
  const whole = (name) => (fields.get(name) ? Number(fields.get(name)) : null);
  return {
    tables: [table],
    shards: String(fields.get("shards")).split(/[\s,]+/).filter(Boolean),
    jobs: fields.getAll("jobs"),
    dry_run: fields.has("dry_run"),
    execute: fields.has("execute"),
    until_generation: whole("until_generation"),
    generations_per_commit_max: whole("generations_per_commit_max"),
    bytes_per_commit_max: whole("bytes_per_commit_max"),
  };
}
