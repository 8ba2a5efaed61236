// What is told in place of data, or beside old ones.

import { h } from "./dom.js";
import { airflowAddress } from "./frame.js";

export function firstLook(what) {
  return h("p", { class: "empty", "data-state": "first-look" },
    h("span", { class: "spinner", "aria-hidden": "true" }), ` The first look at ${what} is under way…`);
}

// Nothing is wrong: there is only nothing to show yet.
export function nothingYet(missing) {
  if (!missing) return h("p", { class: "empty" }, "No tables to show.");
  return h("div", { class: "empty start", "data-state": "empty" },
    h("p", {}, h("strong", {}, missing.says), " Add this to ", h("code", {}, missing.file), ":"),
    h("pre", { tabindex: 0 }, missing.lines),
    h("p", { class: "small" }, "The page looks again by itself."));
}

function notice(kind, ...content) {
  return h("p", { class: `notice ${kind}`, role: "alert", "data-state": kind }, ...content);
}

export function problem(text) {
  return notice("bad", h("strong", {}, "The tables can't be looked at: "), text);
}

export function failure(error, page) {
  if (error.status === 401) {
    return h("p", { class: "notice warn", role: "alert", "data-state": "session-ended" }, h("strong", {}, "Your session has ended."), " What is shown may be old. ",
      h("a", { href: loginAddress(), target: "_top", class: "login" }, "Log in to Airflow"));
  }
  if (error.status === 404 && page.name !== null) return notice("bad", `${page.name}: ${error.message}.`, " ", h("a", { href: "#/" }, "All tables"));
  return notice("bad", `${error.message} What is shown may be old.`, " The page tries again by itself.");
}

// Airflow's login, which leads back to where the reader is.
function loginAddress() {
  const here = `${window.location.origin}${airflowAddress()}`;
  return `../api/v2/auth/login?${new URLSearchParams({ next: here })}`;
}
