"""The example that follows a table by its events, in a running Airflow."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from local_airflow.home import JOBS_BIN
from local_airflow.rest import AirflowClient
from memwal_airflow.assets.events import find_changed_range

from tests.airflow.airflow_server import TestAirflow
from tests.airflow.tables import TestTable

DAG = "orders_changes"


@pytest.fixture
def admin(airflow_server: TestAirflow) -> Iterator[AirflowClient]:
    client = airflow_server.client("admin")
    client.wait_for_dags(DAG, "memwal_merge")
    for dag_id in (DAG, "memwal_merge"):
        client.set_paused(dag_id, False)
    yield client
    for dag_id in (DAG, "memwal_merge"):
        client.set_paused(dag_id, True)


def read_copy(airflow_server: TestAirflow) -> dict[Any, Any]:
    with sqlite3.connect(airflow_server.command_file.parent / "copy.db") as copy:
        return {key: json.loads(row)["n"] for key, row in copy.execute("SELECT * FROM orders")}


def list_events(admin: AirflowClient) -> list[dict[str, Any]]:
    """Those of the table, oldest first."""
    events = [e for e in admin.asset_events() if e["uri"].endswith("/ledger")]
    return sorted(events, key=lambda event: event["id"])


def merge(admin: AirflowClient) -> dict[str, Any]:
    """Merge in Airflow; what the table's event tells."""
    run = admin.trigger("memwal_merge", {"tables": ["ledger"]})
    assert admin.wait_for_run("memwal_merge", run) == "success"
    found: dict[str, Any] = list_events(admin)[-1]["extra"]
    return found


def merge_elsewhere(ledger: TestTable) -> None:
    """Merge as an operator would, so that Airflow knows nothing of it."""
    subprocess.run([JOBS_BIN / "memwal", "merge", ledger.uri, "--engine", "local"], check=True)


@pytest.mark.nightly
def test_nothing_is_missed_and_nothing_comes_twice(
    airflow_server: TestAirflow, admin: AirflowClient
) -> None:
    ledger = airflow_server.tables["ledger"]
    known = admin.runs(DAG)
    ledger.fill(1)
    event = merge(admin)
    assert event["version_before"] < event["version"]
    assert event["counts"]["rows_updated"] >= 10
    first, state = admin.wait_for_new_run(DAG, known)
    assert (state, read_copy(airflow_server)) == ("success", ledger.read())
    begun = admin.xcom(DAG, first, "copy_changes")
    assert (begun["since"], begun["until"]) == (0, event["version"])

    # A merge without an event, and then one with: the run reads what both made.
    ledger.fill(1, shard=1)
    merge_elsewhere(ledger)
    ledger.fill(1)
    event = merge(admin)
    known = {**known, first: state}
    second, state = admin.wait_for_new_run(DAG, known)
    assert (state, read_copy(airflow_server)) == ("success", ledger.read())
    found = admin.xcom(DAG, second, "copy_changes")
    assert found["since"] == begun["until"] < event["version_before"]
    assert found["until"] == event["version"]

    # The first one's task is made again, after the table went on: the copy is not taken back.
    clear = {"dry_run": False, "dag_run_id": first, "only_failed": False, "reset_dag_runs": True}
    admin.post(f"/dags/{DAG}/clearTaskInstances", clear)
    assert admin.wait_for_run(DAG, first) == "success"
    again = {"since": event["version"], "until": event["version"], "rows": 0}
    assert admin.xcom(DAG, first, "copy_changes") == again
    assert read_copy(airflow_server) == ledger.read()

    # By hand, it has no event, and goes on from where it is.
    ledger.flush([70_000])
    merge_elsewhere(ledger)
    run = admin.trigger(DAG)
    assert admin.wait_for_run(DAG, run) == "success"
    assert read_copy(airflow_server) == ledger.read()

    # Two events that start one run begin before the copy has a row, and end after it is gone.
    ledger.flush([], [70_000])
    merge_elsewhere(ledger)
    end = admin.xcom(DAG, run, "copy_changes")["until"] + 1
    known = admin.runs(DAG)
    asset = list_events(admin)[-1]["asset_id"]
    admin.set_paused(DAG, True)
    for until in (end - 1, end):
        extra = {"version_before": event["version"], "version": until}
        admin.post("/assets/events", {"asset_id": asset, "extra": extra})
        admin.set_paused(DAG, False)
    third, state = admin.wait_for_new_run(DAG, known)
    assert (state, read_copy(airflow_server)) == ("success", ledger.read())
    assert admin.xcom(DAG, third, "copy_changes")["since"] == end - 1


def test_events_that_start_one_run_make_one_range() -> None:
    extras = [{"version_before": 7, "version": 9}, {}, {"version_before": 5, "version": 7}, None]
    events = [SimpleNamespace(extra=extra) for extra in extras]
    assert find_changed_range({"a": events[:2], "b": events[2:]}) == (5, 9)
    assert find_changed_range({"a": events[1:2]}) == (None, None)
    assert find_changed_range(None) == (None, None)
