// One table: how it is, its shards, indexes, storage, and what the jobs did.

import { openBackfill } from "./backfill.js";
import { plot, stack } from "./charts.js";
import { h, swap } from "./dom.js";
import { NOTHING, ago, bytes, compact, count, duration, plural, since } from "./format.js";
import { openInAirflow } from "./frame.js";
import { outcome, stateBadge, stateIcon } from "./icons.js";
import { lagText, storageLabel, storageParts } from "./overview.js";
import { lastList } from "./view.js";

const ONLY = [["all", "All"], ["pending", "Pending"], ["due", "Due"], ["sealed", "Sealed"], ["abandoned", "Abandoned"], ["broken", "Broken"]];
const SORTS = [["pending", "Most pending"], ["bytes", "Most bytes"], ["oldest", "Oldest first"], ["wal", "Largest WAL"], ["id", "Shard id"]];
const PAGE = 50;

export function tablePage(name, session, reload) {
  const query = { text: "", only: "all", sort: "pending", offset: 0, limit: PAGE };
  const head = h("div", {}, h("p", { class: "empty" }, "The first look at the tables is under way…"));
  const body = h("div", {});
  const tail = h("div", {});
  const shards = h("div", { "data-part": "shards" });
  const controls = shardControls(query, reload);
  const root = h("article", { class: "one" }, head, body, tail);
  const shardSection = h("section", { "aria-labelledby": "shards-title" },
    h("h2", { id: "shards-title" }, "Shards"), controls, shards);
  const shown = {};
  // A link from Airflow names the run that a task made.
  const wanted = new URLSearchParams(window.location.hash.split("?")[1]).get("run");
  let led = !wanted;
  // A part is drawn again only when its data changed, so that a reader is not disturbed.
  function part(place, key, data, make) {
    const text = JSON.stringify(data);
    if (shown[key] === text) return;
    shown[key] = text;
    swap(place, make());
  }
  return {
    root,
    title: `${name} · MemWAL`,
    query: () => ({ name, ...query }),
    update(data) {
      const { shard_page: page, runs, backlog, throughput, now, ...rest } = data;
      const start = (shard) => openBackfill(name, shard, session);
      const unseen = data.pending === null;
      part(head, "head", [rest, session.value], () => [heading(data, session, start), unseen
        ? h("p", { class: "empty apart" }, data.error ? "Nothing is known of this table." : "The first look at this table is under way…")
        : tiles(data)]);
      if (unseen && runs.length === 0) return;
      if (!shardSection.isConnected && !unseen) body.after(shardSection);
      part(body, "plots", [backlog, throughput, data.storage], () => [plots(data), storage(data)]);
      part(shards, "shards", [page, session.value], () => shardTable(page, query, reload, session, start));
      part(tail, "tail", [data.indexes, data.checkpoints, runs, data.runs_error, data.runs_unreadable], () => [indexes(data), checkpoints(data), runTable(data, wanted)]);
      const row = led ? null : tail.querySelector("tr.wanted");
      if (row) row.scrollIntoView({ block: "center" });
      led = led || row !== null;
    },
  };
}

function heading(data, session, start) {
  const { may_trigger: may, obstacle } = session.value || {};
  const reasons = data.pending === null && !data.error ? [] : data.health.reasons.filter((reason) => reason !== data.error);
  const why = may ? obstacle : "You may look at this page; starting a backfill needs the right to trigger the DAG.";
  return [
    h("nav", { "aria-label": "Breadcrumb", class: "crumbs" }, h("a", { href: lastList() }, "All tables"), " / ", h("span", { "aria-current": "page" }, data.name)),
    h("div", { class: "titleline" },
      h("h2", {}, data.name), stateBadge(data.health.state), h("span", { class: "spring" }),
      h("button", { type: "button", class: "button primary", id: "backfill", "data-key": "backfill", disabled: Boolean(why) || !session.value, onclick: () => start(null), "aria-describedby": why ? "why-not" : null }, "Backfill…")),
    h("p", { class: "address" }, [data.uri, data.uri && " · "], data.looked_at ? ["seen ", since(data.looked_at)] : "never seen"),
    why && session.value && h("p", { class: "muted small", id: "why-not" }, why),
    data.error && h("p", { class: "notice warn" }, h("strong", {}, "The last look failed"), ` (${data.error_at ? ago(data.error_at) : ""}): ${data.error}`),
    reasons.length > 0 && h("ul", { class: "reasons" }, reasons.map((reason) => h("li", {}, reason))),
    data.warnings.length > 0 && h("details", { class: "warnings", "data-key": "warnings" }, h("summary", {}, plural(data.warnings.length, "warning")), h("ul", {}, data.warnings.map((text) => h("li", {}, text)))),
  ];
}

function tile(label, value, note) {
  return h("div", { class: "tile" }, h("dt", {}, label), h("dd", {}, h("span", { class: "big number" }, value), note && h("span", { class: "note" }, note)));
}

function tiles(data) {
  const { pending, index_lag: lag, reclaimable, snapshot, lease } = data;
  return h("dl", { class: "tiles" },
    tile("Pending", pending.partly ? `≥ ${count(pending.generations)}` : pending.generations ? count(pending.generations) : "none",
      pending.generations ? `${bytes(pending.bytes)} · ${compact(pending.rows)} rows` : pending.partly ? "not known for every shard" : "every flushed generation is merged"),
    tile("Oldest pending", since(data.oldest_pending_at, "age"), data.oldest_pending_at ? "waiting for a merge" : null),
    tile("Index lag", lag && lag.generations ? plural(lag.generations, "generation") : lagText(lag), lag && lag.unindexed_rows ? `${plural(lag.unindexed_rows, "row")} not indexed` : lag ? plural(lag.indexes, "index", "indexes") : null),
    tile("Reclaimable", reclaimable ? bytes(reclaimable.bytes) : NOTHING, reclaimable && plural(reclaimable.generations, "generation")),
    tile("Shard snapshot", since(data.snapshot_at, "age"), snapshot && plural(snapshot.num_shards, "shard")),
    tile("Lease", lease && lease.state !== "released" ? lease.state : "free", lease && leaseNote(lease)),
    tile("Base table", data.rows === null ? NOTHING : `${compact(data.rows)} rows`, data.version === null ? null : `version ${count(data.version)}${data.primary_key.length ? ` · key ${data.primary_key.join(", ")}` : ""}`));
}

function leaseNote(lease) {
  const parts = [lease.state === "released" ? `last: ${lease.job}` : `${lease.job} · ${lease.holder}`];
  if (lease.state === "held" && lease.expires_at) parts.push(" · expires ", since(lease.expires_at));
  if (lease.reason) parts.push(` · ${lease.reason}`);
  return parts;
}

function series(points, key) {
  return points.map((point) => ({ x: Date.parse(point.at), y: point[key], label: point.label }));
}

function plots(data) {
  const noBacklog = "No run has recorded a backlog yet.";
  const noMerge = "No merge has been recorded yet.";
  const perSecond = (format) => (value) => `${format(value)}/s`;
  return h("section", { class: "plots", "aria-label": "Backlog and throughput over the last runs" },
    plot({ key: "backlog-generations", title: "Backlog, generations", points: series(data.backlog, "generations"), format: compact, kind: "line", empty: noBacklog }),
    plot({ key: "backlog-bytes", title: "Backlog, bytes in memory", points: series(data.backlog, "bytes"), format: bytes, kind: "line", binary: true, empty: noBacklog }),
    plot({ key: "throughput-rows", title: "Merge throughput, rows", points: series(data.throughput, "rows"), format: perSecond(compact), kind: "bars", empty: noMerge }),
    plot({ key: "throughput-bytes", title: "Merge throughput, bytes", points: series(data.throughput, "bytes"), format: perSecond(bytes), kind: "bars", binary: true, empty: noMerge }));
}

function storage(data) {
  const title = h("h3", {}, "Storage");
  if (!data.storage) return h("section", { class: "panel" }, title, h("p", { class: "empty" }, "Not known."));
  const parts = storageParts(data.storage);
  const total = parts.reduce((sum, part) => sum + part.value, 0);
  return h("section", { class: "panel storage", "data-plot": "storage" },
    h("div", { class: "panelhead" }, title, h("span", { class: "reading" }, `${bytes(total)} in all`)),
    stack(parts, { height: 18, label: storageLabel(data.storage) }) || h("p", { class: "empty" }, "Nothing stored."),
    h("ul", { class: "legend" }, parts.map((part) => h("li", {}, h("span", { class: `swatch kind-${part.kind}`, "aria-hidden": "true" }), part.name, " ", h("span", { class: "number" }, part.text)))));
}

function shardControls(query, reload) {
  const select = (label, options, key) => h("label", { class: "field inline" }, h("span", {}, label),
    h("select", { "data-key": `shards-${key}`, onchange: (event) => { query[key] = event.target.value; query.offset = 0; reload(); } },
      options.map(([value, text]) => h("option", { value, selected: query[key] === value }, text))));
  let waiting = 0;
  const search = h("input", { type: "search", class: "search", placeholder: "Find a shard", "aria-label": "Find a shard by id", "data-key": "shards-text" });
  search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { query.text = search.value; query.offset = 0; reload(); }, 200);
  });
  return h("div", { class: "bar" }, search, select("Show", ONLY, "only"), select("Sort", SORTS, "sort"));
}

function shardTable(page, query, reload, session, start) {
  const may = session.value && session.value.may_trigger && !session.value.obstacle;
  if (page.total === 0) return h("p", { class: "empty" }, "No shard yet: no writer has flushed anything.");
  if (page.fitting === 0) return h("p", { class: "empty" }, `None of the ${plural(page.total, "shard")} fits.`);
  const heads = ["Shard", "Status", "Pending", "Bytes", "Oldest", "Merged / flushed", "Epoch", "WAL entries · bytes"];
  return [
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Shards", "data-scroll": "shards", "data-key": "shards-scroll" },
      h("table", { class: "shards cards" },
        h("thead", {}, h("tr", {}, heads.map((name, n) => h("th", { scope: "col", class: n > 1 ? "number" : null }, name)), may && h("th", { scope: "col" }, h("span", { class: "unseen" }, "Backfill")))),
        h("tbody", {}, page.shards.map((shard) => shardRow(shard, may, start))))),
    pager(page, query, reload),
  ];
}

function shardRow(shard, may, start) {
  const cell = (label, kind, ...content) => h("td", { "data-label": label, class: kind }, ...content);
  const due = shard.due_reasons.join("\n");
  const behind = shard.flushed_generation !== null && shard.flushed_generation > shard.merged_generation;
  return h("tr", { "data-shard": shard.shard_id, class: shard.broken ? "bad" : null },
    h("th", { scope: "row", class: "mono", title: shard.shard_id }, shard.shard_id.length > 13 ? `${shard.shard_id.slice(0, 13)}…` : shard.shard_id),
    cell("Status", "", shard.broken
      ? h("span", { class: "state-broken outcome", title: shard.error }, stateIcon("broken"), shard.error || "broken")
      : h("span", { class: "muted" }, (shard.status || "unknown").toLowerCase())),
    cell("Pending", "number", shard.broken ? NOTHING : shard.pending
      ? h("span", { title: due || null }, due && h("span", { class: "state-due outcome duemark" }, stateIcon("due"), "due"), count(shard.pending), h("span", { class: "muted" }, ` (${generations(shard)})`))
      : h("span", { class: "muted" }, "0")),
    cell("Bytes", "number", shard.pending ? bytes(shard.pending_bytes) : NOTHING),
    cell("Oldest", "number", since(shard.oldest_pending_at, "age")),
    cell("Merged / flushed", "number", h("span", { class: behind ? "" : "muted" }, `${count(shard.merged_generation)} / ${count(shard.flushed_generation)}`)),
    cell("Epoch", "number", count(shard.writer_epoch)),
    cell("WAL", "number", `${count(shard.wal_entries)} · ${bytes(shard.wal_bytes)}`, walNote(shard)),
    may && cell("", "action", h("button", { type: "button", class: "button small", "data-key": `backfill-${shard.shard_id}`, "aria-label": `Backfill shard ${shard.shard_id}`, onclick: () => start(shard.shard_id) }, "Backfill…")));
}

// What the writer has in the WAL and in no generation yet; usual, until the writer is gone.
function walNote(shard) {
  if (!shard.unflushed) return null;
  const mark = shard.abandoned && h("span", { class: "state-lagging outcome" }, stateIcon("lagging"), "abandoned?");
  return h("span", { class: "second block" }, mark, `${count(shard.unflushed)} in no generation`);
}

function generations(shard) {
  const { pending_from: from, pending_to: to } = shard;
  return from === to ? `${from}` : `${from}–${to}`;
}

function pager(page, query, reload) {
  const last = Math.min(page.offset + page.limit, page.fitting);
  const go = (offset) => () => { query.offset = Math.max(0, offset); reload(); };
  const note = page.fitting === page.total ? "" : `, ${count(page.total)} in all`;
  return h("div", { class: "pager" },
    h("span", { class: "muted number", "data-part": "shard-count" }, `${count(page.offset + 1)}–${count(last)} of ${plural(page.fitting, "shard")}${note}`),
    page.left_out > 0 && h("span", { class: "warn" }, `${count(page.left_out)} not shown: too many`),
    page.fitting > page.limit && [
      h("button", { type: "button", class: "button small", "data-key": "shards-back", disabled: page.offset === 0, onclick: go(page.offset - page.limit) }, "Previous"),
      h("button", { type: "button", class: "button small", "data-key": "shards-next", disabled: last >= page.fitting, onclick: go(page.offset + page.limit) }, "Next"),
    ]);
}

function indexes(data) {
  if (data.indexes.length === 0) return null;
  return h("section", { "aria-labelledby": "indexes-title" },
    h("h2", { id: "indexes-title" }, "Indexes"),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Indexes" },
      h("table", {},
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Index"), h("th", { scope: "col", class: "number" }, "Generations behind"), h("th", { scope: "col", class: "number" }, "Rows not indexed"))),
        h("tbody", {}, data.indexes.map((index) => h("tr", {},
          h("th", { scope: "row" }, index.name),
          h("td", { class: "number" }, index.lag_generations === null ? h("span", { class: "muted" }, "not recorded") : count(index.lag_generations)),
          h("td", { class: "number" }, count(index.unindexed_rows))))))));
}

function checkpoints(data) {
  if (data.checkpoints.length === 0) return null;
  return h("section", { "aria-labelledby": "checkpoints-title" },
    h("h2", { id: "checkpoints-title" }, "Checkpoints"),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Checkpoints" },
      h("table", {},
        h("thead", {}, h("tr", {}, ["Checkpoint", "State", "Version", "Generations", "Made", "Expires", "Holder"].map((name) => h("th", { scope: "col", class: /^[VG]/.test(name) ? "number" : null }, name)))),
        h("tbody", {}, data.checkpoints.map((one) => h("tr", { "data-checkpoint": one.name },
          h("th", { scope: "row" }, one.name),
          h("td", {}, one.state),
          h("td", { class: "number" }, count(one.version)),
          h("td", { class: "number" }, count(one.generations)),
          h("td", {}, since(one.created_at)),
          h("td", {}, one.expires_at || "never"),
          h("td", { class: "muted" }, one.holder)))))));
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

function runTable(data, wanted) {
  const rows = data.runs.map((run) => h("tr", { "data-run": run.run_id, class: run.run_id === wanted ? "wanted" : null },
    h("td", { "data-label": "When" }, since(run.finished_at)),
    h("th", { scope: "row" }, run.job),
    h("td", { "data-label": "Outcome" }, outcome(run.outcome)),
    h("td", { "data-label": "Took", class: "number" }, duration(run.seconds)),
    h("td", { "data-label": "Did", class: "did" }, run.did.map(deed).join(" · ") || NOTHING, run.error && h("span", { class: "error" }, run.error)),
    h("td", { "data-label": "Where", class: "muted" }, [run.engine, run.holder].filter(Boolean).join(" · "), taskLinks(run.airflow))));
  return h("section", { "aria-labelledby": "runs-title" },
    h("h2", { id: "runs-title" }, "Recent runs"),
    data.runs_error && h("p", { class: "notice warn" }, `The run records can't be read: ${data.runs_error}`),
    data.runs_unreadable > 0 && h("p", { class: "muted small" }, `${plural(data.runs_unreadable, "record")} could not be read.`),
    rows.length === 0
      ? h("p", { class: "empty" }, "No run has been recorded yet.")
      : h("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "Recent runs", "data-scroll": "runs", "data-key": "runs-scroll" },
        h("table", { class: "runs cards" },
          h("thead", {}, h("tr", {}, ["When", "Job", "Outcome", "Took", "What it did", "Where"].map((name) => h("th", { scope: "col", class: name === "Took" ? "number" : null }, name)))),
          h("tbody", {}, rows))));
}
