"""The harness itself: a task runs, users have their roles, and nothing listens but on loopback."""

from __future__ import annotations

import httpx
import pytest

from tests.airflow.airflow_server import InProcessAirflow, TestAirflow


def test_it_is_well_and_listens_on_loopback_only(airflow_server: TestAirflow) -> None:
    assert airflow_server.is_well()
    addresses = airflow_server.listening_addresses()
    assert addresses == {("127.0.0.1", airflow_server.port)}


def test_users_have_their_roles(airflow_server: TestAirflow) -> None:
    admin, viewer = airflow_server.client("admin"), airflow_server.client("viewer")
    assert admin.get("/pools")["total_entries"] >= 1
    assert viewer.get("/dags") is not None
    with pytest.raises(httpx.HTTPStatusError, match="403"):
        viewer.post("/pools", {"name": "mine", "slots": 1})
    assert httpx.get(f"{airflow_server.base_url}/api/v2/dags").status_code == 401


def test_our_dags_are_parsed(airflow_server: TestAirflow) -> None:
    admin = airflow_server.client("admin")
    admin.wait_for_dags("memwal_merge")
    assert admin.import_errors() == {}


def test_dag_test_starts_from_an_empty_database(airflow_home: InProcessAirflow) -> None:
    table = airflow_home.tables.make("one", generations=1)
    assert table.flushed() == {table.shards[0]: 1}
    assert _run_a_dag(airflow_home) == "success"


def test_and_so_does_the_next(airflow_home: InProcessAirflow) -> None:
    assert airflow_home.tables.folder.exists() is False
    assert _run_a_dag(airflow_home) == "success"


def _run_a_dag(home: InProcessAirflow) -> str:
    from airflow.models.dagrun import DagRun
    from airflow.sdk import dag, task
    from airflow.settings import Session
    from sqlalchemy import func, select

    @dag(schedule=None)
    def small() -> None:
        @task
        def one() -> int:
            return 1

        one()

    assert Session().scalar(select(func.count()).select_from(DagRun)) == 0
    made = small()
    home.register(made)
    run = made.test()
    assert run.get_task_instance("one").xcom_pull("one") == 1
    return str(run.state.value)
