"""The harness itself: users have their roles, nothing listens but on loopback, tests start anew."""

from __future__ import annotations

import httpx
import pytest

from tests.airflow.airflow_server import InProcessAirflow, TestAirflow
from tests.airflow.dag_runs import asset_events, run_tasks


@pytest.mark.nightly
def test_a_running_airflow(airflow_server: TestAirflow) -> None:
    assert airflow_server.is_well()
    addresses = airflow_server.listening_addresses()
    assert addresses == {("127.0.0.1", airflow_server.port)}
    admin, viewer = airflow_server.client("admin"), airflow_server.client("viewer")
    assert admin.get("/pools")["total_entries"] >= 1
    assert viewer.get("/dags") is not None
    with pytest.raises(httpx.HTTPStatusError, match="403"):
        viewer.post("/pools", {"name": "mine", "slots": 1})
    assert httpx.get(f"{airflow_server.base_url}/api/v2/dags").status_code == 401
    admin.wait_for_dags("memwal_merge")
    assert admin.import_errors() == {}


@pytest.mark.nightly
@pytest.mark.integration
@pytest.mark.parametrize("time", [1, 2])
def test_a_test_starts_from_an_empty_database(airflow_home: InProcessAirflow, time: int) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.sdk import Asset, task
    from airflow.settings import Session
    from sqlalchemy import func, select

    assert Session().scalar(select(func.count()).select_from(DagRun)) == 0

    @task(outlets=[Asset("made")])
    def one() -> int:
        return time

    assert run_tasks(airflow_home, one).xcom("one") == time
    assert [name for name, _ in asset_events(of_tables=True)] == ["made"]
