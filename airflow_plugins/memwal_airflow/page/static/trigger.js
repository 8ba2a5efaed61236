// Starts a DAG for one table, through Airflow's own API: whoever may not is refused there. Airflow's
// own form would be better, but it takes no values from an address.

import { airflowLink, askAirflow } from "./airflow.js";
import { h } from "./dom.js";
import { notice } from "./states.js";

export function openTrigger(table, dags) {
  const conf = h("textarea", { rows: 11, spellcheck: "false", "aria-label": "Configuration, as JSON" });
  const fields = h("dl", { class: "fields small" });
  const result = h("div", { role: "status" });
  const start = h("button", { type: "submit", class: "button primary" }, "Start");
  const dag = h("select", { "aria-label": "DAG", onchange: fill }, dags.map((name) => h("option", {}, name)));
  const refuse = (error) => result.replaceChildren(notice("bad", error.message));
  const dialog = h("dialog", { "aria-labelledby": "trigger-title", class: "dialog", id: "trigger-dialog" },
    h("form", { method: "dialog", onsubmit: submit },
      h("h2", { id: "trigger-title" }, "Trigger for ", h("span", { class: "mono" }, table)), dag, conf,
      h("details", {}, h("summary", {}, "What the fields mean"), fields), result,
      h("div", { class: "buttons" }, h("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Close"), start)));

  // The DAG's own defaults, for this table and as a dry run.
  async function fill() {
    start.disabled = true;
    result.replaceChildren();
    const chosen = dag.value;
    try {
      const found = await askAirflow(`dags/${chosen}/details`);
      if (chosen !== dag.value) return;
      const params = Object.entries(found.params);
      const values = Object.fromEntries(params.map(([name, param]) => [name, param.value]));
      conf.value = JSON.stringify({ ...values, tables: [table], ...("dry_run" in values ? { dry_run: true } : {}) }, null, 2);
      fields.replaceChildren(...params.flatMap(([name, param]) => [h("dt", { class: "mono" }, name), h("dd", { class: "muted" }, param.description || param.schema?.title)]));
      if (found.is_paused) result.replaceChildren(notice("warn", `${chosen} is paused: its runs wait until somebody unpauses it.`));
      start.disabled = false;
    } catch (error) {
      refuse(error);
    }
  }

  async function submit(event) {
    event.preventDefault();
    start.disabled = true;
    try {
      const run = await askAirflow(`dags/${dag.value}/dagRuns`, { conf: JSON.parse(conf.value), logical_date: null });
      result.replaceChildren(notice("good", "Started: ", h("a", { ...airflowLink(`/dags/${dag.value}/runs/${encodeURIComponent(run.dag_run_id)}`), id: "started-run" }, run.dag_run_id)));
      // Off until another DAG is chosen: a second click would start a second run.
    } catch (error) {
      refuse(error);
      start.disabled = false;
    }
  }

  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  fill();
}
