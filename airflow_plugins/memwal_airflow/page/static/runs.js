// What ran on a table, a page at a time, narrowed by job and outcome. What is chosen is in the
// page's address: #/table/orders?job=merge&outcome=failed, or ?run=ID for the jobs of one run.

import { h } from "./dom.js";
import { NOTHING, bytes, count, duration, hostOf, moment, plural } from "./format.js";
import { mirrorAddress, openInAirflow } from "./frame.js";
import { outcome } from "./icons.js";
import { zoneName } from "./zone.js";

const KEYS = ["job", "outcome", "run"];

export function readRunQuery() {
  const hash = window.location.hash;
  const given = new URLSearchParams(hash.includes("?") ? hash.slice(hash.indexOf("?") + 1) : "");
  return { job: given.get("job") || "", outcome: given.get("outcome") || "", run: (given.get("run") || "").slice(0, 200), offset: 0 };
}

export function runParameters(query) {
  return { run_job: query.job, run_outcome: query.outcome, run_id: query.run, run_offset: query.offset };
}

function narrow(query, change, reload) {
  Object.assign(query, { offset: 0 }, change);
  const given = new URLSearchParams(KEYS.filter((key) => query[key]).map((key) => [key, query[key]]));
  const [place] = window.location.hash.split("?");
  history.replaceState(null, "", given.size ? `${place}?${given}` : place);
  mirrorAddress();
  reload();
}

function select(label, key, counts, query, reload) {
  const known = { ...counts };
  if (query[key] && !(query[key] in known)) known[query[key]] = 0;
  return h("label", { class: "field inline" }, h("span", {}, label),
    h("select", { "data-key": `runs-${key}`, onchange: (event) => narrow(query, { [key]: event.target.value }, reload) },
      h("option", { value: "" }, "Any"),
      Object.entries(known).map(([value, number]) =>
        h("option", { value, selected: query[key] === value }, `${value.replaceAll("_", " ")} (${count(number)})`))));
}

function deed(one) {
  if (one.unit === "fragments:to") return `${count(one.value)} → ${plural(one.to, "fragment")}`;
  if (one.unit.startsWith("bytes:")) return `${bytes(one.value)} ${one.unit.slice(6)}`;
  if (one.value === 1 && one.unit === "indexes") return "1 index";
  return one.value === 1 && /^(generations|shards|repairs)$/.test(one.unit) ? `1 ${one.unit.slice(0, -1)}` : `${count(one.value)} ${one.unit}`;
}

// Where Airflow shows the task that started a run; the addresses are made by the server.
function taskLinks(task) {
  if (!task || !task.run_path) return null;
  const link = (href, text) => h("a", { href, target: "_top", onclick: openInAirflow }, text);
  return h("div", { class: "small" }, link(task.run_path, task.dag_id), " · ", link(task.log_path, `log of try ${task.try_number}`));
}

function runRow(run) {
  return h("tr", { "data-run": run.run_id, class: run.error ? "fault" : null },
    h("td", { "data-label": "When" }, moment(run.finished_at)),
    h("th", { scope: "row" }, run.job),
    h("td", { "data-label": "Outcome" }, outcome(run.outcome)),
    h("td", { "data-label": "Took", class: "number" }, duration(run.seconds)),
    h("td", { "data-label": "Did", class: "did" }, run.did.map(deed).join(" · ") || NOTHING, run.error && h("span", { class: "error" }, run.error)),
    h("td", { "data-label": "Where", class: "muted", title: run.holder || "" }, [run.engine, run.holder && hostOf(run.holder)].filter(Boolean).join(" · "), taskLinks(run.airflow)));
}

function nothing(page, query) {
  if (page.looking) return "Looking through all run records…";
  if (query.run && !query.job && !query.outcome) return "This run has left no record: a verify, a dry run, and a run that finds nothing to do leave none. The task's log tells what it said.";
  if (query.job || query.outcome || query.run) return "No run fits.";
  return "No run has been recorded yet.";
}

function pager(page, query, reload) {
  const last = Math.min(page.offset + page.limit, page.fitting);
  const go = (offset) => () => { query.offset = Math.max(0, offset); reload(); };
  const many = `${count(page.fitting)}${page.more ? " or more" : ""}`;
  const next = last < page.fitting || (page.more && !query.job && !query.outcome && !query.run);
  return h("div", { class: "pager" },
    h("span", { class: "muted number", "data-part": "run-count" }, `${count(page.offset + 1)}–${count(last)} of ${many} ${page.fitting === 1 ? "run" : "runs"}`),
    page.looking && h("span", { class: "muted" }, "looking through older records…"),
    page.cut_at && h("span", { class: "muted" }, `the newest ${count(page.cut_at)} records; \`memwal runs --limit\` lists more`),
    (page.offset > 0 || next) && [
      h("button", { type: "button", class: "button small", "data-key": "runs-back", disabled: page.offset === 0, onclick: go(page.offset - page.limit) }, "Newer"),
      h("button", { type: "button", class: "button small", "data-key": "runs-next", disabled: !next, onclick: go(page.offset + page.limit) }, "Older"),
    ]);
}

export function runSection(data, query, reload) {
  const page = data.run_page;
  const heads = [`When (${zoneName(Date.now())})`, "Job", "Outcome", "Took", "What it did", "Where"];
  return h("section", { "aria-labelledby": "runs-title", id: "runs" },
    h("h2", { id: "runs-title" }, "Runs"),
    data.runs_error && h("p", { class: "notice warn" }, `The run records can't be read: ${data.runs_error}`),
    page.error && h("p", { class: "notice warn" }, `Older run records can't be read: ${page.error}`),
    data.runs_unreadable > 0 && h("p", { class: "muted small" }, `${plural(data.runs_unreadable, "record")} could not be read.`),
    h("div", { class: "bar" },
      select("Job", "job", page.jobs, query, reload), select("Outcome", "outcome", page.outcomes, query, reload),
      query.run && h("span", { class: "only" }, "run ", h("span", { class: "mono" }, query.run),
        h("button", { type: "button", class: "button small", "data-key": "runs-all", onclick: () => narrow(query, { run: "" }, reload) }, "Show all runs"))),
    page.runs.length === 0
      ? h("p", { class: "empty" }, nothing(page, query))
      : [h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Runs", "data-scroll": "runs", "data-key": "runs-scroll" },
        h("table", { class: "runs cards" },
          h("thead", {}, h("tr", {}, heads.map((name) => h("th", { scope: "col", class: name === "Took" ? "number" : null }, name)))),
          h("tbody", {}, page.runs.map(runRow)))), pager(page, query, reload)]);
}
