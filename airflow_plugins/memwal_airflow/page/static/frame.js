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

// Airflow's address follows ours, so that it can be copied, bookmarked and reloaded.
export function mirrorAddress() {
  const history = framed ? parentHistory() : null;
  if (!history) return;
  const path = window.parent.location.pathname;
  const base = path.slice(0, path.indexOf("/plugin/memwal") + "/plugin/memwal".length);
  const address = `${base}${window.location.pathname}${window.location.hash}`;
  history.replaceState(history.state, "", address);
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
