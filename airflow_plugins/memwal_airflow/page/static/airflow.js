// The Airflow around the page, which shows it in a sandboxed frame of the same origin, and the two
// servers: the page's own, and Airflow's API.

const framed = window.parent !== window;
// Airflow may live below a path of its own.
const root = new URL("..", window.location.href).pathname.replace(/\/$/, "");
const SECONDS_MAX = 20;

function parentHistory() {
  try {
    return framed && /\/plugin\/memwal(\/|$)/.test(window.parent.location.pathname) ? window.parent.history : null;
  } catch {
    return null;
  }
}

// Where Airflow shows what this page shows now.
export function airflowAddress() {
  const own = `${window.location.pathname}${window.location.hash}`;
  return parentHistory() ? `${root}/plugin/memwal${own.slice(root.length)}` : own;
}

// Airflow's address follows ours, so that it can be copied, bookmarked and reloaded.
export function mirrorAddress() {
  const history = parentHistory();
  if (history) history.replaceState(history.state, "", airflowAddress());
}

// What a link to a path of Airflow needs. In the frame the link's page would open inside this one,
// so Airflow's router goes there instead.
export function airflowLink(path) {
  return {
    href: `${root}${path}`,
    target: "_top",
    onclick(event) {
      const history = parentHistory();
      if (!history) return;
      event.preventDefault();
      history.pushState(null, "", event.currentTarget.getAttribute("href"));
      window.parent.dispatchEvent(new PopStateEvent("popstate", { state: null }));
    },
  };
}

export class Refusal extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(SECONDS_MAX * 1000), ...options });
  } catch {
    throw new Refusal(0, "Airflow did not answer.");
  }
  if (response.status === 304) return { response, body: null };
  const body = await response.json().catch(() => null);
  if (response.ok) return { response, body };
  const detail = body?.detail ?? response.statusText;
  throw new Refusal(response.status, typeof detail === "string" && detail ? detail : JSON.stringify(detail) || `HTTP ${response.status}`);
}

// Returns null for what is the same as with the etag of last time.
export async function getData(name, query = {}, etag = "") {
  const { response, body } = await ask(`data/${name}.json?${new URLSearchParams(query)}`, { headers: etag ? { "if-none-match": etag } : {} });
  return { body, date: response.headers.get("date"), etag: response.headers.get("etag") };
}

export async function askAirflow(path, order) {
  const post = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(order) };
  return (await ask(`${root}/api/v2/${path}`, order ? post : {})).body;
}
