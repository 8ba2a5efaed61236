// What is wrong with a table, since when, and what to do; above everything else.

import { h } from "./dom.js";
import { moment } from "./format.js";
import { STATES, stateIcon } from "./icons.js";

// Commands stand between backticks.
function prose(text) {
  return text.split("`").map((part, n) => (n % 2 ? h("code", {}, part) : part));
}

function word(state) {
  return state === "warning" ? "Warning" : STATES[state] || state;
}

function alertItem(alert) {
  const icon = alert.state === "warning" ? "lagging" : alert.state;
  return h("li", { class: "alert", "data-alert": alert.state },
    h("span", { class: `state state-${icon}` }, stateIcon(icon), word(alert.state)),
    h("div", {},
      h("p", { class: "says" }, prose(alert.text)),
      alert.since && h("p", { class: "muted small" }, "Since ", moment(alert.since)),
      alert.do && h("p", { class: "todo" }, h("strong", {}, "What to do: "), prose(alert.do))));
}

export function alertList(alerts) {
  if (alerts.length === 0) return null;
  return h("section", { "aria-labelledby": "alerts-title", class: "alerts" },
    h("h3", { id: "alerts-title", class: "unseen" }, "What is wrong"),
    h("ul", {}, alerts.map(alertItem)));
}
