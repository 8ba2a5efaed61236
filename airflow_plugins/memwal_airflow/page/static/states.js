// Shape and word show a state; colour only repeats it.

import { h, s } from "./dom.js";

const SHAPES = {
  ok: [["circle", { cx: 8, cy: 8, r: 7 }], ["path", { d: "M4.7 8.3l2.3 2.3 4.3-4.7", class: "mark" }]],
  attention: [["path", { d: "M8 1l7.2 13.4H.8z" }], ["path", { d: "M8 5.8v4.2M8 12.1v.2", class: "mark" }]],
  broken: [
    ["path", { d: "M5 .9h6L15.1 5v6L11 15.1H5L.9 11V5z" }],
    ["path", { d: "M5.6 5.6l4.8 4.8M10.4 5.6l-4.8 4.8", class: "mark" }],
  ],
  unreachable: [
    ["path", { d: "M4.6 12.6a3.1 3.1 0 0 1 .2-6.2 4.2 4.2 0 0 1 7.7 1.1 2.6 2.6 0 0 1-.5 5.1z", class: "line" }],
    ["path", { d: "M2.2 15L13.8 1.6", class: "line" }],
  ],
  unknown: [
    ["circle", { cx: 8, cy: 8, r: 6.4, class: "line dashed" }],
    ["path", { d: "M6.2 6.4a1.9 1.9 0 1 1 2.6 1.8c-.6.3-.8.6-.8 1.2M8 11.6v.2", class: "line" }],
  ],
};

export const STATES = { broken: "Broken", unreachable: "Unreachable", unknown: "Unknown", attention: "Attention", ok: "OK" };
const OUTCOMES = { done: "ok", nothing_to_do: "ok", partial: "attention", failed: "broken", refused: "broken" };

export function stateIcon(state) {
  const shapes = SHAPES[state] || SHAPES.unknown;
  return s("svg", { class: "icon", viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" }, shapes.map(([tag, attributes]) => s(tag, attributes)));
}

export function badge(state, word = STATES[state]) {
  return h("span", { class: `state state-${state}` }, stateIcon(state), word);
}

export function outcome(word) {
  const state = OUTCOMES[word] || "unknown";
  return h("span", { class: `outcome state-${state}` }, stateIcon(state), word.replaceAll("_", " "));
}

export function notice(kind, ...content) {
  return h("p", { class: `notice ${kind}`, role: "alert", "data-state": kind }, content);
}

export function firstLook(what) {
  return h("p", { class: "empty", "data-state": "first-look" },
    h("span", { class: "spinner", "aria-hidden": "true" }), ` The first look at ${what} is under way…`);
}
