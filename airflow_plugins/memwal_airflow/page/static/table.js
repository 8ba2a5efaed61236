// One table: how it is, its shards, indexes, storage, and what the jobs did.

import { alertList } from "./alerts.js";
import { openBackfill } from "./backfill.js";
import { plot, stack } from "./charts.js";
import { h, swap } from "./dom.js";
import { NOTHING, bytes, compact, count, duration, hostOf, plural, since } from "./format.js";
import { stateBadge, stateIcon } from "./icons.js";
import { checkpointSection, cursorSection, garbageSection } from "./kept.js";
import { lagText, storageLabel, storageParts } from "./overview.js";
import { readRunQuery, runParameters, runSection } from "./runs.js";
import { startedRuns } from "./started.js";
import { firstLook } from "./states.js";
import { lastList } from "./view.js";

const ONLY = [["all", "All"], ["pending", "Pending"], ["due", "Due"], ["sealed", "Sealed"], ["abandoned", "Abandoned"], ["broken", "Broken"]];
const SORTS = [["pending", "Most pending"], ["bytes", "Most bytes"], ["oldest", "Oldest first"], ["wal", "Largest WAL"], ["id", "Shard id"]];
const PAGE = 50;

export function tablePage(name, session, reload) {
  const query = { text: "", only: "all", sort: "pending", offset: 0, limit: PAGE };
  const runQuery = readRunQuery();
  const head = h("div", {}, firstLook("the tables"));
  const body = h("div", {});
  const tail = h("div", {});
  const past = h("div", {});
  const garbage = garbageSection(name);
  const shards = h("div", { "data-part": "shards" });
  const controls = shardControls(query, reload);
  const root = h("article", { class: "one" }, startedRuns(name, reload), head, body, tail, past);
  const shardSection = h("section", { "aria-labelledby": "shards-title" },
    h("h2", { id: "shards-title" }, "Shards"), controls, shards);
  const shown = {};
  let led = false;
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
    query: () => ({ name, ...query, ...runParameters(runQuery) }),
    update(data) {
      const { shard_page: page, run_page: runs, backlog, throughput, now, ...rest } = data;
      const start = (shard) => openBackfill(name, shard, session);
      const unseen = data.pending === null;
      part(head, "head", [rest, session.value], () => [heading(data, session, start), unseen
        ? !data.error ? firstLook("this table") : h("p", { class: "empty apart" }, "Nothing is known of this table.")
        : tiles(data)]);
      if (unseen && runs.total === 0) return;
      if (!shardSection.isConnected && !unseen) body.after(shardSection);
      part(body, "plots", [backlog, throughput, data.storage], () => [plots(data), storage(data)]);
      part(shards, "shards", [page, session.value], () => shardTable(page, query, reload, session, start));
      part(tail, "tail", [data.indexes, data.checkpoints, data.cursors], () => [indexes(data), checkpointSection(data), cursorSection(data)]);
      garbage.update(data);
      if (!garbage.root.isConnected && !unseen) tail.after(garbage.root);
      part(past, "runs", [runs, data.runs_error, data.runs_unreadable, runQuery], () => runSection(data, runQuery, reload));
      // A link from Airflow names the run that a task made.
      if (runQuery.run && !led) {
        led = true;
        past.scrollIntoView();
      }
    },
  };
}

function heading(data, session, start) {
  const { may_trigger: may, obstacle } = session.value || {};
  // What is wrong is among the alerts.
  const told = new Set(data.alerts.map((alert) => alert.text));
  const reasons = data.pending === null ? [] : data.health.reasons.filter((reason) => !told.has(reason) && !/^and \d+ more$/.test(reason));
  const why = may ? obstacle : "You may look at this page; starting a backfill needs the right to trigger the DAG.";
  return [
    h("nav", { "aria-label": "Breadcrumb", class: "crumbs" }, h("a", { href: lastList() }, "All tables"), " / ", h("span", { "aria-current": "page" }, data.name)),
    h("div", { class: "titleline" },
      h("h2", {}, data.name), stateBadge(data.health.state), h("span", { class: "spring" }),
      h("button", { type: "button", class: "button primary", id: "backfill", "data-key": "backfill", disabled: Boolean(why) || !session.value, onclick: () => start(null), "aria-describedby": why ? "why-not" : null }, "Backfill…")),
    h("p", { class: "address" }, [data.uri, data.uri && " · "], data.looked_at ? ["seen ", since(data.looked_at)] : "never seen"),
    why && session.value && h("p", { class: "muted small", id: "why-not" }, why),
    alertList(data.alerts),
    reasons.length > 0 && h("ul", { class: "reasons" }, reasons.map((reason) => h("li", {}, reason))),
  ];
}

function tile(label, value, note) {
  return h("div", { class: "tile" }, h("dt", {}, label), h("dd", {}, h("span", { class: "big number" }, value), note && h("span", { class: "note" }, note)));
}

function tiles(data) {
  const { pending, index_lag: lag, reclaimable, snapshot, lease } = data;
  return h("dl", { class: "tiles" },
    tile("Pending", pending.generations === null ? NOTHING : pending.generations ? count(pending.generations) : "none",
      pending.generations === null ? "not known for every shard" : pending.generations ? bytes(pending.bytes) : "every flushed generation is merged"),
    tile("Oldest pending", since(data.oldest_pending_at, "age"), data.oldest_pending_at ? "waiting for a merge" : null),
    tile("Index lag", lag && lag.generations ? plural(lag.generations, "generation") : lagText(lag), lag && lag.unindexed_rows ? `${plural(lag.unindexed_rows, "row")} not indexed` : lag ? plural(lag.indexes, "index", "indexes") : null),
    tile("Reclaimable", reclaimable ? bytes(reclaimable.bytes) : NOTHING, reclaimable && plural(reclaimable.generations, "generation")),
    tile("Shard snapshot", since(data.snapshot_at, "age"), snapshot && plural(snapshot.num_shards, "shard")),
    data.backup && tile("Last backup", data.backup.error ? "not known" : data.backup.made_at ? since(data.backup.made_at, "age") : "none yet",
      data.backup.name ? `${bytes(data.backup.bytes)} · version ${count(data.backup.version)}` : null),
    data.freshness && tile("Freshness target", duration(data.freshness.target_seconds), keptNote(data.freshness)),
    tile("Lease", lease && lease.state !== "released" ? lease.state : "free", lease && leaseNote(lease)),
    tile("Base table", data.rows === null ? NOTHING : `${compact(data.rows)} rows`, data.version === null ? null : `version ${count(data.version)}${data.primary_key.length ? ` · key ${data.primary_key.join(", ")}` : ""}`));
}

// How the target was kept, as far as the records of merges can tell.
function keptNote({ late_since: late, merges, kept }) {
  const now = late ? ["late for ", since(late, "age")] : "kept now";
  const before = merges && `; kept by ${kept} of the last ${plural(merges, "merge")}`;
  return h("span", { title: "A merge counts when it came within the target of the one before, and that had left nothing. Of the others, it isn't recorded how long rows waited." }, now, before);
}

function leaseNote(lease) {
  const parts = [lease.state === "released" ? `last: ${lease.job}` : `${lease.job} · ${hostOf(lease.holder)}`];
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
