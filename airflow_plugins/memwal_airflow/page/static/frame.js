// The page inside Airflow's own: Airflow shows it in a sandboxed frame of the same origin.

export const framed = window.parent !== window;

function parentHistory() {
  try {
    const path = window.parent.location.pathname;
    return /\/plugin\/memwal(\/|$)/.test(path) ? window.parent.history : null;
  } catch {
    return null;
  }
}

// Where Airflow shows what this page shows now.
export function airflowAddress() {
  const own = `${window.location.pathname}${window.location.hash}`;
  if (!framed || !parentHistory()) return own;
  const path = window.parent.location.pathname;
  return `${path.slice(0, path.indexOf("/plugin/memwal") + "/plugin/memwal".length)}${own}`;
}

// Airflow's address follows ours, so that it can be copied, bookmarked and reloaded.
export function mirrorAddress() {
  const history = framed ? parentHistory() : null;
  if (history) history.replaceState(history.state, "", airflowAddress());
}

// A click on a link into Airflow. In the frame the link's page would open inside this one, so
// Airflow's router goes there instead.
export function openInAirflow(event) {
  const history = framed ? parentHistory() : null;
  if (!history) return;
  event.preventDefault();
  history.pushState(null, "", event.currentTarget.getAttribute("href"));
  window.parent.dispatchEvent(new PopStateEvent("popstate", { state: null }));
}
