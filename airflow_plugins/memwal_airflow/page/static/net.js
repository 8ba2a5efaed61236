// Talks to the page's server. Addresses are relative: Airflow may live below a path of its own.

const SECONDS_MAX = 20;

export class Refusal extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function answer(path, options) {
  let response;
  try {
    response = await fetch(path, {
      credentials: "same-origin",
      cache: "no-store",
      signal: AbortSignal.timeout(SECONDS_MAX * 1000),
      ...options,
    });
  } catch {
    throw new Refusal(0, "Airflow did not answer.");
  }
  let body = null;
  try {
    body = await response.json();
  } catch {
    body = null;
  }
  if (!response.ok) {
    const detail = body && typeof body.detail === "string" ? body.detail : response.statusText;
    throw new Refusal(response.status, detail || `HTTP ${response.status}`);
  }
  return body;
}

export function get(path, query) {
  const text = query ? `?${new URLSearchParams(query)}` : "";
  return answer(`data/${path}.json${text}`, {});
}

export function post(path, body) {
  return answer(`actions/${path}`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-memwal-action": "1" },
    body: JSON.stringify(body),
  });
}
