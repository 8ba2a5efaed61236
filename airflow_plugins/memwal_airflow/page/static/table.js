// One table: what is wrong, how it stands, and what the jobs did.

import { airflowLink, mirrorAddress } from "./airflow.js";
import { plot, stack, storageParts } from "./charts.js";
import { grid, h, pager, pick, swap } from "./dom.js";
import { NOTHING, bytes, compact, count, duration, hostOf, moment, plural, since } from "./format.js";
import { lastList, sinceOldest } from "./list.js";
import { badge, firstLook, notice, outcome } from "./states.js";
import { openTrigger } from "./trigger.js";

const SHARDS = 50;
const RUNS = 25;
const muted = (text) => h("span", { class: "muted" }, text);

export function tablePage(name, session) {
  const places = Object.fromEntries(["head", "charts", "shards", "kept", "runs"].map((part) => [part, h("div", { "data-part": part })]));
  const root = h("article", {}, places.head, places.charts, places.shards, places.kept, places.runs);
  const search = h("input", { type: "search", class: "search", placeholder: "Find a shard", "aria-label": "Find a shard by id", "data-key": "shard-text" });
  const shardQuery = { text: "", offset: 0 };
  const shown = {};
  let runQuery = readRunQuery();
  let data = null;

  // A part is drawn again only when its data changed, so that a reader is not disturbed.
  function part(key, content, make) {
    const text = JSON.stringify(content);
    if (shown[key] === text) return;
    shown[key] = text;
    swap(places[key], make());
  }

  function render() {
    const { shards, runs, indexes, checkpoints, cursors, ...rest } = data;
    const unseen = !data.looked_at;
    part("head", [rest, session.value], () => [heading(data, session.value), unseen
      ? (data.problem ? h("p", { class: "empty apart" }, "Nothing is known of this table.") : firstLook("this table"))
      : tiles(data)]);
    if (unseen) return;
    part("charts", [runs, data.pending_generations, data.storage, data.looked_at], () => [charts(data), storage(data)]);
    part("shards", [shards, shardQuery], () => shardSection(data, shardQuery, search, render));
    part("kept", [indexes, checkpoints, cursors], () => KEPT.map(([title, key, columns]) => data[key].length > 0 && section(title, grid(title, columns, data[key]))));
    part("runs", [runs, data.runs_error, runQuery], () => runSection(data, runQuery, narrow));
  }

  search.addEventListener("input", () => {
    Object.assign(shardQuery, { text: search.value, offset: 0 });
    render();
    search.focus();
  });

  function narrow(change) {
    runQuery = { ...runQuery, offset: 0, ...change };
    const query = new URLSearchParams(Object.entries(runQuery).filter(([key, value]) => value && key !== "offset"));
    window.history.replaceState(null, "", `#/table/${encodeURIComponent(name)}${query.size ? `?${query}` : ""}`);
    mirrorAddress();
    render();
  }

  return {
    root,
    name,
    title: `${name} · MemWAL`,
    endpoint: "table",
    query: () => ({ name }),
    update(found) {
      const first = !data?.looked_at && found.looked_at;
      data = found;
      render();
      // A link from Airflow names the run that a task made.
      if (first && runQuery.run) places.runs.scrollIntoView();
    },
    move() {
      runQuery = readRunQuery();
      if (data) render();
    },
    tell: (found) => (found.looked_at ? ["Looked ", since(found.looked_at)] : found.problem ? "Never seen" : "Looking…"),
  };
}

function section(title, ...content) {
  return h("section", { "aria-label": title }, h("h2", {}, title), content);
}

// Commands stand between backticks.
function prose(text) {
  return text.split("`").map((piece, n) => (n % 2 ? h("code", {}, piece) : piece));
}

function heading(data, session) {
  const may = session?.dags.length > 0;
  return [
    h("nav", { "aria-label": "Breadcrumb", class: "crumbs" }, h("a", { href: lastList() }, "All tables"), " / ", h("span", { "aria-current": "page" }, data.name)),
    h("div", { class: "titleline" }, h("h2", {}, data.name), badge(data.state), h("span", { class: "spring" }),
      h("button", { type: "button", class: "button primary", id: "trigger", "data-key": "trigger", disabled: !may, "aria-describedby": may ? null : "why-not", onclick: () => openTrigger(data.name, session.dags) }, "Trigger…")),
    h("p", { class: "address" }, data.uri, " · seen ", data.looked_at ? since(data.looked_at) : "never"),
    session && !may && h("p", { class: "muted small", id: "why-not" }, "You may look at this page; starting a job needs the right to trigger its DAG."),
    data.alerts.length > 0 && h("ul", { class: "alerts", "aria-label": "What is wrong" }, data.alerts.map((alert) => h("li", { class: "alert", "data-alert": alert.state },
      badge(alert.state === "warning" ? "attention" : alert.state, alert.state === "warning" ? "Warning" : undefined),
      h("div", {}, h("p", {}, prose(alert.text)),
        alert.since && h("p", { class: "muted small" }, "Since ", moment(alert.since)),
        alert.do && h("p", { class: "todo" }, h("strong", {}, "What to do: "), prose(alert.do)))))),
  ];
}

function tiles(data) {
  const { reclaimable, snapshot, lease, backup } = data;
  const held = lease?.state === "held";
  const tile = (label, value, ...note) => h("div", { class: "tile" }, h("dt", {}, label), h("dd", {}, h("span", { class: "big number" }, value), h("span", { class: "note" }, note)));
  return h("dl", { class: "tiles" },
    tile("Pending", count(data.pending_generations), data.pending_generations === null ? "not known for every shard" : bytes(data.pending_bytes)),
    tile("Oldest pending", sinceOldest(data), data.due ? "a merge is due" : null),
    tile("Index lag", data.index_lag_generations === null ? NOTHING : data.index_lag_generations ? plural(data.index_lag_generations, "generation") : "none", plural(data.indexes.length, "index", "indexes")),
    tile("Reclaimable", bytes(data.reclaimable_bytes), reclaimable && `${plural(reclaimable.generations, "generation")}${reclaimable.collected ? "" : "; kept, as no retention is set"}`),
    tile("Shard snapshot", since(snapshot?.taken_at, "age"), snapshot && plural(snapshot.num_shards, "shard")),
    backup && tile("Last backup", backup.made_at ? since(backup.made_at, "age") : NOTHING, backup.error || (backup.name ? `${bytes(backup.bytes)} · version ${count(backup.version)}` : "none yet")),
    tile("Lease", lease && lease.state !== "released" ? lease.state : "free",
      lease && (lease.state === "released" ? `last: ${lease.job}` : `${lease.job} · ${hostOf(lease.holder)}`), held && [" · expires ", since(lease.expires_at)], lease?.reason && ` · ${lease.reason}`),
    tile("Base table", data.rows === null ? NOTHING : `${compact(data.rows)} rows`, data.version !== null && `version ${count(data.version)}`, data.primary_key.length > 0 && ` · key ${data.primary_key.join(", ")}`));
}

const rowsOf = ({ rows_inserted: inserted, rows_updated: updated, rows_deleted: deleted }) => (inserted || 0) + (updated || 0) + (deleted || 0);

function charts(data) {
  const backlog = data.runs.flatMap((run) => ["before", "after"].map((time) => ({
    at: Date.parse(time === "before" ? run.started_at : run.finished_at), generations: run.backlog[`generations_${time}`], bytes: run.backlog[`bytes_${time}`], label: `${time} ${run.job}` })));
  backlog.push({ at: Date.parse(data.looked_at), generations: data.pending_generations, bytes: data.pending_bytes, label: "now" });
  backlog.sort((one, other) => one.at - other.at);
  const merges = data.runs.filter((run) => run.job === "merge" && run.seconds > 0 && rowsOf(run.summary)).reverse();
  const speed = (size) => merges.map((run) => ({ at: Date.parse(run.finished_at), y: size(run.summary) / run.seconds, label: `${plural(rowsOf(run.summary), "row")} in ${duration(run.seconds)}` }));
  const series = (key) => backlog.map((point) => ({ ...point, y: point[key] }));
  const perSecond = (format) => (value) => `${format(value)}/s`;
  const lines = { empty: "No run has recorded a backlog yet." };
  const bars = { bars: true, empty: "No merge has been recorded yet." };
  return h("section", { class: "plots", "aria-label": "Backlog and throughput over the last runs" }, [
    { ...lines, key: "backlog-generations", title: "Backlog, generations", points: series("generations"), format: compact },
    { ...lines, key: "backlog-bytes", title: "Backlog, bytes in memory", points: series("bytes"), format: bytes, binary: true },
    { ...bars, key: "throughput-rows", title: "Merge throughput, rows", points: speed(rowsOf), format: perSecond(compact) },
    { ...bars, key: "throughput-bytes", title: "Merge throughput, bytes", points: speed((summary) => summary.bytes_read), format: perSecond(bytes), binary: true },
  ].map(plot));
}

function storage(data) {
  const parts = data.storage ? storageParts(data) : [];
  const total = parts.reduce((sum, { value }) => sum + (value || 0), 0);
  return h("section", { class: "panel", "data-plot": "storage" },
    h("div", { class: "panelhead" }, h("h3", {}, "Storage"), h("span", { class: "reading" }, total ? `${bytes(total)} in all` : "not known")),
    total > 0 && stack(parts, 18, parts.map(({ name, value }) => `${name} ${bytes(value)}`).join(", ")),
    h("ul", { class: "legend" }, parts.map(({ kind, name, value }) => h("li", {}, h("span", { class: `swatch kind-${kind}`, "aria-hidden": "true" }), name, " ", h("span", { class: "number" }, bytes(value))))));
}

function shardSection(data, query, search, render) {
  const fitting = data.shards.filter((shard) => shard.shard_id.includes(query.text.trim().toLowerCase()));
  const left = data.num_shards - data.shards.length;
  return section("Shards",
    data.num_shards > SHARDS && h("div", { class: "bar" }, search),
    data.num_shards === 0 ? h("p", { class: "empty" }, "No shard yet: no writer has flushed anything.")
      : grid("Shards", SHARD_COLUMNS, fitting.slice(query.offset, query.offset + SHARDS), (shard) => ({ "data-shard": shard.shard_id, class: shard.error || shard.stuck ? "bad" : null })),
    data.num_shards > 0 && pager("shard", "shard", query.offset, SHARDS, fitting.length, (offset) => { query.offset = offset; render(); }),
    left > 0 && h("p", { class: "muted small" }, `${count(left)} more shards are well; \`memwal status\` lists them.`));
}

function pendingOf({ pending_generations: all, due_reasons: due }) {
  if (!all.length) return muted("0");
  const [from, to] = [all[0], all.at(-1)];
  return h("span", { title: due.join("\n") }, due.length > 0 && h("span", { class: "state-attention" }, "due "), count(all.length), muted(` (${from === to ? from : `${from}–${to}`})`));
}

const SHARD_COLUMNS = [
  ["Shard", (shard) => h("span", { class: "mono", title: shard.shard_id }, shard.shard_id.slice(0, 13)), "head"],
  ["Status", (shard) => {
    const wrong = shard.error || shard.stuck || shard.wal_problem;
    return wrong ? h("span", { class: "error" }, wrong) : shard.abandoned ? badge("attention", "abandoned?") : muted((shard.status || "unknown").toLowerCase());
  }],
  ["Pending", pendingOf, "number"],
  ["Bytes", (shard) => (shard.pending_generations.length ? bytes(shard.pending_bytes) : NOTHING), "number"],
  ["Oldest", (shard) => since(shard.oldest_pending_flushed_at, "age"), "number"],
  ["Merged / flushed", (shard) => `${count(shard.merged_generation)} / ${shard.current_generation === null ? NOTHING : count(shard.current_generation - 1)}`, "number"],
  ["Epoch", (shard) => count(shard.writer_epoch), "number"],
  ["WAL entries", (shard) => h("span", { class: "lines" }, `${count(shard.wal_entries)} · ${bytes(shard.wal_bytes)}`, shard.unflushed_wal_entries > 0 && h("span", { class: "second" }, `${count(shard.unflushed_wal_entries)} in no generation, for ${duration(shard.unflushed_seconds)}`)), "number"],
];

const KEPT = [
  ["Indexes", "indexes", [
    ["Index", (one) => one.name, "head"],
    ["Generations behind", (one) => (one.lag_generations === null ? muted("not recorded") : count(one.lag_generations)), "number"],
    ["Rows not indexed", (one) => count(one.unindexed_rows), "number"],
  ]],
  ["Checkpoints", "checkpoints", [
    ["Checkpoint", (one) => one.name, "head"],
    ["State", (one) => one.state],
    ["Version", (one) => count(one.version), "number"],
    ["Generations", (one) => count(one.generations), "number"],
    ["Made", (one) => moment(one.created_at)],
    ["Expires", (one) => (one.expires_at ? moment(one.expires_at) : "never")],
    ["Holder", (one) => one.holder],
  ]],
  ["Cursors", "cursors", [
    ["Cursor", (one) => one.name, "head"],
    ["Version", (one) => count(one.version), "number"],
    ["Behind", (one) => (one.behind === null ? NOTHING : plural(one.behind, "version")), "number"],
    ["Moved", (one) => moment(one.moved_at)],
    ["By", (one) => one.holder],
  ]],
];

function readRunQuery() {
  const given = new URLSearchParams(window.location.hash.split("?")[1] || "");
  return { job: given.get("job") || "", outcome: given.get("outcome") || "", run: given.get("run") || "", offset: 0 };
}

function runSection(data, query, narrow) {
  const fitting = data.runs.filter((run) => (!query.job || run.job === query.job) && (!query.outcome || run.outcome === query.outcome) && run.run_id.startsWith(query.run));
  const choose = (label, key) => {
    const known = [...new Set([...data.runs.map((run) => run[key]), query[key]])].filter(Boolean).sort();
    return pick(label, [["", "Any"], ...known.map((value) => [value, value])], query[key], (value) => narrow({ [key]: value }), `runs-${key}`);
  };
  return section("Runs",
    data.runs_error && notice("warn", `The run records can't be read: ${data.runs_error}`),
    data.runs_unreadable > 0 && h("p", { class: "muted small" }, `${plural(data.runs_unreadable, "record")} could not be read.`),
    h("div", { class: "bar" }, choose("Job", "job"), choose("Outcome", "outcome"),
      query.run && ["run ", h("span", { class: "mono" }, query.run), h("button", { type: "button", class: "button small", "data-key": "runs-all", onclick: () => narrow({ run: "" }) }, "Show all runs")]),
    fitting.length ? [
      grid("Runs", RUN_COLUMNS, fitting.slice(query.offset, query.offset + RUNS), (run) => ({ "data-run": run.run_id, class: run.error ? "bad" : null }), "runs"),
      pager("run", "run", query.offset, RUNS, fitting.length, (offset) => narrow({ offset })),
    ] : h("p", { class: "empty" }, query.run
      ? "This run is not among the newest records. A verify, a dry run, and a run that finds nothing to do leave none; the task's log tells what it said."
      : data.runs.length ? "No run fits." : "No run has been recorded yet."));
}

function didOf(summary) {
  const told = Object.entries(summary).filter(([, value]) => value).map(([name, value]) => {
    const isSize = name.startsWith("bytes_");
    const words = name.replace(/^(bytes|num)_/, "").replaceAll("_", " ");
    return `${isSize ? bytes(value) : count(value)} ${value === 1 ? words.replace(/(?<=x)es$|s$/, "") : words}`;
  });
  return told.join(" · ") || NOTHING;
}

const RUN_COLUMNS = [
  ["When", (run) => moment(run.finished_at)],
  ["Job", (run) => run.job, "head"],
  ["Outcome", (run) => outcome(run.outcome)],
  ["Took", (run) => duration(run.seconds), "number"],
  ["What it did", (run) => [didOf(run.summary), run.error && h("span", { class: "error" }, run.error)], "did"],
  ["Where", (run) => [
    h("span", { class: "muted", title: run.holder }, [run.engine, hostOf(run.holder)].filter(Boolean).join(" · ")),
    run.airflow?.run_path && h("div", { class: "small" }, h("a", airflowLink(run.airflow.run_path), run.airflow.dag_id), " · ", h("a", airflowLink(run.airflow.log_path), `log of try ${run.airflow.try_number}`)),
  ]],
];
