// What narrows, orders and pages the list of tables. Each gets the view and `go`, which changes it.

import { h, say } from "./dom.js";
import { count } from "./format.js";
import { airflowAddress } from "./frame.js";
import { STATES, stateIcon } from "./icons.js";
import { GROUPS, MARKS, ROWS, SORTS, START, viewHash } from "./view.js";

function toggled(list, one) {
  return list.includes(one) ? list.filter((other) => other !== one) : [...list, one];
}

export function summary(tables, marks, view, go) {
  return [
    h("span", {}, h("strong", { class: "number" }, count(tables)), tables === 1 ? " table" : " tables"),
    h("span", { class: "marks", role: "group", "aria-label": "Filter by trouble" }, Object.entries(MARKS).map(([mark, meaning]) => h("button", {
      type: "button", class: "mark", title: meaning, "aria-pressed": String(view.with.includes(mark)),
      "data-key": `mark-${mark}`, "data-mark": mark, "data-count": marks[mark], onclick: () => go({ with: toggled(view.with, mark) }),
    }, h("span", { class: "number" }, count(marks[mark])), ` ${mark}`))),
  ];
}

export function chips(counts, view, go) {
  return h("div", { class: "chips", role: "group", "aria-label": "Filter by health" },
    Object.entries(STATES).filter(([state]) => state in counts).map(([state, word]) => h("button", {
      type: "button", class: `chip state-${state}`, "aria-pressed": String(view.state.includes(state)),
      "data-key": `chip-${state}`, "data-count": counts[state], onclick: () => go({ state: toggled(view.state, state) }),
    }, stateIcon(state), h("span", { class: "number" }, counts[state]), word)));
}

function pick(key, label, options, chosen, go) {
  return h("select", { "aria-label": label, class: `pick-${key}`, "data-key": `pick-${key}`, onchange: (event) => go({ [key]: event.target.value }) },
    options.map(([value, text]) => h("option", { value, selected: String(value) === String(chosen) }, text)));
}

const labels = (choices) => Object.entries(choices).map(([key, { label }]) => [key, label]);

// The order can be chosen in the columns' heads, too, which a narrow page does not have.
export function picks(view, go) {
  return [
    h("span", { class: "ordering" },
      pick("sort", "Order", labels(SORTS), view.sort, (change) => go({ ...change, reversed: false })),
      h("button", { type: "button", class: "button", "aria-pressed": String(view.reversed), "data-key": "reverse", onclick: () => go({ reversed: !view.reversed }) }, "Reversed")),
    pick("group", "Groups", labels(GROUPS), view.group, go),
  ];
}

export function clear(view) {
  if (!view.q && !view.state.length && !view.with.length) return null;
  const { sort, reversed, group, rows } = view;
  return h("a", { href: viewHash({ ...START, sort, reversed, group, rows }), "data-key": "clear" }, "Show all");
}

export function shareLink() {
  return h("a", { href: airflowAddress(), target: "_parent", "data-key": "share", onclick: share }, "Link to this view");
}

async function share(event) {
  const link = event.currentTarget;
  event.preventDefault();
  try {
    await navigator.clipboard.writeText(link.href);
    link.textContent = "Link copied";
    say("Link copied.");
  } catch {
    link.textContent = link.href; // the browser lets nobody write there: to be copied by hand
  }
}

export function pager({ page, pages }, view, turn, go) {
  const step = (text, to) => h("button", { type: "button", class: "button small", "data-key": `page-${text}`, disabled: to < 1 || to > pages, onclick: () => turn(to) }, text);
  return h("nav", { class: "pager", "aria-label": "Pages of tables" },
    h("span", { class: "number" }, `Page ${count(page)} of ${count(pages)}`),
    pick("rows", "Rows on a page", ROWS.map((rows) => [rows, `${rows} rows`]), view.rows, go),
    step("Previous", page - 1), step("Next", page + 1));
}
