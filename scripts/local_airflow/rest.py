"""Airflow's REST API, as far as the demo and the tests need it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import httpx

from local_airflow.home import DATABASE_WAIT_SECONDS

_T = TypeVar("_T")
_FINISHED = ("success", "failed")
# On a busy machine the server waits long for the database, which the scheduler writes to as well.
_ANSWER_SECONDS_MAX = 2.0 * DATABASE_WAIT_SECONDS
# Airflow on SQLite answers 500 if another process writes between its read and its write, and if it
# has waited in vain; there has to be time for another try after that.
_SERVER_ERROR_SECONDS_MAX = 2.5 * DATABASE_WAIT_SECONDS


def wait_until(
    what: str, look: Callable[[], _T | None], seconds_max: float, every: float = 0.25
) -> _T:
    """Call `look` until its result is true, and return that; raises TimeoutError naming `what`."""
    end = time.monotonic() + seconds_max
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() >= end:
            raise TimeoutError(f"{what}: not within {seconds_max:g} s")
        time.sleep(every)


class AirflowClient:
    """A logged-in user; anything but 2xx raises httpx.HTTPStatusError, except through `http`."""

    def __init__(self, base_url: str, user: str, password: str) -> None:
        self.http = httpx.Client(base_url=base_url, timeout=_ANSWER_SECONDS_MAX)
        answer = self.http.post("/auth/token", json={"username": user, "password": password})
        answer.raise_for_status()
        self.token: str = answer.json()["access_token"]
        self.http.headers["Authorization"] = f"Bearer {self.token}"

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def get(self, path: str, **params: Any) -> Any:
        """GET `/api/v2` + path."""
        return self._json(self._retry_on_500("GET", path, params=params))

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """POST JSON to `/api/v2` + path."""
        return self._json(self.http.post(f"/api/v2{path}", json=dict(body)))

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        """PATCH `/api/v2` + path with JSON."""
        return self._json(self._retry_on_500("PATCH", path, json=dict(body)))

    def _retry_on_500(self, method: str, path: str, **rest: Any) -> httpx.Response:
        """Send a request, again after a 500; only for what may safely be done twice."""
        end = time.monotonic() + _SERVER_ERROR_SECONDS_MAX
        while True:
            answer = self.http.request(method, f"/api/v2{path}", **rest)
            if answer.status_code != 500 or time.monotonic() >= end:
                return answer
            time.sleep(0.5)

    @staticmethod
    def _json(answer: httpx.Response) -> Any:
        if answer.is_error:
            answer.read()
            text = f"{answer.request.method} {answer.url}: {answer.status_code} {answer.text[:500]}"
            raise httpx.HTTPStatusError(text, request=answer.request, response=answer)
        return answer.json()

    def dag_ids(self) -> set[str]:
        """List the DAGs that Airflow knows and that are not stale."""
        return {dag["dag_id"] for dag in self.get("/dags", limit=100)["dags"]}

    def import_errors(self) -> dict[str, str]:
        """Map the files that could not be parsed to their tracebacks."""
        found = self.get("/importErrors", limit=100)["import_errors"]
        return {error["filename"]: error["stack_trace"] for error in found}

    def wait_for_dags(self, *dag_ids: str, seconds_max: float = 180) -> None:
        """Wait until these DAGs are parsed; the error says which files could not be."""

        def look() -> bool:
            return self.dag_ids() >= set(dag_ids)

        try:
            wait_until(f"DAGs {sorted(dag_ids)}", look, seconds_max)
        except TimeoutError as error:
            raise TimeoutError(
                f"{error}; found {sorted(self.dag_ids())}; import errors {self.import_errors()}"
            ) from None

    def set_paused(self, dag_id: str, paused: bool) -> None:
        """Pause or unpause."""
        self.patch(f"/dags/{dag_id}", {"is_paused": paused})

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> str:
        """Start a run; returns its run_id. The DAG has to be unpaused to get anywhere."""
        run_id = f"by-hand-{uuid.uuid4()}"
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf or {})}
        answer = self._retry_on_500("POST", f"/dags/{dag_id}/dagRuns", json=body)
        # An earlier 500 may have come after the run had been made.
        if answer.status_code != 409:
            self._json(answer)
        return run_id

    def runs(self, dag_id: str) -> dict[str, str]:
        """Map run_id to state, oldest first."""
        found = self.get(f"/dags/{dag_id}/dagRuns", limit=100, order_by="run_after")["dag_runs"]
        return {run["dag_run_id"]: run["state"] for run in found}

    def newest_runs(self) -> list[dict[str, Any]]:
        """Return the newest runs of all DAGs, newest first, as the API gives them."""
        found = self.get("/dags/~/dagRuns", limit=100, order_by="-run_after")
        runs: list[dict[str, Any]] = found["dag_runs"]
        return runs

    def wait_for_run(self, dag_id: str, run_id: str, seconds_max: float = 240) -> str:
        """Wait until the run has ended; returns success or failed."""

        def look() -> str | None:
            state: str = self.get(f"/dags/{dag_id}/dagRuns/{run_id}")["state"]
            return state if state in _FINISHED else None

        try:
            return wait_until(f"{dag_id} {run_id}", look, seconds_max)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; tasks {self.task_states(dag_id, run_id)}") from None

    def wait_for_new_run(
        self, dag_id: str, known: Mapping[str, str] | None = None, seconds_max: float = 240
    ) -> tuple[str, str]:
        """Wait until a run that is not in `known` has ended; returns (run_id, state)."""

        def look() -> str | None:
            new = [run for run in self.runs(dag_id) if run not in (known or {})]
            return new[0] if new else None

        run_id = wait_until(f"a new run of {dag_id}", look, seconds_max)
        return run_id, self.wait_for_run(dag_id, run_id, seconds_max)

    def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Return task instances as in the API: task_id, map_index, state, try_number, ..."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances"
        found: list[dict[str, Any]] = self.get(path, limit=100)["task_instances"]
        return found

    def task_states(self, dag_id: str, run_id: str) -> dict[tuple[str, int], str | None]:
        """Map (task_id, map_index) to state; map_index is -1 for a task that is not mapped."""
        return {
            (task["task_id"], task["map_index"]): task["state"]
            for task in self.task_instances(dag_id, run_id)
        }

    def xcom(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        key: str = "return_value",
        map_index: int = -1,
    ) -> Any:
        """A task's XCom value."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.get(path, map_index=map_index, deserialize=True)["value"]

    def log(
        self, dag_id: str, run_id: str, task_id: str, try_number: int = 1, map_index: int = -1
    ) -> str:
        """A task's log as the UI shows it, a line for each event."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}"
        content = self.get(path, map_index=map_index)["content"]
        return "\n".join(str(line) for line in content)

    def asset_events(self, **params: Any) -> list[dict[str, Any]]:
        """Newest first; `params` are the API's own (name_pattern, source_dag_id, ...)."""
        found = self.get("/assets/events", limit=100, order_by="-timestamp", **params)
        events: list[dict[str, Any]] = found["asset_events"]
        return events
