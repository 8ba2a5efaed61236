// Which tables the list shows, in which order. All of it is in the page's address, as in
// #/?q=orders&state=broken,lagging&with=late&sort=-lag&group=name&rows=100&page=2
// so that a view can be linked to, and the browser's back and forward lead through views.

import { STATES } from "./icons.js";

// What a table may have besides its state, and what that means.
export const MARKS = {
  late: "work has been waiting for too long",
  failing: "it can't be read, or a job's newest run failed",
  unreachable: "the store does not answer",
  abandoned: "a shard has rows that no merge will see",
  held: "a job holds the lease",
};
const names = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });
const rank = Object.keys(STATES);
const TEXT_MAX = 200;
export const ROWS = [50, 100, 500];

// What the tables are ordered by, the least first; a table without a value comes last. `most`: that
// is the largest number, or the oldest, first.
export const SORTS = {
  state: { label: "Worst first", most: true, values: (line) => [rank.indexOf(line.health.state)] },
  name: { label: "Name", most: false, values: (line) => [line.name] },
  backlog: { label: "Backlog", most: true, values: ({ pending }) => pending && [-pending.generations, -(pending.bytes || 0)] },
  oldest: { label: "Oldest", most: true, values: (line) => line.oldest_pending_at && [Date.parse(line.oldest_pending_at)] },
  lag: { label: "Index lag", most: true, values: ({ index_lag: lag }) => lag && [-(lag.generations || 0), -lag.unindexed_rows] },
};

// Names that begin alike (sales.orders, sales.clicks), or tables in one folder.
export const GROUPS = {
  none: { label: "No groups", of: () => "" },
  name: { label: "By name's prefix", of: (line) => (/^[^._/:-]+(?=[._/:-])/.exec(line.name) || ["No prefix"])[0] },
  folder: { label: "By folder", of: (line) => (/^.*(?=\/[^/]+\/*$)/.exec(line.uri || "") || ["No folder"])[0] },
};

export const START = { q: "", state: [], with: [], sort: "state", reversed: false, group: "none", rows: ROWS[0], page: 1 };

// What makes no sense there falls back to the start.
export function readView(hash) {
  const query = new URLSearchParams(hash.includes("?") ? hash.slice(hash.indexOf("?") + 1) : "");
  const among = (key, known) => (Object.hasOwn(known, query.get(key) || "") ? query.get(key) : START[key]);
  const several = (key, known) => Object.keys(known).filter((one) => (query.get(key) || "").split(",").includes(one));
  const sort = query.get("sort") || "";
  const page = query.get("page") || "";
  query.set("sort", sort.replace(/^-/, ""));
  return {
    q: (query.get("q") || "").slice(0, TEXT_MAX),
    state: several("state", STATES),
    with: several("with", MARKS),
    sort: among("sort", SORTS),
    reversed: sort.startsWith("-") && Object.hasOwn(SORTS, sort.slice(1)),
    group: among("group", GROUPS),
    rows: ROWS.find((one) => String(one) === query.get("rows")) || START.rows,
    page: /^[1-9]\d{0,4}$/.test(page) ? Number(page) : START.page,
  };
}

export function viewHash(view) {
  const sort = `${view.reversed ? "-" : ""}${view.sort}`;
  const texts = { ...view, state: view.state.join(","), with: view.with.join(","), sort };
  const query = new URLSearchParams();
  for (const key of ["q", "state", "with", "sort", "group", "rows", "page"]) {
    if (String(texts[key]) !== String(START[key])) query.set(key, texts[key]);
  }
  const text = query.toString().replaceAll("%2C", ",");
  return text ? `#/?${text}` : "#/";
}

// Where "All tables" leads back to.
let last = "#/";
export const lastList = () => last;

export function currentView() {
  const view = readView(window.location.hash);
  last = viewHash(view);
  return view;
}

function hasMark(line, mark) {
  return line.health.state === mark || (line.health.marks || []).includes(mark);
}

export function countMarks(lines) {
  return Object.fromEntries(Object.keys(MARKS).map((mark) => [mark, lines.filter((line) => hasMark(line, mark)).length]));
}

// The tables that fit, group by group, and the page of them to show. Groups are in the order of
// their first tables; a page beyond the last is the last.
export function arrange(lines, view) {
  const text = view.q.trim().toLowerCase();
  const fitting = lines.filter((line) =>
    (!view.state.length || view.state.includes(line.health.state)) &&
    (!view.with.length || view.with.some((mark) => hasMark(line, mark))) &&
    (!text || `${line.name} ${line.uri || ""}`.toLowerCase().includes(text)));
  fitting.sort(order(view));
  const groups = new Map();
  for (const line of fitting) {
    const group = GROUPS[view.group].of(line);
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(line);
  }
  const pages = Math.max(1, Math.ceil(fitting.length / view.rows));
  const page = Math.min(view.page, pages);
  const first = (page - 1) * view.rows;
  const shown = [...groups.values()].flat().slice(first, first + view.rows);
  return { total: lines.length, fitting: fitting.length, groups, pages, page, first, shown };
}

function order(view) {
  const { values } = SORTS[view.sort];
  return (left, right) => {
    const [mine, theirs] = [values(left), values(right)];
    if (!mine || !theirs) return Number(!mine) - Number(!theirs);
    const both = mine.map((value, at) => (typeof value === "string" ? names.compare(value, theirs[at]) : value - theirs[at]));
    const difference = both.find((one) => one !== 0) || 0;
    return view.reversed ? -difference : difference;
  };
}
